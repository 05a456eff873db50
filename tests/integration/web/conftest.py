"""One page per test module."""

from __future__ import annotations

from collections.abc import Iterator

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
def closed(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One token may do everything."""
    folder = tmp_path_factory.mktemp("closed")
    (folder / "token").write_text(f"{TOKEN}\n")
    with WebProcess(redis_server.url, folder / "log", web_auth="token", client_token_file=folder / "token") as page:
        yield page
