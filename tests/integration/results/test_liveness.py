"""The results worker's liveness file, however the worker is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.results.workerprocess import CELERY, OWN, WorkerProcess
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for


@pytest.mark.parametrize("command", [OWN, CELERY], ids=["own", "celery"])
def test_it_is_kept_new_while_the_worker_lives_also_without_redis(tmp_path: Path, command: tuple[str, ...]) -> None:
    alive = tmp_path / "alive"
    with RedisServer() as server:
        settings = {"DSF_ROLE": "results", "DSF_PROBE_DIR": str(tmp_path)}
        with WorkerProcess(server.url, tmp_path, command, **settings) as worker:
            wait_for(alive.exists, 30, "the liveness file")
            server.kill()
            wait_for(lambda: "Cannot connect" in worker.log(), 20, worker.log())
            alive.unlink()
            wait_for(alive.exists, 10, "the file while the worker waits for Redis")
            server.start()
            assert worker.stop() == 0
            assert not alive.exists()
