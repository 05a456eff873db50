"""One page per test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redisserver import RedisServer
from tests.support.webprocess import WebProcess


@pytest.fixture(scope="module")
def page(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """Read-only, on loopback, without a login."""
    with WebProcess(redis_server.url, tmp_path_factory.mktemp("web") / "log") as process:
        yield process
