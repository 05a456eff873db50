"""Commands in this process, against a real Redis and a state folder of the test's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import Result

from dsf.settings import settings
from tests.integration.exporter.fleet import Fleet, good_fleet
from tests.support import commandline

Dsf = Callable[..., Result]


@pytest.fixture
def dsf(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dsf]:
    """Return `dsf("status", "-o", "json")`; standard output and standard error are separate."""
    for name in [name for name in os.environ if name.startswith("DSF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DSF_REDIS_URL", redis_url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # Drop settings that another test of this process has cached.
    settings.cache_clear()
    yield commandline.dsf
    settings.cache_clear()


@pytest.fixture
def fleet(redis_client: redis.Redis) -> Fleet:
    """sample-scorer succeeds on worker01 and worker02."""
    return good_fleet(redis_client)


def loaded(result: Result) -> Any:
    """Return standard output, which has only JSON."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)
