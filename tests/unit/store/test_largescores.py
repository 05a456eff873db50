"""Readers of many pairs hold few large scores in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from dsf import keys
from dsf.fleet import rescore
from dsf.fleet.rescore import RunView
from dsf.store import pairs as pairs_module
from dsf.store.client import split_by_size
from dsf.store.pairs import Pairs
from tests.integration.exporter.fleet import SAMPLE, Fleet
from tests.support.memorystore import memory_client

CLUSTERS = [f"edge{number:02}" for number in range(12)]


@pytest.fixture
def fleet() -> Fleet:
    """Each pair has a score of 100 kB."""
    fleet = Fleet(memory_client())
    results = [({"node": f"node-{number}", "meta": "m" * 100}, 1.0) for number in range(700)]
    for cluster in CLUSTERS:
        fleet.registry.put_cluster(fleet.make_cluster_record(cluster))
        fleet.entry(cluster)
        fleet.score(cluster, results=results)
        key = keys.pair_key(cluster, SAMPLE)
        fleet.redis.hset(key, "score_size", len(str(fleet.redis.hget(key, "score"))))
    return fleet


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the hashes that each round trip reads."""
    counts: list[int] = []
    execute = redis.client.Pipeline.execute

    def count(pipe: redis.client.Pipeline, *arguments: object, **options: object) -> object:
        commands = [command[0][0] for command in pipe.command_stack]
        if "HGETALL" in commands:
            counts.append(commands.count("HGETALL"))
        return execute(pipe, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(redis.client.Pipeline, "execute", count)
    return counts


def read_all(fleet: Fleet) -> Iterator[str]:
    for state in Pairs(fleet.redis).read_states((cluster, SAMPLE) for cluster in CLUSTERS):
        assert state.score is not None
        assert len(state.score.results) == 700
        yield state.cluster


def test_round_trip_reads_a_limited_number_of_bytes(
    fleet: Fleet, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs_module, "MAX_SCORE_BYTES_PER_BATCH", 350_000)
    assert list(read_all(fleet)) == CLUSTERS
    assert len(batches) >= 4
    assert max(batches) <= 3


def test_small_scores_are_read_together(fleet: Fleet, batches: list[int]) -> None:
    assert list(read_all(fleet)) == CLUSTERS
    assert batches == [12]


def test_large_scores_that_are_not_needed_are_omitted(fleet: Fleet, batches: list[int]) -> None:
    fleet.redis.hset(keys.pair_key(CLUSTERS[1], SAMPLE), "n:ok", 7)
    pairs = [(cluster, SAMPLE) for cluster in CLUSTERS]
    fleet.redis.delete(keys.pair_key(CLUSTERS[5], SAMPLE))
    states = list(Pairs(fleet.redis).read_states(pairs, lambda pair, _: pair[0] == CLUSTERS[3]))
    assert [state.cluster for state in states] == CLUSTERS
    assert [state.score_bytes > 0 for state in states] == [cluster == CLUSTERS[3] for cluster in CLUSTERS]
    assert (states[0].count("ok"), states[1].count("ok")) == (0, 7)
    # The pair without a hash has no size.
    assert batches == [1]


def test_readers_stop_before_they_read_further_scores(
    fleet: Fleet, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs_module, "MAX_SCORE_BYTES_PER_BATCH", 1)
    assert next(read_all(fleet)) == CLUSTERS[0]
    assert batches == [1]


@pytest.mark.parametrize("size", ["garbage", "-1", "", "9" * 5000, None])
def test_unreadable_size_does_not_prevent_reading(fleet: Fleet, size: str | None) -> None:
    key = keys.pair_key(CLUSTERS[0], SAMPLE)
    if size is None:
        fleet.redis.hdel(key, "score_size")
    else:
        fleet.redis.hset(key, "score_size", size)
    assert list(read_all(fleet)) == CLUSTERS


def test_runs_are_explained_without_their_scores(fleet: Fleet, batches: list[int]) -> None:
    """The hub controller explains the runs of an act, and the scores of all clusters may exceed its memory."""
    runs = [RunView(cluster=cluster, run_id="run", outcome="ok") for cluster in CLUSTERS]
    explained_runs = rescore.explain_runs(fleet.redis, SAMPLE, runs)
    assert all(run.has_score for run in explained_runs)
    assert batches == []
    report = rescore.make_report(fleet.redis, SAMPLE, runs)
    assert (report.runs, len(report.scores)) == (explained_runs, 12)


def test_items_are_split_by_size() -> None:
    assert list(split_by_size([("a", 3), ("b", 3), ("c", 9), ("d", 0), ("e", 4)], 6)) == [["a", "b"], ["c"], ["d", "e"]]
    assert list(split_by_size([], 6)) == []
