"""The tests of this folder share one web service, which ends with them: it reports its clock in the shared Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.exporter.server import ApiProcess
from tests.support.redisserver import RedisServer


@pytest.fixture(scope="package")
def exporter(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with ApiProcess(redis_server.url, tmp_path_factory.mktemp("exporter") / "log") as process:
        yield process
