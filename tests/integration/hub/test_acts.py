"""Acts by annotations on a DynamicScorer: executed once, recorded, and answered in its status."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dsf import keys
from dsf.fleet import changes
from dsf.hub import acts
from dsf.store.history import HistoryEntry
from tests.integration.hub.world import HubHarness
from tests.support.httpserver import ScriptedServer

GROUP = "dynamic-scoring.open-cluster-management.io"


@pytest.fixture
def annotate(running: HubHarness, api: ScriptedServer) -> Any:
    """Return `annotate(rescore="1")`, which adds annotations to cpu-scorer."""
    annotations: dict[str, str] = {}

    def set_annotations(**values: str) -> None:
        annotations.update({f"{GROUP}/{act}": value for act, value in values.items()})
        running.scorer("cpu-scorer", api, metadata={"annotations": annotations})

    return set_annotations


def answer_to(world: HubHarness, act: str, request: str) -> dict[str, Any]:
    """Return the response to this request, when it is complete."""

    def find() -> dict[str, Any] | None:
        answers = world.status("cpu-scorer").get("acts") or []
        return next(
            (
                answer
                for answer in answers
                if (answer["act"], answer["request"]) == (act, request) and answer["outcome"] != "Running"
            ),
            None,
        )

    return dict(world.until(find, f"{act}: no response to {request}"))


def recorded(world: HubHarness) -> list[tuple[str, list[str], str, bool, str, str]]:
    return [
        (change.action.value, change.clusters, change.by, change.claimed, change.way, change.note)
        for change in reversed(changes.read_changes(world.client).changes)
    ]


def test_pause_resume_interval_and_reset_change_overrides(running: HubHarness, annotate: Any) -> None:
    annotate(pause="1h cluster=a note='new disks'")
    answer = answer_to(running, "pause", "1h cluster=a note='new disks'")
    assert (answer["outcome"], answer["clusters"], answer["by"]) == ("Done", 1, "file scorers/cpu-scorer.yaml")
    assert answer["message"].startswith("paused on a until 20")
    override = running.schedule.read_overrides()["a/cpu-scorer"]
    assert override.paused
    assert override.note == "new disks"
    assert override.paused_until == pytest.approx(time.time() + 3600, abs=60)
    annotate(interval="7s")
    answer = answer_to(running, "interval", "7s")
    assert (answer["message"], answer["clusters"]) == ("the interval on all clusters is 7 s", 2)
    assert running.schedule.read_overrides()["*/cpu-scorer"].interval == 7
    annotate(resume="1 cluster=a")
    assert answer_to(running, "resume", "1 cluster=a")["outcome"] == "Done"
    assert "a/cpu-scorer" not in running.schedule.read_overrides()
    annotate(reset="1")
    assert answer_to(running, "reset", "1")["outcome"] == "Done"
    assert running.schedule.read_overrides() == {}
    author = ("file scorers/cpu-scorer.yaml", True, "annotation")
    assert recorded(running) == [
        ("pause", ["a"], *author, "new disks"),
        ("interval", [], *author, ""),
        ("resume", ["a"], *author, ""),
        ("reset", [], *author, ""),
    ]
    reasons = {"Paused", "IntervalChanged", "Resumed", "ChangesReset"}
    running.until(lambda: reasons <= {reason for _, reason, _ in running.events()})


def test_act_is_executed_once_also_after_a_restart_of_the_hub(running: HubHarness, annotate: Any) -> None:
    annotate(rescore="1 cluster=a")
    running.until(lambda: running.client.llen("spoke.a") == 1)
    running.restart()
    answer = answer_to(running, "rescore", "1 cluster=a")
    assert (answer["outcome"], "restarted meanwhile" in answer["message"]) == ("Failed", True)
    annotate(pause="at=2")
    answer_to(running, "pause", "at=2")
    running.restart()
    running.schedule.reset("*/cpu-scorer")
    annotate(resume="3")
    answer_to(running, "resume", "3")
    assert running.client.llen("spoke.a") == 1
    assert [change[0] for change in recorded(running)] == ["rescore", "pause", "resume"]


def test_rescore_is_answered_when_its_cycles_have_ended(running: HubHarness, annotate: Any) -> None:
    annotate(rescore="now")
    runs = {}
    for cluster in ("a", "b"):
        running.until(lambda cluster=cluster: running.client.llen(f"spoke.{cluster}") == 1)
        tick = json.loads(running.client.rpop(f"spoke.{cluster}"))
        runs[cluster] = json.loads(tick["body"])[0][1]

    def requested() -> bool:
        acts = running.status("cpu-scorer").get("acts") or []
        # The status has "accepted" before the act is executed.
        return [(act["outcome"], act["message"]) for act in acts] == [("Running", "2 of 2 cycles requested")]

    running.until(requested)
    end(running, "a", runs["a"], outcome="ok")
    end(running, "b", runs["b"], outcome="error", stage="fetch", reason="bad_query", message="parse error")
    answer = answer_to(running, "rescore", "now")
    assert (answer["outcome"], answer["clusters"]) == ("Failed", 2)
    assert answer["message"] == "1 of 2 clusters have a new score; b: fetch bad_query: parse error"
    assert [(run["cluster"], run["run"], run["hasScore"], run["outcome"]) for run in answer["runs"]] == [
        ("b", runs["b"], False, "error"),
        ("a", runs["a"], True, "ok"),
    ]


def end(world: HubHarness, cluster: str, run: str, **fields: Any) -> None:
    """Write the end of a cycle, as the results worker does."""
    row = HistoryEntry(run=run, at=time.time(), **fields).dump()
    world.client.lpush(keys.history_key(cluster, "cpu-scorer"), row)


def test_selector_chooses_clusters_by_their_labels(running: HubHarness, annotate: Any) -> None:
    running.cluster("b", labels={"region": "eu"})
    annotate(pause="at=1 selector=region=eu")
    answer = answer_to(running, "pause", "at=1 selector=region=eu")
    assert (answer["outcome"], answer["message"]) == ("Done", "paused on b until it is resumed")
    assert list(running.schedule.read_overrides()) == ["b/cpu-scorer"]


def test_sync_reads_the_config_now(running: HubHarness, annotate: Any, api: ScriptedServer) -> None:
    annotate(sync="1")
    answer = answer_to(running, "sync", "1")
    assert (answer["outcome"], answer["message"]) == ("Done", "/config was read")


@pytest.mark.parametrize(
    ("act", "request_", "message"),
    [
        ("interval", "soon", "'soon' is not a time"),
        ("rescore", "1 selector=region=nowhere", "matches none of the 2 clusters"),
        ("pause", "1h cluster=nosuch", "no cluster 'nosuch' is accepted"),
    ],
)
def test_impossible_act_is_refused_with_the_reason(
    running: HubHarness, annotate: Any, monkeypatch: pytest.MonkeyPatch, act: str, request_: str, message: str
) -> None:
    monkeypatch.setattr(acts, "_MAX_REGISTRATION_SECONDS", 0.0)
    annotate(**{act: request_})
    answer = answer_to(running, act, request_)
    assert answer["outcome"] == "Refused"
    assert message in answer["message"]
    assert recorded(running) == []


def test_answers_survive_a_mistake_in_the_manifest(running: HubHarness, annotate: Any, api: ScriptedServer) -> None:
    annotate(pause="at=1")
    answer_to(running, "pause", "at=1")
    running.scorer("cpu-scorer", api, scoring={"params": {"name": "", "interval": 0}}, mode="None")
    running.until(lambda: running.condition("cpu-scorer", "Ready")[0] == "False")
    assert [answer["act"] for answer in running.status("cpu-scorer")["acts"]] == ["pause"]
