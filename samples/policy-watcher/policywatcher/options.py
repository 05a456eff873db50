"""The environment variables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class OptionError(Exception):
    """An environment variable is invalid. The message names it and its valid values."""


@dataclass(frozen=True)
class Options:
    """Options of the watcher. Times are in seconds."""

    poll_interval: float
    stable_duration: float
    claim: str
    namespace: str

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Options:
        """Read the options from the environment. Raises OptionError."""
        return cls(
            poll_interval=_seconds(environment, "POLL_INTERVAL_SEC", 30, minimum=0.1),
            stable_duration=_seconds(environment, "STABLE_DURATION_SEC", 120, minimum=0),
            claim=_name(environment, "TARGET_CLAIM_NAME", "policy-watcher-claim"),
            namespace=_name(environment, "WATCH_NAMESPACE", "default"),
        )


def _seconds(environment: Mapping[str, str], variable: str, default: float, *, minimum: float) -> float:
    text = environment.get(variable, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    # More than a day is probably a mistake in the unit.
    if not minimum <= value <= 86_400:
        raise OptionError(f"{variable}={text!r}; allowed is a number of seconds from {minimum:g} to 86400")
    return value


def _name(environment: Mapping[str, str], variable: str, default: str) -> str:
    value = environment.get(variable, "").strip() or default
    if len(value) > 253 or not _NAME.fullmatch(value):
        raise OptionError(f"{variable}={value!r}; allowed is the name of a Kubernetes object")
    return value
