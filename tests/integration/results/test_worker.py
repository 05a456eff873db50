"""The whole results worker, from mailboxes to books and scores in Redis: it loses no result, and executes no commands
in them.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from dsf import keys
from tests.integration.results.bed import ResultsHarness
from tests.integration.results.push import push, put, waiting
from tests.integration.results.workerprocess import CELERY, OWN, WorkerProcess
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Manifests of a hub that knows the cluster c1."""
    (tmp_path / "_out" / "managedclusters").mkdir(parents=True)
    (tmp_path / "_out" / "managedclusters" / "c1.yaml").write_text("kind: ManagedCluster\n")
    return tmp_path


@contextmanager
def pushing(client: redis.Redis, frames: list[Any]) -> Iterator[None]:
    """Put these results into the mailbox while the test continues."""
    thread = threading.Thread(target=push, args=(client, frames))
    thread.start()
    try:
        yield
    finally:
        thread.join(330)
        assert not thread.is_alive()


@pytest.mark.parametrize("command", [CELERY, OWN], ids=["celery", "own"])
def test_result_becomes_a_score_for_the_writer(
    bed: ResultsHarness, redis_url: str, folder: Path, command: tuple[str, ...]
) -> None:
    bed.now = time.time()
    alive = folder / "alive"
    with WorkerProcess(redis_url, folder, command, DSF_PROBE_DIR=str(folder)) as worker:
        push(bed.client, [bed.frame(bed.open())])
        wait_for(lambda: bed.state().count("ok") == 1, 30, "the result to be counted")
        wait_for(alive.exists, 30, "the liveness file")
        # The sweeper runs as well.
        bed.now -= 1000
        bed.open()
        wait_for(lambda: bed.state().count("lost") == 1, 15, "the silent run to be lost")
        assert worker.stop() == 0
    assert not alive.exists()
    assert waiting(bed.client) == 0
    assert "Traceback" not in worker.log()
    # Results workers have no rights on objects: the controller writes them.
    assert not list(folder.rglob("addonplacementscores"))
    bed.now = time.time()
    bed.write()
    assert bed.backend.scores("c1", "score-of-s1") == {"a": 1, "b": 2}


@pytest.mark.parametrize(("command", "code"), [(CELERY, 1), (OWN, 2)], ids=["celery", "own"])
def test_worker_does_not_start_without_the_master_secret(
    folder: Path, redis_url: str, command: tuple[str, ...], code: int
) -> None:
    with WorkerProcess(redis_url, folder, command, DSF_SIGNING_SECRET="") as worker:
        assert worker.process is not None
        assert worker.process.wait(60) == code
        assert "DSF_SIGNING_SECRET" in worker.log()
        assert "Traceback" not in worker.log()


def test_malformed_results_do_not_affect_valid_results(bed: ResultsHarness, redis_url: str, folder: Path) -> None:
    valid_frames = bed.backlog(40)
    long = {"padding": "x" * 300}
    # A JSON decoder that supports types of its own would fail on this payload.
    typed = {"__type__": "datetime", "__value__": "no date", **long}
    malformed_messages: list[object] = [
        valid_frames[3].replace(valid_frames[3].split()[1], b"00" * 32),
        typed,
        None,
        [[[["y" * 300]]]],
        "text" * 100,
        {"v": "\ud800", **long},
        # A Celery message, as agents of another system would send them.
        {
            "body": base64.b64encode(json.dumps([[valid_frames[0].decode()], {}, {}]).encode()).decode(),
            "headers": {"task": "dsf.fetch"},
        },
    ]
    raw = [b"not JSON{" * 50, b"[" * 200_000, b"\xff" * 300, b'{"cluster":"c1","body":' + b"[" * 5000]
    with WorkerProcess(redis_url, folder) as worker:
        for slot, content in enumerate([*malformed_messages, *raw]):
            put(bed.client, slot, content)
        push(bed.client, valid_frames)
        wait_for(lambda: bed.state().count("ok") == 40, 30, "the good ones")
        wait_for(lambda: waiting(bed.client) == 0, 10, "nothing to be left")
        assert worker.process is not None
        assert worker.process.is_running
        assert worker.stop() == 0
    rejected = bed.rejected()
    # `null` is too short to be looked at, and counts all the same.
    assert rejected == {"bad_signature": 1, "malformed": len(malformed_messages) + len(raw) - 1}
    assert bed.state().open == 0
    assert 0 < worker.log().count("result refused") < len(malformed_messages) + len(raw), "one line a second at most"
    assert "x" * 300 not in worker.log()
    assert "Traceback" not in worker.log()


