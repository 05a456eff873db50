"""`spec.execution.hold` through a results worker: values for readers, the stored state, and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from dsf import keys
from dsf.api.scorerule import Aggregate, FailingRule, HoldRule
from dsf.cli.output import make_console
from dsf.cli.scores import render_scores
from dsf.fleet.pairviews import make_item_views
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.collector import FleetCollector
from dsf.results import ingest as ingest_module
from dsf.results.hold import PublishedScores
from dsf.results.ingest import Ingest
from tests.integration.results.bed import ResultsHarness
from tests.integration.scores.writes import APPLY, NAME

HOLD = HoldRule(min_change=5, for_seconds=60)


@pytest.fixture
def bed(bed: ResultsHarness) -> ResultsHarness:
    """The pair c1/s1 has a hold."""
    bed.add(hold=HOLD)
    return bed


def cycle(bed: ResultsHarness, *values: float, seconds: float = 30, **options: Any) -> dict[str, int]:
    """Ingest a cycle with nodes of these values, this long after the previous one; return the items after it."""
    bed.now += seconds - 1
    results = [({"node": "abcdefgh"[number]}, value) for number, value in enumerate(values)]
    bed.cycle(results=results, **options)
    return in_force(bed)


def in_force(bed: ResultsHarness) -> dict[str, int]:
    score = bed.state().score
    return dict(score.items) if score is not None else {}


def gauge(bed: ResultsHarness, node: str) -> float | None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FleetCollector(bed.client, lambda: bed.now))
    names = ("device", "namespace", "app", "pod", "container", "meta")
    labels = {"ds_cluster": "c1", "ds_node": node, "ds_score_name": "score of s1"} | {
        f"ds_{name}": "" for name in names
    }
    return registry.get_sample_value("dynamic_score", labels)


def held_total(bed: ResultsHarness) -> float | None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FleetCollector(bed.client, lambda: bed.now))
    labels = {"ds_cluster": "c1", "ds_score_name": "score of s1"}
    return registry.get_sample_value("dynamic_scoring_scores_held_total", labels)


def test_noise_changes_neither_object_nor_gauge(bed: ResultsHarness) -> None:
    assert cycle(bed, 50.75, 10) == {"a": 50, "b": 10}
    assert bed.write() == [APPLY]
    first = bed.backend.objects["c1", NAME]["status"]["validUntil"]
    for value in (54.5, 46.2, 52, 48.9):
        assert cycle(bed, value, 10) == {"a": 50, "b": 10}
        assert gauge(bed, "a") == 50.75
    assert gauge(bed, "b") == 10
    # The held changes were not written; the score was renewed.
    bed.now += 100
    cycle(bed, 51, 10)
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 50, "b": 10}
    assert bed.backend.objects["c1", NAME]["status"]["validUntil"] > first
    assert bed.state().held == 5
    assert held_total(bed) == 5
    assert [entry.counts.get("held") for entry in bed.history()] == [1, 1, 1, 1, 1, None]


def test_lasting_change_is_published_after_the_hold(bed: ResultsHarness) -> None:
    cycle(bed, 50)
    assert cycle(bed, 60.5) == {"a": 50}
    assert cycle(bed, 61) == {"a": 50}
    score = bed.state().score
    assert score is not None
    assert score.held["a"].value == 61
    assert cycle(bed, 62.5) == {"a": 62}
    assert gauge(bed, "a") == 62.5
    bed.write()
    assert bed.backend.scores("c1", NAME) == {"a": 62}


def score_at(bed: ResultsHarness) -> datetime:
    """Return the time at which the waiting value was measured."""
    score = bed.state().score
    assert score is not None
    return datetime.fromtimestamp(score.at, UTC)


def test_held_values_are_shown_to_readers(bed: ResultsHarness) -> None:
    cycle(bed, 50, 20)
    cycle(bed, 60, 20)
    client = FleetQueries(bed.client, clock=lambda: bed.now)
    score_list = client.scores("c1", "s1")
    [score] = score_list.scores
    assert [(item.name, item.value, item.waiting) for item in score.items] == [("a", 50, 60), ("b", 20, None)]
    held_item, other = score.items
    assert (held_item.waiting_since, other.waiting_since) == (score_at(bed), None)
    assert held_item.waiting_until == score_at(bed) + timedelta(seconds=60)
    assert score.hold is not None
    assert score.hold.rule == "a change is published from 5 points on, if it lasts 60 s"
    assert "waitingSince" not in other.model_dump(mode="json", by_alias=True)
    assert [(result.metric, result.score) for result in score.results] == [({"node": "a"}, 50), ({"node": "b"}, 20)]
    now = bed.state().score
    assert now is not None
    views = make_item_views(now, bed.registry.read_scorer("s1"), "c1")
    assert [(view.name, view.value, view.scored, view.waiting) for view in views] == [
        ("a", 50, 50, 60),
        ("b", 20, 20, None),
    ]
    screen = make_console()
    with screen.capture() as capture:
        screen.print(render_scores(score_list))
    assert "50 (60 held for 0s, 1m to go)" in capture.get()
    assert "s1: a change is published from 5 points on, if it lasts 60 s" in capture.get()
    detail = FleetQueries(bed.client, clock=lambda: bed.now).pair("c1", "s1")
    assert (detail.hold, detail.withheld_count) == (score.hold, 1)
    assert [item.waiting_until for item in detail.score_items] == [held_item.waiting_until, None]
    cycle(bed, 53, 20)
    score_list = client.scores("c1", "s1")
    with screen.capture() as capture:
        screen.print(render_scores(score_list))
    assert "50 (53 held, too near)" in capture.get()


def test_hold_continues_in_a_second_worker(bed: ResultsHarness) -> None:
    cycle(bed, 50)
    cycle(bed, 60)
    bed.ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now)
    assert cycle(bed, 60) == {"a": 50}
    bed.ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now)
    assert cycle(bed, 60) == {"a": 60}


@pytest.mark.parametrize("max_bytes", [ingest_module.MAX_SCORE_BYTES_PER_BATCH, 1])
def test_results_of_one_batch_are_evaluated_in_order(
    bed: ResultsHarness, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mailbox gives them in any order. Their current scores are read in parts if they are large."""
    monkeypatch.setattr(ingest_module, "MAX_SCORE_BYTES_PER_BATCH", max_bytes)
    cycle(bed, 50)
    frames = []
    for value in (60, 50, 60, 60):
        run = bed.open()
        bed.now += 30
        frames.append(bed.frame(run, results=[({"node": "a"}, value)]))
    shuffled = [frames[number] for number in (0, 2, 3, 1)]
    assert [response in ("ok", "late") for response in bed.ingest.ingest_frames(shuffled)] == [True] * 4
    assert in_force(bed) == {"a": 50}
    assert cycle(bed, 60) == {"a": 60}


