"""Fixtures for tests of authentication: servers and Secrets. A conftest.py imports those that its folder uses."""

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
from tests.support.authenticatedquery import SourceAccessHarness, server_context
from tests.support.tlsca import TestCa


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    """A private CA."""
    return TestCa(tmp_path_factory.mktemp("auth-ca"))


@pytest.fixture(scope="session")
def local(ca: TestCa) -> ssl.SSLContext:
    """Context of servers on 127.0.0.1 with a certificate of the CA."""
    return server_context(ca.issue("127.0.0.1"))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the clock of cached tokens ahead by seconds. The clock stands still otherwise."""
    began, ahead = time.monotonic(), 0.0

    def move(seconds: float) -> None:
        nonlocal ahead
        ahead = seconds

    monkeypatch.setattr(tokencache, "time", SimpleNamespace(monotonic=lambda: began + ahead))
    return move


@pytest.fixture
def bed(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Iterator[SourceAccessHarness]:
    """Secrets in a folder, and an agent's fetch stage."""
    yield SourceAccessHarness(tmp_path / "secrets", settings_factory())
    transport.close()