def test_kill_9_in_the_middle_loses_nothing(bed: ResultsHarness, redis_url: str, folder: Path) -> None:
    worker = WorkerProcess(redis_url, folder)
    # Some of these results remain for the second kill, even if this process notices the first one late.
    number, kills = 600, 0

    def reads_next(ok_before: int) -> bool:
        """Return True when the worker has ingested ten further results and reads no slot alone.

        A result whose reader dies while reading it alone is dropped, because it may have killed its reader.
        """
        return bed.state().count("ok") > ok_before + 10 and not bed.client.exists(keys.MAIL_SUSPECTS)

    with pushing(bed.client, bed.backlog(number)):
        while kills < 2:
            ok_count = bed.state().count("ok")
            with worker:
                wait_for(partial(reads_next, ok_count), 60, "results", interval=0.001)
                worker.kill()
            kills += 1
        with worker:
            wait_for(lambda: bed.state().count("ok") == number, 60, "every result", interval=0.1)
            wait_for(lambda: waiting(bed.client) == 0, 20, "nothing left over", interval=0.1)
            assert worker.stop() == 0
    state = bed.state()
    assert (state.scheduled, state.open, state.count("lost")) == (number, 0, 0)


def test_worker_survives_a_redis_outage(settings_factory, folder: Path) -> None:
    with RedisServer(aof=True) as server:
        client = server.client()
        bed = ResultsHarness(client, settings_factory(redis_url=server.url, signing_secret="5e" * 32))
        bed.add()
        bed.now = time.time()
        with WorkerProcess(server.url, folder, DSF_PROBE_DIR=str(folder)) as worker:
            push(client, [bed.frame(bed.open())])
            wait_for(lambda: bed.state().count("ok") == 1, 30, "the first result")
            push(client, [bed.frame(bed.open()) for _ in range(10)])
            server.kill()
            wait_for(lambda: "redis fails, will retry" in worker.log(), 20, "the worker to notice")
            (folder / "alive").unlink(missing_ok=True)
            wait_for((folder / "alive").exists, 10, "the liveness file while the worker waits for Redis")
            server.restart()
            wait_for(lambda: bed.state().count("ok") == 11, 60, "the results that waited", interval=0.1)
            push(client, [bed.frame(bed.open())])
            wait_for(lambda: bed.state().count("ok") == 12, 30, "a result after the restart")
            assert bed.state().open == 0
            assert worker.stop() == 0


def test_worker_started_with_a_full_redis_ingests_results(settings_factory, folder: Path) -> None:
    with RedisServer() as server:
        client = server.client()
        bed = ResultsHarness(client, settings_factory(redis_url=server.url, signing_secret="5e" * 32))
        bed.add()
        bed.now = time.time()
        push(client, [bed.frame(bed.open()) for _ in range(3)])
        client.config_set("maxmemory", "1")
        with WorkerProcess(server.url, folder) as worker:
            wait_for(lambda: bed.state().count("ok") == 3, 30, "the results")
            wait_for(lambda: waiting(client) == 0, 30, "nothing to be left")
            assert worker.stop() == 0
        assert "Connection to broker lost" not in worker.log()


def test_ingested_results_are_visible_to_flower(bed: ResultsHarness, redis_url: str, folder: Path) -> None:
    bed.now = time.time()
    event_bodies: list[str] = []
    with bed.client.pubsub() as events:
        # Before there is a worker: it may be quicker than this process.
        events.psubscribe("/0.celeryev/*")
        assert (events.get_message(timeout=300) or {}).get("type") == "psubscribe"

        def kinds() -> set[str]:
            while (event := events.get_message(timeout=0.1)) is not None:
                if event["type"] == "pmessage":
                    event_bodies.append(json.loads(event["data"])["body"])
            return {
                kind
                for kind in ("task-received", "task-started", "task-succeeded", "worker-online")
                if any(f'"{kind}"' in text for text in event_bodies)
            }

        with WorkerProcess(redis_url, folder):
            wait_for(lambda: "worker-online" in kinds(), 30, "the worker to be connected")
            push(bed.client, [bed.frame(bed.open())])
            wait_for(lambda: len(kinds()) == 4, 30, "the task's events")
    text = "\n".join(event_bodies)
    assert '"dsf.ingest"' in text
    assert "1 result of c1" in text
    assert "ok 1" in text
