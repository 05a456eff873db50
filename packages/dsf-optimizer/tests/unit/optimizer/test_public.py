"""Responses of the service before a login."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dsf.optimizer.access import TokenAccess
from dsf.optimizer.app import make_app
from dsf.optimizer.middleware import PUBLIC


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    """Return a client of a service that requires a token."""
    (tmp_path / "token").write_text("t0ken-of-optimiser")
    service: Any = SimpleNamespace(access=TokenAccess(tmp_path / "token"), check=lambda: None)
    return TestClient(make_app(service), raise_server_exceptions=False)


@pytest.mark.parametrize("path", PUBLIC)
def test_no_version_is_shown(client: TestClient, path: str) -> None:
    assert client.get("/plans").status_code == 401
    response = client.get(path)
    text = f"{response.headers} {'' if path.endswith(('.js', '.css')) else response.text}"
    assert metadata.version("dynamic-scoring-framework") not in text
    if path == "/openapi.json":
        assert response.json()["info"]["version"] == "1"
