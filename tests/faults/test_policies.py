"""What readers of a score see while cycles fail, come back empty, are suspended, paused or masked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dsf import keys
from tests.faults.fleet import STALL, Fleet, scores
from tests.support.httpserver import Gate, answer

pytestmark = pytest.mark.xdist_group("faults-policies")

BROKEN = answer("broken", 500)
PAUSED = "dynamic-scoring.open-cluster-management.io/paused-until"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("policies") / "stack", ("c1", "c2"), altered={"beat": ("--run-slack", "2")})
    made.scorer("steady", scores(60))
    with made:
        made.wait_success("steady")
        made.wait_success("steady", "c2")
        yield made


def gauge(fleet: Fleet, process: str, scorer: str, cluster: str = "c1") -> float | None:
    return fleet.metric(process, "dynamic_score", ds_score_name=f"{scorer}-score", ds_cluster=cluster)


def when_failing(behavior: str, threshold: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "maxRetries": 0,
        "validitySeconds": 6,
        "whenFailing": {"behavior": behavior, "failureThreshold": threshold, **more},
    }


def test_when_failing_keep(fleet: Fleet) -> None:
    fleet.scorer("keep", scores(10, 20), execution=when_failing("Keep"))
    fleet.until(lambda: fleet.items("keep") == {"n1": 10, "n2": 20})
    fleet.api.script(BROKEN, path="/keep")
    fleet.until(lambda: fleet.state("keep").failing >= 3)
    score = fleet.state("keep").score
    assert score is not None
    kept = fleet.items("keep"), gauge(fleet, "agent c1", "keep")
    # Not for ever.
    assert kept == ({"n1": 10, "n2": 20}, 30) or time.time() >= score.valid_until
    fleet.until(lambda: fleet.object("keep") is None, "the score to expire")
    assert score.valid_until <= time.time() < score.valid_until + 2 + STALL
    fleet.until(lambda: gauge(fleet, "agent c1", "keep") is None, "the agent's gauges to go")
    assert gauge(fleet, "exporter", "keep") is None
    fleet.api.script(scores(30), path="/keep")
    fleet.until(lambda: fleet.items("keep") == {"n1": 30})
    fleet.check_cleared("keep")


def test_when_failing_value(fleet: Fleet) -> None:
    fleet.scorer("value", scores(10, 20), execution=when_failing("Value", value=-100))
    fleet.until(lambda: fleet.items("value") == {"n1": 10, "n2": 20})
    fleet.api.script(BROKEN, path="/value")
    fleet.until(lambda: fleet.items("value") == {"n1": -100, "n2": -100})
    assert fleet.state("value").failing >= 2
    # For as long as it fails: longer than a score lives.
    score = fleet.state("value").score
    assert score is not None
    fleet.until(lambda: time.time() > score.valid_until + 1)
    assert fleet.items("value") == {"n1": -100, "n2": -100}

    def valid_until() -> float:
        found = fleet.object("value")
        assert found is not None
        return datetime.fromisoformat(found["status"]["validUntil"]).timestamp()

    fleet.until(lambda: valid_until() > time.time(), "the value to be renewed")
    fleet.api.script(scores(30), path="/value")
    fleet.until(lambda: fleet.items("value") == {"n1": 30})


def test_when_failing_remove(fleet: Fleet) -> None:
    fleet.scorer("remove", scores(10), execution=when_failing("Remove", threshold=1))
    fleet.until(lambda: fleet.items("remove") == {"n1": 10})
    fleet.api.script(BROKEN, path="/remove")
    fleet.until(lambda: fleet.object("remove") is None, "the object to go", 5)
    fleet.api.script(scores(30), path="/remove")
    fleet.until(lambda: fleet.items("remove") == {"n1": 30})


def test_when_empty(fleet: Fleet) -> None:
    fleet.scorer("empty", scores(10), execution={"whenEmpty": {"behavior": "Value", "value": -50}})
    fleet.scorer("bare", scores(10), execution={})
    for scorer, expected in (("empty", {"empty-score": -50}), ("bare", {})):
        fleet.until(lambda scorer=scorer: fleet.items(scorer) == {"n1": 10})  # type: ignore[misc]
        fleet.api.script(answer({"results": []}), path=f"/{scorer}")
        fleet.until(lambda scorer=scorer, expected=expected: fleet.items(scorer) == expected, str(expected))  # type: ignore[misc]
        fleet.until(lambda scorer=scorer: fleet.state(scorer).failing == 0, "no failure")  # type: ignore[misc]
        fleet.check_books(scorer)


def check_no_ticks(fleet: Fleet, scorer: str, end: float = float("inf")) -> None:
    """While another one gets several, this one gets none until `end` (unix seconds)."""
    fleet.until(lambda: fleet.state(scorer).open == 0)
    before = fleet.api.paths().count(f"/{scorer}")
    fleet.wait_success("steady", more=3)
    assert fleet.api.paths().count(f"/{scorer}") == before or time.time() >= end
    fleet.check_books(scorer)


def test_suspend(fleet: Fleet) -> None:
    fleet.scorer("suspended", scores(10), execution={"validitySeconds": 6})
    fleet.until(lambda: fleet.items("suspended") == {"n1": 10})
    fleet.scorer("suspended", execution={"validitySeconds": 6, "suspend": True})
    fleet.until(lambda: fleet.condition("suspended", "Scoring")[1] == "Suspended")
    check_no_ticks(fleet, "suspended")
    entry = fleet.data("schedule", "list", "suspended", "--cluster", "c1")["entries"][0]
    assert (entry["suspended"], entry["paused"], entry["nextRun"]) == (True, True, None)
    # What is there expires as usual.
    fleet.until(lambda: fleet.object("suspended") is None, "the score to expire")
    assert gauge(fleet, "exporter", "suspended") is None
    fleet.scorer("suspended", execution={"validitySeconds": 6})
    fleet.wait_success("suspended")
    fleet.check_cleared("suspended")


def test_paused_until(fleet: Fleet) -> None:
    fleet.scorer("paused", scores(10))
    fleet.wait_success("paused")
    until = datetime.now(UTC) + timedelta(seconds=8)
    fleet.scorer("paused", annotations={PAUSED: until.isoformat(timespec="seconds")})
    fleet.until(lambda: fleet.condition("paused", "Scoring")[1] == "Suspended")
    check_no_ticks(fleet, "paused", until.replace(microsecond=0).timestamp())
    fleet.wait_success("paused")
    assert datetime.now(UTC) >= until.replace(microsecond=0)
    fleet.check_cleared("paused")


def test_paused_by_a_person(fleet: Fleet) -> None:
    fleet.scorer("stopped", scores(10))
    fleet.wait_success("stopped")
    done = fleet.dsf("schedule", "pause", "stopped", "--note", "maintenance")
    assert done.returncode == 0, done.stderr
    check_no_ticks(fleet, "stopped")
    entry = fleet.data("schedule", "list", "stopped", "--cluster", "c1")["entries"][0]
    assert (entry["paused"], entry["pausedSource"]) == (True, "*/stopped")
    assert entry["overrides"][0]["note"] == "maintenance"
    assert fleet.dsf("schedule", "resume", "stopped").returncode == 0
    fleet.wait_success("stopped")


def test_masked_while_a_cycle_runs(fleet: Fleet) -> None:
    """The score goes from the hub and from both /metrics, and what the running cycle brings is not taken in."""
    fleet.scorer("masked", scores(10), interval=2)
    for cluster in ("c1", "c2"):
        fleet.until(lambda cluster=cluster: fleet.items("masked", cluster) == {"n1": 10})  # type: ignore[misc]
    gate = Gate(scores(99))
    fleet.api.script(gate, path="/masked")
    assert gate.entered.wait(60)
    fleet.config(("c1", "masked-score"))
    fleet.until(lambda: fleet.object("masked", "c1") is None, "the masked score to be removed")
    fleet.until(lambda: gauge(fleet, "agent c1", "masked") is None, "the agent's gauges to go")
    assert gauge(fleet, "exporter", "masked") is None
    gate.opened.set()
    fleet.api.script(scores(20), path="/masked")
    fleet.until(lambda: fleet.items("masked", "c2") == {"n1": 20})
    masked = keys.pair("c1", "masked")
    fleet.until(lambda: not [run for run in fleet.open_runs() if run.startswith(masked)], "the running cycle to end")
    assert fleet.object("masked", "c1") is None
    assert gauge(fleet, "agent c2", "masked", "c2") == 20
    done = fleet.dsf("rescore", "masked", "--cluster", "c1")
    assert done.returncode == 1
    assert "masked" in done.stderr

    fleet.config()
    fleet.until(lambda: fleet.items("masked", "c1") == {"n1": 20})
    fleet.check_books("masked", "c1")


def test_masked_and_unmasked_within_one_cycle(fleet: Fleet) -> None:
    """The books begin anew, so the old cycle must not be in them."""
    fleet.scorer("flapping", scores(10), interval=5)
    fleet.wait_success("flapping")
    gate = Gate(scores(20))
    fleet.api.script(gate, path="/flapping")
    assert fleet.dsf("rescore", "flapping", "--cluster", "c1").returncode == 0
    assert gate.entered.wait(60)
    fleet.config(("c1", "flapping-score"))
    fleet.until(lambda: fleet.object("flapping") is None)
    fleet.config()
    fleet.until(lambda: "c1/flapping" in {entry.pair for entry in fleet.schedule.entries()})
    gate.opened.set()
    fleet.api.script(scores(30), path="/flapping")
    fleet.until(lambda: fleet.items("flapping") == {"n1": 30}, "a score of the new entry")
    fleet.check_books("flapping")


def test_removed_while_a_cycle_runs(fleet: Fleet) -> None:
    gate = Gate(scores(99))
    fleet.scorer("removed", scores(10), interval=2)
    fleet.until(lambda: fleet.items("removed") == {"n1": 10})
    fleet.api.script(gate, path="/removed")
    assert gate.entered.wait(60)
    (fleet.manifests / "scorer-removed.yaml").unlink()
    fleet.until(lambda: fleet.object("removed") is None, "the score to be removed")
    gate.opened.set()
    fleet.wait_success("steady", more=2)
    assert fleet.object("removed") is None
    assert not fleet.redis.exists(keys.pair_key("c1", "removed"))
    assert gauge(fleet, "exporter", "removed") is None
    fleet.until(lambda: gauge(fleet, "agent c1", "removed") is None, "the agent's gauges to go")
    fleet.until(lambda: not [run for run in fleet.open_runs() if "removed" in run], "the running cycles to end")
