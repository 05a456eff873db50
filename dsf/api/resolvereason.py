"""Reasons why a scorer cannot run."""

from __future__ import annotations

from enum import StrEnum


class ResolveReason(StrEnum):
    """Why a scorer cannot run: the reason of its condition `ConfigSynced=False`."""

    MissingScoreName = "MissingScoreName"
    InvalidScoreName = "InvalidScoreName"
    MissingInterval = "MissingInterval"
    MissingQuery = "MissingQuery"
    MissingRange = "MissingRange"
    MissingStep = "MissingStep"
    MissingObject = "MissingObject"
    InvalidSources = "InvalidSources"
    InvalidURL = "InvalidURL"
    InvalidTokenSecretRef = "InvalidTokenSecretRef"
    InvalidAuthentication = "InvalidAuthentication"
    MissingAuthentication = "MissingAuthentication"
    HostNotAllowed = "HostNotAllowed"
    SecretNotDelivered = "SecretNotDelivered"
    UnknownTemplate = "UnknownTemplate"
    MissingClusterValue = "MissingClusterValue"
    UnsafeClusterValue = "UnsafeClusterValue"
    TokenHostMismatch = "TokenHostMismatch"
    InvalidPausedUntil = "InvalidPausedUntil"
    TooLarge = "TooLarge"
    NoRoom = "NoRoom"
