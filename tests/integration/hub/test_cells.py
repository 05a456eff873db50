"""Cells on one folder of manifests: each serves its clusters, and together they leave what one hub alone would."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from pydantic import SecretStr

from dsf import keys
from dsf.api.types import CLUSTER_SET_LABEL
from dsf.backends import make_backend, make_score_backend
from dsf.cells import Cell
from dsf.errors import SettingsError
from dsf.hub.hub import Hub
from dsf.results.writer import Writer
from dsf.store.pairs import Score
from tests.integration.hub.world import World
from tests.support.httpserver import ScriptedServer
from tests.support.redisserver import RedisServer

RULE = [Cell(name="a"), Cell(name="b"), Cell(name="late", clusterSets=("late",))]
CLUSTERS = {"cluster-0001": "a", "cluster-0002": "a", "cluster-0003": "b", "cluster-0004": "b"}

MakeCell = Callable[[str], World]


@pytest.fixture
def make_cell(world: World, api: ScriptedServer) -> Iterator[MakeCell]:
    """Makes a cell by its name, with a Redis of its own, on one folder with a scorer and four clusters."""
    world.config()
    world.scorer("cpu-scorer", api)
    for name in CLUSTERS:
        world.cluster(name)
    with contextlib.ExitStack() as stack:

        def make(name: str) -> World:
            server = stack.enter_context(RedisServer())
            client = redis.Redis.from_url(server.url, decode_responses=True, socket_timeout=10)
            values = {"cell": name, "cells": RULE, "signing_secret": SecretStr("5e" * 32)}
            made = World(world.folder, client, world.settings.with_redis(server.url).model_copy(update=values))
            made.out = world.folder / "_out" / name
            stack.callback(client.close)
            stack.callback(made.stop)
            return made

        yield make


def pairs_of(cell: str) -> list[str]:
    return [f"{name}/cpu-scorer" for name, owner in CLUSTERS.items() if owner == cell]


def test_two_cells_leave_together_what_one_hub_alone_would(make_cell: MakeCell, world: World) -> None:
    a, b = make_cell("a"), make_cell("b")
    for cell in (a, b):
        cell.start()
    a.until(lambda: a.pairs() == pairs_of("a"))
    b.until(lambda: b.pairs() == pairs_of("b"))
    a.until(lambda: all(a.told(name) == ["cpu-scorer"] for name, owner in CLUSTERS.items() if owner == "a"))
    b.until(lambda: all(b.told(name) == ["cpu-scorer"] for name, owner in CLUSTERS.items() if owner == "b"))
    time.sleep(2 * a.resync)  # looks at everything are what is tested
    assert (a.pairs(), b.pairs()) == (pairs_of("a"), pairs_of("b"))
    found = {cell.settings.cell: sorted(path.name for path in (cell.out / "clusters").iterdir()) for cell in (a, b)}
    assert found == {cell: [name for name, owner in CLUSTERS.items() if owner == cell] for cell in ("a", "b")}
    # A file of the one is no manifest for the other.
    assert (a.problems(), b.problems()) == ([], [])
    summaries = [
        cell.summaries(name) for name, owner in CLUSTERS.items() for cell in (a, b) if cell.settings.cell == owner
    ]
    a.stop()
    b.stop()
    world.out = world.folder / "_out"
    world.start()
    world.until(lambda: world.pairs() == sorted([*pairs_of("a"), *pairs_of("b")]))
    world.until(lambda: [world.summaries(name) for name in CLUSTERS] == summaries)


def test_a_deleted_configuration_ends_each_cells_own(make_cell: MakeCell) -> None:
    a, b = make_cell("a"), make_cell("b")
    for cell in (a, b):
        cell.start()
        cell.until(lambda cell=cell: cell.pairs())
    b.stop()
    a.remove("config.yaml")
    a.until(lambda: a.pairs() == [] and not list(a.out.glob("clusters/*/manifestwork-*")))
    assert b.pairs() == pairs_of("b")
    assert len(list(b.out.glob("clusters/*/manifestwork-*"))) == 2


def test_a_cluster_moves_and_its_score_stays_until_it_expires(make_cell: MakeCell) -> None:
    a, late = make_cell("a"), make_cell("late")
    moved = "cluster-0002"
    a.start()
    late.start()
    a.until(lambda: a.pairs() == pairs_of("a"))
    until = time.time() + 6
    score = Score(run="1700000000000-00000000", score_name="cpu", at=time.time(), valid_until=until, items=[("cpu", 5)])
    a.client.hset(
        keys.pair_key(moved, "cpu-scorer"),
        mapping={"score": score.model_dump_json(), "digest": "x", "valid_until": until, "items": 1},
    )
    with writing(a):
        a.client.zadd(keys.WRITES, {f"{moved}/cpu-scorer": 0})
        file = a.out / f"clusters/{moved}/addonplacementscores/cpu.yaml"
        a.until(file.exists)
        assert "cell: a" in file.read_text()
        a.cluster(moved, labels={CLUSTER_SET_LABEL: "late"})
        late.until(lambda: late.pairs() == [f"{moved}/cpu-scorer"])
        late.until(lambda: late.told(moved) == ["cpu-scorer"])
        # At once: the next score comes within an interval of the last one.
        assert late.schedule.due_times(late.pairs())[f"{moved}/cpu-scorer"] <= time.time() + 0.1
        a.until(lambda: a.pairs() == ["cluster-0001/cpu-scorer"])
        a.until(lambda: a.cluster_record(moved) is None)
        a.until(lambda: [path.name for path in (a.out / f"clusters/{moved}").iterdir()] == ["addonplacementscores"])
        assert file.exists()
        assert time.time() < until
        a.until(lambda: not file.exists())
        assert time.time() >= until
    # And back.
    a.cluster(moved)
    a.until(lambda: a.pairs() == pairs_of("a") and a.told(moved) == ["cpu-scorer"])
    late.until(lambda: late.pairs() == [] and late.told(moved) is None)


@contextlib.contextmanager
def writing(cell: World) -> Iterator[None]:
    """The writer of a cell's results worker runs meanwhile."""
    stopping, wake = threading.Event(), threading.Event()
    settings = cell.settings.model_copy(update={"role": "results"})
    writer = Writer(cell.client, settings, make_score_backend(settings), stopping=stopping, wake=wake)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        wake.set()
        thread.join()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cell": "a", "cells": RULE, "backend": "kube"}, "DSF_AGENT_REDIS_URL: required with DSF_CELL"),
        ({"agent_redis_url": "redis://user:password@redis.test"}, "DSF_AGENT_REDIS_URL: without user and password"),
        ({"agent_redis_url": "http://redis.test"}, "not a scheme for Redis"),
    ],
)
def test_agents_must_be_told_where_their_redis_is(world: World, values: dict[str, object], words: str) -> None:
    backend = make_backend(world.settings)
    with pytest.raises(SettingsError, match=words):
        Hub(world.settings.model_copy(update=values), backend)
