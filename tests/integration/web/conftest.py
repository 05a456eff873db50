"""All tests of a module share one page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.web.visitor import TOKEN
from tests.support.browser import browser
from tests.support.redisserver import RedisServer
from tests.support.webprocess import WebProcess

__all__ = ["browser"]


@pytest.fixture(scope="module")
def page(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """Read-only, on loopback, without a login."""
    with WebProcess(redis_server.url, tmp_path_factory.mktemp("web") / "log") as process:
        yield process


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the token that `closed` wants."""
    file = tmp_path_factory.mktemp("closed") / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture(scope="module")
def closed(redis_server: RedisServer, token_file: Path) -> Iterator[WebProcess]:
    """A page with authentication, whose single token permits every action."""
    log = token_file.with_name("log")
    with WebProcess(redis_server.url, log, web_auth="token", client_token_file=token_file) as page:
        yield page


@pytest.fixture(scope="module")
def acting(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """Everybody on this machine may act."""
    with WebProcess(redis_server.url, tmp_path_factory.mktemp("acting") / "log", web_auth="local") as page:
        yield page
