"""The whole results worker: messages in through Celery, files out, and nothing that a message says is obeyed."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf import keys
from tests.integration.results.bed import Bed
from tests.integration.results.push import message, push
from tests.integration.results.workerprocess import CELERY, OWN, WorkerProcess
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Manifests of a hub that knows the cluster c1."""
    (tmp_path / "_out" / "managedclusters").mkdir(parents=True)
    (tmp_path / "_out" / "managedclusters" / "c1.yaml").write_text("kind: ManagedCluster\n")
    return tmp_path


def score_file(folder: Path) -> Path:
    return folder / "_out" / "clusters" / "c1" / "addonplacementscores" / "score-of-s1.yaml"


@pytest.mark.parametrize("command", [CELERY, OWN], ids=["celery", "own"])
def test_a_result_becomes_a_file(bed: Bed, redis_url: str, folder: Path, command: tuple[str, ...]) -> None:
    bed.now = time.time()
    with WorkerProcess(redis_url, folder, command) as worker:
        push(bed, redis_url, [bed.envelope(bed.open())])
        wait_for(score_file(folder).exists, 30, "the score's file")
        written = yaml.safe_load(score_file(folder).read_text())
        assert {item["name"]: item["value"] for item in written["status"]["scores"]} == {"a": 1, "b": 2}
        # The sweeper runs as well.
        bed.now -= 1000
        bed.open()
        wait_for(lambda: bed.state().count("lost") == 1, 15, "the silent run to be lost")
        assert worker.stop() == 0
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize(("command", "code"), [(CELERY, 1), (OWN, 2)], ids=["celery", "own"])
def test_without_the_master_secret_it_does_not_start(
    folder: Path, redis_url: str, command: tuple[str, ...], code: int
) -> None:
    with WorkerProcess(redis_url, folder, command, DSF_SIGNING_SECRET="") as worker:
        assert worker.process is not None
        assert worker.process.wait(60) == code
        assert "DSF_SIGNING_SECRET" in worker.log()
        assert "Traceback" not in worker.log()


def test_nothing_that_comes_along_with_a_result_is_obeyed(bed: Bed, redis_url: str, folder: Path) -> None:
    bed.now = time.time()
    bed.add("c1", "s2", score_name="two")

    def signature(**options: object) -> dict[str, Any]:
        return {"task": "dsf.fetch", "args": ["s1", "x"], "kwargs": {}, "options": options, "immutable": True}

    evil = [signature(queue="spoke.c2"), signature(exchange="", routing_key="spoke.c2")]
    good = [bed.envelope(bed.open()) for _ in range(9)]
    pushed: list[object] = [
        message([good[0]], {"chain": evil[:1]}),
        message([good[1]], {"chain": evil[1:]}),
        message([good[2]], {"callbacks": evil, "errbacks": evil, "chord": evil[1]}),
        # Fails in any other worker, so that errbacks would be called.
        message([good[3], "one argument too many"], {"errbacks": evil}),
        # Would wait in the worker's memory until the year 2100, or be dropped at once.
        message([good[4]], eta="2100-01-01T00:00:00+00:00"),
        message([good[5]], expires="2000-01-01T00:00:00+00:00"),
        message([good[6]], group="g", timelimit=[0.001, 0.001], shadow="x" * 1000, argsrepr="y" * 100_000),
        # Would be put back into somebody else's queue.
        message([good[7]]),
    ]
    pushed[7]["properties"]["delivery_info"] = {"exchange": "", "routing_key": "spoke.c2"}  # type: ignore[index]
    refused: list[object] = [
        "not JSON{",
        "[" * 200_000,
        "\ud800".encode("utf-8", "surrogatepass"),
        "null",
        "[]",
        "{}",
        {"body": "e30=", "headers": {}, "properties": {}},
        {**message([good[0]]), "properties": None},
        {**message([good[0]]), "body": "not base64!"},
        {**message([good[0]]), "body": base64.b64encode(b"[[").decode()},
        message([]),
        message({"envelope": good[0]}),
        message([good[0]], task="dsf.fetch"),
        message([good[0]], task="celery.chord_unlock"),
        message(["x" * (8 * 1024 * 1024)]),
    ]
    for item in [*refused, *pushed, *refused, message([good[8]])]:
        raw = json.dumps(item) if isinstance(item, dict) else item
        bed.client.lpush(keys.RESULTS_QUEUE, raw)  # type: ignore[arg-type]
    with WorkerProcess(redis_url, folder) as worker:
        wait_for(lambda: bed.state().count("ok") == 9, 40, "nine results")
        wait_for(lambda: bed.client.llen(keys.RESULTS_QUEUE) + bed.client.hlen(keys.UNACKED) == 0, 10, "no leftovers")
        assert worker.process is not None
        assert worker.process.is_running
        assert worker.stop() == 0
    assert bed.state().open == 0
    assert bed.rejected() == {"malformed": 2 * len(refused)}
    assert 0 < worker.log().count("result refused") < len(refused), "one line a second at most"
    assert bed.client.exists("spoke.c2", "spoke.c1") == 0
    assert "x" * 300 not in worker.log()
    assert "Traceback" not in worker.log()


