"""Scoring APIs that hang, fail, lie and flood, all at once on one agent beside one that works."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.faults.fleet import BY_HAND, Fleet, scores
from tests.support.httpserver import Handler, answer, bomb, close_early, endless, half, hang
from tests.support.stack import pass_time

pytestmark = pytest.mark.xdist_group("faults-scorers")

#: Seconds between two cycles. Those that flood get more: the one who sends all that is on this machine, too.
INTERVAL, FLOOD_INTERVAL = 2, 4
FLOOD = json.dumps({"results": [{"metric": {"node": "n1"}, "score": 1}] * 200_000}).encode()
#: Bytes that an agent may grow by with all these faults at once. An answer of up to 8 MB, the limit, is in memory as a
#: whole, and the one of 200,000 results takes about 100 MB while it is read as JSON.
GROWTH = 250_000_000


@dataclass(frozen=True)
class Fault:
    """How a scoring API misbehaves, and what is to be said of it."""

    handler: Handler
    reason: str
    words: tuple[str, ...]
    interval: int = INTERVAL
    #: Seconds for one stage.
    timeout: int = 30


FAULTS = {
    "hangs": Fault(hang, "timeout", ("no complete answer within",), timeout=1),
    "is-broken": Fault(answer("out of memory", 500), "http_error", ("HTTP 500: out of memory",)),
    "is-busy": Fault(answer("slow down", 429, Retry_After="30"), "http_error", ("HTTP 429: slow down",)),
    "redirects": Fault(
        answer("", 302, Location="http://169.254.169.254/"), "redirect", ("redirects are not followed",)
    ),
    "refuses": Fault(answer("no token", 401), "unauthorized", ("HTTP 401: no token",)),
    "speaks-html": Fault(
        answer("<html>Welcome", Content_Type="text/html"), "bad_answer", ("not JSON", "<html>Welcome")
    ),
    "has-another-shape": Fault(answer([1, 2]), "bad_answer", ('not {"results": [...]}',)),
    "stops-halfway": Fault(half, "truncated", ("ends too early",)),
    "hangs-up": Fault(close_early, "connection_failed", ("closed the connection",)),
    "sends-a-gigabyte": Fault(endless(1 << 30), "too_large", (), FLOOD_INTERVAL),
    "sends-without-end": Fault(endless(), "too_large", (), FLOOD_INTERVAL),
    "sends-a-bomb": Fault(bomb, "too_large", (), FLOOD_INTERVAL),
    "sends-too-many": Fault(answer(FLOOD), "too_many_results", ("500000 values", "10000 results"), FLOOD_INTERVAL),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """All of them registered; they answer well until a test says otherwise."""
    made = Fleet(tmp_path_factory.mktemp("scorers") / "stack")
    made.scorer("steady", scores(60), interval=BY_HAND)
    made.scorer("other", scores(60), interval=BY_HAND)
    for name, fault in FAULTS.items():
        execution = {"timeoutSeconds": fault.timeout, "maxRetries": 1}
        made.scorer(name, scores(10), interval=fault.interval, execution=execution)
    made.scorer("odd", scores(10), interval=3)
    with made:
        for name in ("steady", "other"):
            made.first_score(name)
        for name in ("odd", *FAULTS):
            made.until(lambda name=name: made.state(name).count("ok"), f"{name} to score")  # type: ignore[misc]
        yield made


def test_all_of_them_at_once(fleet: Fleet) -> None:
    """Nobody else notices, and the agent stays small."""
    memory = fleet.memory("agent c1")
    with fleet.unaffected("steady"), fleet.unaffected("other"):
        for name, fault in FAULTS.items():
            fleet.api.script(fault.handler, path=f"/{name}")
        grown, end = 0, time.monotonic() + 4 * INTERVAL
        while time.monotonic() < end:
            grown = max(grown, fleet.memory("agent c1") - memory)
            pass_time(0.05)
        assert grown < GROWTH
    # No cycle of it had to be left out because of the others.
    assert {entry.outcome for entry in fleet.history("steady")[:4]} == {"ok"}
    for name in FAULTS:
        # The last score stays until it expires; it is not replaced by garbage.
        assert fleet.items(name) == {"n1": 10}
        fleet.api.script(scores(10), path=f"/{name}")


@pytest.mark.parametrize("name", FAULTS)
def test_the_reason_is_said_and_cleared(fleet: Fleet, name: str) -> None:
    fault = FAULTS[name]
    fleet.api.script(fault.handler, path=f"/{name}")
    message = fleet.check_failure(name, "score", fault.reason, f"POST {fleet.api.url}/{name}", *fault.words)
    assert len(message) < 700
    fleet.api.script(scores(20), path=f"/{name}")
    fleet.check_cleared(name)
    fleet.until(lambda: fleet.items(name) == {"n1": 20})


def test_busy_for_a_moment_is_tried_again_within_the_cycle(fleet: Fleet) -> None:
    fleet.api.script(answer("slow down", 429, Retry_After="1"), scores(30), path="/other")
    entry = fleet.score_now("other")
    assert (entry.outcome, entry.counts["retries"]) == ("ok", 1)
    fleet.until(lambda: fleet.items("other") == {"n1": 30})


def test_single_results_that_cannot_be_used(fleet: Fleet) -> None:
    odd = (
        '{"results": ['
        '{"metric": {"node": "good"}, "score": 7.9},'
        '{"metric": {"node": "nan"}, "score": NaN},'
        '{"metric": {"node": "infinite"}, "score": 1e999},'
        '{"metric": {"node": "null"}, "score": null},'
        '{"metric": {"node": "missing"}},'
        '{"metric": {"node": 5}, "score": 1},'
        '{"metric": {"node": "huge"}, "score": 1e308},'
        '{"metric": {"node": "twice"}, "score": 1},'
        '{"metric": {"node": "twice", "pod": "other"}, "score": 2}'
        "]}"
    )
    partial = fleet.state("odd").count("partial")
    fleet.api.script(answer(odd), path="/odd")
    fleet.until(lambda: fleet.state("odd").count("partial") > partial)
    fleet.until(lambda: fleet.items("odd") == {"good": 7, "huge": 100, "twice": 2})
    cycles = fleet.data("history", "odd", "--cluster", "c1")["cycles"]
    cycle = next(cycle for cycle in cycles if cycle["outcome"] == "partial")
    assert (cycle["counts"]["refused"], cycle["counts"]["clamped"]) == (6, 1)
    for reason in ("nan", "infinite", "null_score", "missing_score", "bad_labels", "duplicate_dimension"):
        labels = {"score_name": "odd-score", "reason": reason}
        assert fleet.metric("exporter", "dynamic_scoring_results_refused_total", **labels), reason
    # The agent counts after it has sent.
    labels = {"score_name": "odd-score", "reason": "nan"}
    fleet.until(lambda: fleet.metric("agent c1", "dynamic_scoring_results_refused_total", **labels), "its counter")
    assert fleet.metric("exporter", "dynamic_scoring_scores_clamped_total", score_name="odd-score")
    # The raw value is what the metric shows.
    assert fleet.metric("exporter", "dynamic_score", ds_score_name="odd-score", ds_node="huge") == 1e308
    fleet.api.script(scores(10), path="/odd")
    fleet.until(lambda: fleet.items("odd") == {"n1": 10})
    fleet.check_cleared("odd")


def test_the_command_says_when_all_is_well(fleet: Fleet) -> None:
    done = fleet.until(
        lambda: [one for one in [fleet.dsf("status", "-o", "json")] if one.returncode == 0],
        "`dsf status` to find nothing wrong",
    )[0]
    report = json.loads(done.stdout)
    assert report["ok"]
    assert {scorer["name"] for scorer in report["scorers"]} == {"steady", "other", "odd", *FAULTS}


def test_nothing_happened_to_the_one_that_works(fleet: Fleet) -> None:
    assert fleet.failed_since("steady") == {"error": 0, "lost": 0}
    for name in ("steady", "other", "odd", *FAULTS):
        fleet.check_books(name)
