"""Stored data that cannot be read stops no reader of the rest, and is logged once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from dsf import keys
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.collector import FleetCollector
from dsf.optimizer.plans import read_plans
from dsf.optimizer.redisrights import PLANS
from dsf.store.agents import AgentKeys
from dsf.store.client import log_unreadable
from dsf.store.clockguard import ResultsGuard
from tests.integration.results.bed import ResultsHarness
from tests.integration.store.mix import CLUSTERS, Mix

BAD = "c1/s1"
TIMES, NUMBERS = ("last_success", "valid_until", "expired_at"), ("failing", "expired", "items", "value")
ROWS = [
    *[{name: value} for name in TIMES for value in ("x", "", "nan", "1e300", [1])],
    *[{name: value} for name in NUMBERS for value in ("x", "1e999", {}, None)],
    *[{"remark": value} for value in (7, [1])],
]


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    log_unreadable.cache_clear()


@pytest.fixture
def mix(bed_in_memory: ResultsHarness) -> Mix:
    """A fleet with one successful cycle, of c2/s1."""
    new_mix = Mix(bed_in_memory, 1)
    bed_in_memory.cycle("c2", "s1")
    return new_mix


def _readers(mix: Mix) -> list[Any]:
    """Readers of all pairs: one that starts, and one that follows changes."""
    states = [model.scorer("s1").states for model in (FleetQueries(mix.client, lambda: mix.bed.now), mix.model)]
    rows = [
        *mix.bed.pairs.read_rows([("c1", "s1"), ("c2", "s1")]),
        *mix.bed.pairs.read_states([("c1", "s1"), ("c2", "s1")]),
    ]
    assert [row.last_success is not None for row in rows] == [False, True] * 2
    assert ResultsGuard(mix.client).repair(mix.bed.now) == 0
    mix.bed.writer().step()
    return states


@pytest.mark.parametrize("row", ROWS, ids=lambda row: next(f"{name}={str(value)[:8]}" for name, value in row.items()))
def test_row_with_a_field_of_the_wrong_type_counts_as_a_pair_that_never_ran(mix: Mix, row: dict[str, Any]) -> None:
    mix.client.hset(keys.ROWS, BAD, json.dumps(row))
    mix.client.zadd(keys.CHANGED, {BAD: mix.client.incr(keys.SEQUENCE)})
    with capture_logs() as logs:
        for _ in range(2):
            for states in _readers(mix):
                assert (states.ok, states.never) == (1, len(CLUSTERS) - 1)
    assert [(log_line["kind"], log_line["name"]) for log_line in logs if log_line["log_level"] == "warning"] == [
        ("row", BAD)
    ]
    # Its next result puts it right.
    mix.bed.cycle("c1", "s1")
    assert mix.model.scorer("s1").states.ok == 2


#: Key, field and bad text of data that readers of all pairs, scorers or clusters read beside rows.
OTHERS = [
    (keys.ENTRIES, BAD, "{}"),
    (keys.ENTRIES, BAD, '{"cluster": "c1", "scorer": "s1", "score_name": "s", "interval": "x"}'),
    (keys.ENTRIES, BAD, '{"cluster": "c1", "scorer": "s1", "score_name": "s", "interval": 1%s}' % ("0" * 400)),
    (keys.OVERRIDES, BAD, '{"interval": []}'),
    (keys.OVERRIDES, "*/s2", "7"),
    (keys.SKIPS, BAD, "9 x y rate_limit"),
    (keys.SCORERS, "s3", '{"name": "s3", "score_name": "x", "interval": "x", "validity": 9}'),
    (keys.SCORERS, "s3", "{"),
    (keys.CLUSTERS, "c4", '{"name": "c4", "key_ids": 7}'),
    (keys.AGENTS, "c1", '{"schema_version": "x"}'),
    (keys.KEYS_USED, "c1", "x"),
    (keys.KEY_REQUESTS, "c1", '{"action": "rotate", "key_id": "x"}'),
    (keys.SCORER_NOTICES, "s1", '{"name": 1}'),
    (keys.CLUSTER_NOTICES, "c1", '{"name": "c1", "labels": 7}'),
    (keys.CONFIG_READS, "s1", '{"name": "s1", "at": "x"}'),
    (PLANS, "n", "{}"),
    (keys.REJECTED, "replayed", "x"),
    (keys.REJECTED_MAIL, "c1", "inf"),
    (keys.BEAT_STATS, "skipped:paused", "x"),
    (keys.BEAT_STATS, "lag:+Inf", "x"),
    (keys.WRITE_STATS, "coalesced", "x"),
    (keys.WRITE_STATS, "validity_factor", "x"),
    (keys.UNWRITTEN, BAD, "{}"),
    (keys.WRITES, BAD, "x"),
    (keys.pair_key("c1", "s1"), "n:ok", "x"),
    (keys.pair_key("c1", "s1"), "n:skipped:overlap", "[]"),
    (keys.pair_key("c1", "s1"), "t:fetch:sum", "x"),
    (keys.pair_key("c1", "s1"), "score", '{"run": 1}'),
    (keys.ROWS, BAD, '{"failing": "9", "failure": "{}", "last_success": "1"}'),
    (keys.ROWS, BAD, '{"last_success": "1800000000", "valid_until": "1800009000", "items": "0", "remark": "7"}'),
]


@pytest.mark.parametrize(("key", "field", "text"), OTHERS, ids=lambda value: value[:24])
def test_unreadable_rows_do_not_affect_others(mix: Mix, key: str, field: str, text: str) -> None:
    mix.client.hset(key, field, text)
    bed = mix.bed
    model = FleetQueries(mix.client, lambda: bed.now)
    for _ in range(2):
        assert model.scorer("s1").states.ok >= 1
        assert model.summary().pairs >= len(CLUSTERS)
        assert [row.cluster for row in model.pairs().pairs].count("c2") >= 2
        assert len(list(bed.pairs.read_states(bed.pairs.list_names()))) == len(bed.pairs.list_names())
        registry = CollectorRegistry()
        registry.register(FleetCollector(mix.client, lambda: bed.now))
        assert b"dynamic_scoring_up 1.0" in generate_latest(registry)
        assert read_plans(mix.client) == []
        assert AgentKeys(mix.client).read_requests() == {}
        assert set(AgentKeys(mix.client).read_used_keys()) <= {"c2"}
        model.cluster("c2")
        bed.schedule.set_override("c2/s2", interval=60, now=bed.now)
        mix.beat()
        bed.writer().step()
        assert bed.backend.scores("c2", "score-of-s1") is not None
        bed.now += 100
        # A run of an unreadable pair ends too.
        bed.open("c1", "s1", deadline=1)
        bed.open("c3", "s3", deadline=1)
        bed.now += 100
        assert len(bed.runs.sweep(now=bed.now, lost_after=10)[0]) >= 1
        assert bed.cycle("c2", "s1") == "ok"
