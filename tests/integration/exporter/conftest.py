"""One exporter per test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.exporter.server import ExporterProcess
from tests.support.redisserver import RedisServer


@pytest.fixture(scope="session")
def exporter(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with ExporterProcess(redis_server.url, tmp_path_factory.mktemp("exporter") / "log") as process:
        yield process
