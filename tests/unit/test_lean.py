"""What our processes leave out of packages that they use, and that it is there for who asks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_START = "import json, sys, warnings\nfrom dsf import lean\nlean.start()\nlean.start()\n"


def _run(code: str) -> object:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _START + code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("package", "left_out"),
    [
        ("redis", ["redis.asyncio", "redis.asyncio.client", "opentelemetry.sdk"]),
        ("requests", ["charset_normalizer", "chardet"]),
        ("kombu.utils.compat", ["cffi"]),
    ],
)
def test_it_is_left_out_and_is_there_later(package: str, left_out: list[str]) -> None:
    code = f"""
import importlib, {package}
names = {left_out!r}
print(json.dumps([[name in sys.modules for name in names], importlib.util.find_spec(names[0]) is not None]))
"""
    assert _run(code) == [[False] * len(left_out), True]


@pytest.mark.parametrize("how", ["import redis.asyncio", "import redis; redis.asyncio", "from redis import asyncio"])
def test_who_asks_for_asyncio_gets_the_real_one(how: str) -> None:
    code = f"""
import asyncio as loop, redis
{how}
async def ask():
    client = redis.asyncio.Redis(port=1)
    try:
        await client.xread({{"stream": "0"}})
    except redis.ConnectionError as error:
        return type(error).__name__
    finally:
        await client.aclose()
from redis.commands import core
loop.run(core.async_record_streaming_lag(None))
print(json.dumps([loop.run(ask()), redis.__spec__.loader is redis.__loader__, type(redis.__loader__).__name__]))
"""
    assert _run(code) == ["ConnectionError", True, "SourceFileLoader"]


def test_another_version_of_redis_is_imported_as_it_is(tmp_path: Path) -> None:
    code = f"""
import pathlib
folder = pathlib.Path({str(tmp_path)!r})
for name, text in {{
    "__init__": "from redis import asyncio\\nfrom redis.client import Redis",
    "client": "from redis.asyncio.client import Redis",
    "asyncio/__init__": "",
    "asyncio/client": "class Redis: pass",
}}.items():
    file = folder / "redis" / (name + ".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
sys.path.insert(0, str(folder))
import redis, redis.asyncio.client
print(json.dumps([redis.Redis is redis.asyncio.client.Redis, redis.asyncio.__file__.startswith(str(folder))]))
"""
    assert _run(code) == [True, True]