def test_kill_9_in_the_middle_loses_nothing(bed: Bed, redis_url: str, folder: Path) -> None:
    worker = WorkerProcess(redis_url, folder)
    number = done = kills = 0
    while kills < 2:
        if done == number:
            # At the beginning, and where the worker had done all of it before this process could kill it.
            number += 400
            assert number <= 4000
            push(bed, redis_url, bed.backlog(400))
        with worker:
            enough = min(done + (20 if kills == 0 else 100), number)
            wait_for(lambda enough=enough: bed.state().count("ok") >= enough, 30, f"{enough} results", interval=0.001)
            worker.kill()
        done = bed.state().count("ok")
        kills += done < number
    with worker:
        wait_for(lambda: bed.state().count("ok") == number, 40, "every result", interval=0.1)
        # What was done and not acknowledged comes again, and changes nothing; so does what a dead worker had taken.
        wait_for(lambda: not bed.client.keys(keys.taken_list("*")), 40, "nothing to be taken", interval=0.1)
        wait_for(lambda: not bed.client.exists(keys.UNACKED, keys.RESULTS_QUEUE), 40, "nothing left over", interval=0.1)
        assert worker.stop() == 0
    state = bed.state()
    assert (state.scheduled, state.open, state.count("lost")) == (number, 0, 0)
    assert bed.client.llen(keys.RESULTS_QUEUE) == 0


def test_redis_goes_and_comes_back(settings_factory, folder: Path) -> None:
    with RedisServer(aof=True) as server:
        client = server.client()
        bed = Bed(client, settings_factory(redis_url=server.url, signing_secret="5e" * 32))
        bed.add()
        bed.now = time.time()
        with WorkerProcess(server.url, folder) as worker:
            push(bed, server.url, [bed.envelope(bed.open())])
            wait_for(lambda: bed.state().count("ok") == 1, 30, "the first result")
            waiting = [bed.envelope(bed.open()) for _ in range(50)]
            push(bed, server.url, waiting)
            server.kill()
            noticed = ("Connection to broker lost", "results wait for Redis")
            wait_for(lambda: any(words in worker.log() for words in noticed), 20, "the worker to notice")
            server.restart()
            wait_for(lambda: bed.state().count("ok") == 51, 60, "the results that were queued", interval=0.1)
            push(bed, server.url, [bed.envelope(bed.open())])
            wait_for(lambda: bed.state().count("ok") == 52, 30, "a result after the restart")
            assert bed.state().open == 0
            assert worker.stop() == 0


def test_starting_twice_on_one_queue_shares_the_work(bed: Bed, redis_url: str, folder: Path) -> None:
    push(bed, redis_url, bed.backlog(300))
    other = folder / "other"
    other.mkdir()
    with (
        WorkerProcess(redis_url, folder),
        WorkerProcess(redis_url, other, DSF_OUT_DIR=str(folder / "_out")),
    ):
        wait_for(lambda: bed.state().count("ok") == 300, 40, "every result", interval=0.1)
    assert (bed.state().scheduled, bed.state().open) == (300, 0)


def test_a_worker_that_starts_while_redis_is_full_takes_results(settings_factory, folder: Path) -> None:
    with RedisServer() as server:
        client = server.client()
        bed = Bed(client, settings_factory(redis_url=server.url, signing_secret="5e" * 32))
        bed.add()
        bed.now = time.time()
        push(bed, server.url, [bed.envelope(bed.open()) for _ in range(3)])
        client.config_set("maxmemory", "1")
        with WorkerProcess(server.url, folder) as worker:
            wait_for(lambda: bed.state().count("ok") == 3, 30, "the results")
            wait_for(lambda: not client.exists(keys.UNACKED, keys.RESULTS_QUEUE), 30, "nothing to be left")
            assert worker.stop() == 0
        assert "Connection to broker lost" not in worker.log()
