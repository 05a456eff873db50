"""One page per test module."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import redis

from dsf import keys
from dsf.store.model import ModelKeeper, recount
from tests.integration.web.visitor import TOKEN
from tests.support.browser import browser
from tests.support.redisserver import RedisServer
from tests.support.webprocess import WebProcess

__all__ = ["browser"]

#: A fleet of fewer pairs is counted again and again.
_FEW = 1000


@pytest.fixture(autouse=True)
def _kept(redis_server: RedisServer) -> Iterator[None]:
    """What a results worker does: it keeps the read model. Here it counts all again and again: tests write by hand."""
    ended = threading.Event()

    def keep() -> None:
        with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
            keeper = ModelKeeper(client)
            while not ended.wait(0.1):
                if client.hlen(keys.ENTRIES) < _FEW:
                    recount(client)
                while keeper.turn(time.time()):
                    pass

    thread = threading.Thread(target=keep)
    thread.start()
    yield
    ended.set()
    thread.join()


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
    with WebProcess(redis_server.url, folder / "log", web_auth="token", web_token_file=folder / "token") as page:
        yield page
