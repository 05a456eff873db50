"""Redis in this process's memory, for tests that only need a store.

The real Lua scripts run in it. Tests of several connections, blocking commands, ACLs, outages or memory (MEMORY USAGE
is not implemented) need a real server. Tests of the store run on both.
"""

from __future__ import annotations

import functools
from typing import Any

import fakeredis
import redis


class _Scripts:
    """A Lua runtime that compiles each script once. The library compiles, and collects garbage, at each call."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._compiled: dict[bytes, Any] = {}

    def execute(self, script: bytes | str) -> Any:
        if isinstance(script, str):
            # The library itself runs this after each call: "collectgarbage()".
            return None
        if script not in self._compiled:
            # Lua does not know a first line such as "#!lua flags=allow-oom". As a comment it keeps the numbers of the
            # other lines.
            self._compiled[script] = self._runtime.compile(b"--" + script if script.startswith(b"#!") else script)
        return self._compiled[script]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


@functools.cache
def _server() -> fakeredis.FakeServer:
    server = fakeredis.FakeServer()
    with fakeredis.FakeRedis(server=server) as client:
        # This call creates the runtime.
        client.eval("return 1", 0)
    server._lua_runtime = _Scripts(server._lua_runtime)
    return server


def memory_client() -> redis.Redis:
    """Return a client of the empty store in memory, one per process; it decodes to str."""
    client: redis.Redis = fakeredis.FakeRedis(server=_server(), decode_responses=True)
    client.flushall()
    return client
