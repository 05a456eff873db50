"""The library works without the rest of the framework and without its dependencies."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import dsf.scorer

ROOT = Path(__file__).resolve().parents[5]
SMALL = ROOT / "packages" / "dsf-scorer"

#: Imports the library, serves a request, and fails if any of these modules is imported.
_PROGRAM = """
import sys

BLOCKED = {"celery", "kombu", "redis", "kubernetes", "requests", "urllib3", "flower", "structlog", "typer", "rich",
           "yaml", "pydantic_settings", "pandas"}

class Finder:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in BLOCKED or (top == "dsf" and name != "dsf" and not name.startswith("dsf.scorer")):
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Finder())

import asyncio
from dsf.scorer import Scorer, Series, Score

app = Scorer(name="a", description="b", score_name="c", interval=1)

@app.score
def score(series):
    return [Score(1)]

async def ask():
    sent = []
    async def receive():
        return {"type": "http.request", "body": b'{"data":[]}', "more_body": False}
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "POST", "path": "/scoring", "raw_path": b"/scoring", "query_string": b"",
             "headers": [], "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"}}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    assert sent[1]["body"] == b'{"results":[{"metric":{},"score":1.0}]}', sent

asyncio.run(ask())
"""


def test_library_imports_nothing_of_the_framework() -> None:
    process = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr


def test_library_is_typed() -> None:
    assert (Path(dsf.scorer.__file__).parent / "py.typed").exists()


def test_distribution_has_the_version_and_license_of_the_framework() -> None:
    small = tomllib.loads((SMALL / "pyproject.toml").read_text())
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert small["project"]["version"] == whole["project"]["version"]
    # All but the framework have a README of their own, without pictures.
    assert small["build-system"]["requires"][0] == whole["build-system"]["requires"][0]
    assert (SMALL / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