def test_large_current_scores_are_read_in_parts(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    scorers = [f"large{number}" for number in range(6)]
    for name in scorers:
        bed.add(scorer=name, hold=HOLD)
    parts: list[int] = []

    class CountedScores(PublishedScores):
        def __init__(self, client: redis.Redis, results: Iterable[tuple[Any, Any]], **options: Any) -> None:
            results = list(results)
            parts.append(len(results))
            super().__init__(client, results, **options)

    monkeypatch.setattr(ingest_module, "PublishedScores", CountedScores)
    monkeypatch.setattr(ingest_module, "MAX_SCORE_BYTES_PER_BATCH", 1000)
    for value in (50, 52):
        bed.now += 30
        frames = [
            bed.frame(bed.open(scorer=name), scorer=name, results=[({"node": "a"}, value), ({"node": "b" * 200}, 1)])
            for name in scorers
        ]
        assert bed.ingest.ingest_frames(frames) == ["ok"] * 6
    # More than one for each of the two batches.
    assert len(parts) > 2
    assert sum(parts) == 12
    for name in scorers:
        score = bed.state(scorer=name).score
        assert score is not None
        assert dict(score.items)["a"] == 50


def test_hold_works_across_two_workers(bed: ResultsHarness) -> None:
    """Each result goes to one of two workers, as they claim mailboxes; they share the state."""
    workers = [Ingest(bed.client, bed.settings, clock=lambda: bed.now) for _ in range(2)]
    for number, (value, expected) in enumerate([(50, 50), (60, 50), (50, 50), (60, 50), (60, 50), (60, 60)]):
        run = bed.open()
        bed.now += 30
        worker = workers[number % 2]
        frame = bed.frame(run, results=[({"node": "a"}, value)])
        # Both may process it if a claim expires: the second one changes nothing.
        threads = [
            threading.Thread(target=results_worker.ingest_frames, args=([frame],))
            for results_worker in (worker, workers[0])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert in_force(bed) == {"a": expected}, number


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param({}, 50, id="no hold ends"),
        pytest.param({"hold": None}, 52, id="without hold"),
        pytest.param({"hold": HoldRule(min_change=2)}, 52, id="a weaker hold"),
        pytest.param({"hold": HOLD, "score_name": "another"}, 52, id="another score"),
        pytest.param({"hold": HOLD, "dimension_formats": ("node ${node}",)}, 52, id="other items"),
        pytest.param({"hold": HOLD, "destination": "None"}, None, id="no items"),
    ],
)
def test_changed_scorer_ends_the_hold(bed: ResultsHarness, end: dict[str, Any], expected: int | None) -> None:
    cycle(bed, 50)
    cycle(bed, 52)
    if end:
        bed.add(**end)
    assert list(cycle(bed, 52).values()) == ([] if expected is None else [expected])


