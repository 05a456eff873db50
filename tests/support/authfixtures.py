"""Fixtures of the tests of authentication: servers and Secrets. A conftest.py imports those that its folder uses."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsf.auth import tokencache
from dsf.http import transport
from dsf.settings import Settings
from tests.support.authenticatedquery import Bed, server_context
from tests.support.tlsca import TestCa


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    """A private CA."""
    return TestCa(tmp_path_factory.mktemp("auth-ca"))


@pytest.fixture(scope="session")
def local(ca: TestCa) -> ssl.SSLContext:
    """For servers of 127.0.0.1 that the CA vouches for."""
    return server_context(ca.issue("127.0.0.1"))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock by which tokens are kept so many seconds ahead; it stands still, and is nobody else's."""
    began, ahead = time.monotonic(), 0.0

    def move(seconds: float) -> None:
        nonlocal ahead
        ahead = seconds

    monkeypatch.setattr(tokencache, "time", SimpleNamespace(monotonic=lambda: began + ahead))
    return move


@pytest.fixture
def bed(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Iterator[Bed]:
    """Secrets in a folder, and an agent's stage fetch."""
    yield Bed(tmp_path / "secrets", settings_factory())
    transport.close()
