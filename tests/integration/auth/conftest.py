"""Servers and Secrets of the tests of authentication."""

from __future__ import annotations

from tests.support.authfixtures import bed, ca, later, local

__all__ = ["bed", "ca", "later", "local"]
