"""Servers and Secrets of the tests of authentication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsf.http import transport
from dsf.settings import Settings
from tests.integration.auth.bed import Bed
from tests.support.tlsca import TestCa


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    """A private CA."""
    return TestCa(tmp_path_factory.mktemp("auth-ca"))


@pytest.fixture
def bed(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Iterator[Bed]:
    """Secrets in a folder, and an agent's stage fetch."""
    yield Bed(tmp_path / "secrets", settings_factory())
    transport.close()