def test_expired_score_holds_nothing_back(bed: ResultsHarness) -> None:
    cycle(bed, 50)
    assert cycle(bed, 51, seconds=299) == {"a": 50}
    assert cycle(bed, 52, seconds=301) == {"a": 52}


@pytest.mark.parametrize(("behavior", "expected"), [("Keep", 50), ("Remove", 52), ("Value", 52)])
def test_hold_ends_after_when_failing_replaced_the_score(bed: ResultsHarness, behavior: str, expected: int) -> None:
    value = -50 if behavior == "Value" else None
    bed.add(
        hold=HOLD,
        when_failing=FailingRule.model_validate({"failure_threshold": 2, "behavior": behavior, "value": value}),
    )
    cycle(bed, 50)
    bed.cycle(outcome="error")
    assert cycle(bed, 51) == {"a": 50}
    bed.cycle(outcome="error")
    bed.cycle(outcome="error")
    bed.write()
    assert cycle(bed, 52) == {"a": expected}
    bed.write()
    assert bed.backend.scores("c1", NAME) == {"a": expected}


def test_item_that_vanishes_and_returns_is_not_held(bed: ResultsHarness) -> None:
    assert cycle(bed, 50, 20) == {"a": 50, "b": 20}
    assert cycle(bed, 51) == {"a": 50}
    assert cycle(bed, 52, 21) == {"a": 50, "b": 21}


def test_aggregated_items_are_held_and_metrics_show_their_parts(bed: ResultsHarness) -> None:
    bed.add(hold=HOLD, aggregate=Aggregate(how="mean"), dimension_formats=("all",))
    assert cycle(bed, 40, 60) == {"all": 50}
    assert cycle(bed, 41, 63) == {"all": 50}
    assert (gauge(bed, "a"), gauge(bed, "b")) == (41, 63)


def test_gauge_follows_the_result_that_owns_the_item(bed: ResultsHarness) -> None:
    """A pod was replaced: its node's item is held, and the new series shows the same."""
    bed.cycle(results=[({"node": "a", "pod": "x"}, 50.5)])
    bed.cycle(results=[({"node": "a", "pod": "y"}, 53.5)])
    score = bed.state().score
    assert score is not None
    assert (score.items, score.results) == ([("a", 50)], [({"node": "a", "pod": "y"}, 50.0)])


def test_gauge_of_a_remaining_result_keeps_the_held_value(bed: ResultsHarness) -> None:
    """The later of two pods of a node was its item; now only the other pod exists."""
    bed.cycle(results=[({"node": "a", "pod": "x"}, 50.5), ({"node": "a", "pod": "y"}, 10.5)])
    bed.cycle(results=[({"node": "a", "pod": "x"}, 12.5)])
    score = bed.state().score
    assert score is not None
    assert (score.items, score.results) == ([("a", 10)], [({"node": "a", "pod": "x"}, 10.0)])


def test_hold_state_is_removed_with_the_pair(bed: ResultsHarness) -> None:
    cycle(bed, 50)
    cycle(bed, 60)
    bed.client.hdel(keys.ENTRIES, "c1/s1")
    bed.runs.forget(["c1/s1"])
    assert [str(key) for key in bed.client.scan_iter(f"*{keys.pair('c1', 's1')}*")] == []


def test_damaged_data_of_a_pair_holds_nothing_back(bed: ResultsHarness) -> None:
    cycle(bed, 50)
    bed.client.hset(keys.pair_key("c1", "s1"), "score", '{"v": 1, "held": {"a": "no"}}')
    assert cycle(bed, 52) == {"a": 52}


def test_scorer_without_hold_needs_no_further_redis_command(
    bed: ResultsHarness, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:

    def calls(of: ResultsHarness) -> int:
        before = redis_client.info("commandstats")
        cycle(of, 50)
        after = redis_client.info("commandstats")
        names = ("cmdstat_hget", "cmdstat_hmget")
        return sum(
            int(after.get(name, {"calls": 0})["calls"]) - int(before.get(name, {"calls": 0})["calls"]) for name in names
        )

    bed.add()
    cycle(bed, 50)
    without = calls(bed)
    bed.add(hold=HOLD)
    cycle(bed, 50)
    # Its row, its score, and the size of the score.
    assert calls(bed) == without + 3
