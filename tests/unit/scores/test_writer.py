"""Objects that the score writer keeps in the backend, and the times of its writes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dsf import keys
from dsf.api.scorerule import EmptyRule
from dsf.api.types import MANAGED_BY, MANAGED_BY_LABEL, SCORER_NAME_LABEL
from dsf.backends.scorestate import ScoreState
from dsf.cli.output import make_console
from dsf.cli.scores import render_scores
from dsf.cli.statusreport import make_report
from dsf.fleet.queries import FleetQueries
from dsf.messages import make_run_id
from dsf.scores.writer import ScoreWriter
from dsf.store.clockguard import ResultsGuard
from tests.integration.results.bed import START, ResultsHarness
from tests.integration.scores.writes import APPLY, DELETE, NAME, stats
from tests.support.wait import PATIENCE, wait_for


def test_first_score_is_written_at_once(bed: ResultsHarness) -> None:
    bed.cycle()
    assert bed.write() == [APPLY]
    manifest = bed.backend.objects["c1", NAME]
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-c1"
    assert manifest["status"]["validUntil"] == "2100-01-01T00:05:01Z"
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}
    assert bed.write() == []


@pytest.mark.parametrize("is_same_leader", [True, False])
def test_unchanged_score_is_renewed_after_six_tenths_of_its_validity(bed: ResultsHarness, is_same_leader: bool) -> None:
    writer = bed.writer() if is_same_leader else None
    bed.cycle()
    assert bed.write(writer) == [APPLY]
    written_at = bed.now
    while bed.now < written_at + 120:
        bed.now += 29
        bed.cycle()
        assert bed.write(writer) == []
    bed.now = written_at + 181
    assert bed.write(writer) == [APPLY]
    assert bed.backend.objects["c1", NAME]["status"]["validUntil"] == "2100-01-01T00:07:01Z"
    transition_time = bed.backend.objects["c1", NAME]["status"]["conditions"][0]["lastTransitionTime"]
    assert transition_time == "2100-01-01T00:00:01Z"


def test_object_follows_a_shortened_validity(bed: ResultsHarness) -> None:
    bed.add(validity=3600)
    bed.cycle()
    assert bed.write() == [APPLY]
    bed.add(validity=300)
    bed.cycle()
    assert bed.write() == [APPLY]
    bed.now += 301
    assert bed.write() == [DELETE]


def test_order_of_items_is_no_change(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.write()
    bed.cycle(results=[({"node": "b"}, 2.0), ({"node": "a"}, 1.5)])
    assert bed.write() == []


def test_newest_of_several_changes_is_written_and_skipped_ones_are_counted(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    for value in (3.0, 4.0, 5.0):
        bed.cycle(results=[({"node": "a"}, value)])
    assert bed.write(writer) == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 5}
    assert stats(bed)["written"] == 2
    assert stats(bed)["coalesced"] == 2


@pytest.mark.parametrize("is_same_leader", [True, False])
def test_expired_object_is_deleted_and_reported(bed: ResultsHarness, is_same_leader: bool) -> None:
    writer = bed.writer() if is_same_leader else None
    bed.cycle()
    bed.write(writer)
    for _ in range(19):
        bed.now += 14
        bed.cycle(outcome="error")
        assert bed.write(writer) == []
    assert bed.changed_statuses == set()
    bed.now = START + 301
    assert bed.write(writer) == [DELETE]
    assert bed.changed_statuses == {"s1"}
    bed.cycle()
    assert bed.write(writer) == [APPLY]


def test_late_success_renews_the_object_before_it_expires(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    bed.now = START + 200
    assert bed.write(writer) == []
    bed.now = START + 250
    bed.cycle()
    bed.now = START + 290
    assert bed.write(writer) == [APPLY]


def test_object_of_a_removed_pair_is_deleted(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    bed.schedule.remove(["c1/s1"])
    writer.check([("c1", "s1")])
    assert bed.write(writer) == [DELETE]


def test_object_of_a_pair_removed_without_a_leader_is_deleted(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.write()
    bed.schedule.remove(["c1/s1"])
    bed.registry.remove_scorer("s1")
    assert bed.write() == [DELETE]


def test_objects_stay_until_they_expire_if_redis_lost_its_data(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.write()
    bed.client.flushall()
    bed.owners.wanted.add(("c1", "s1"))
    writer = bed.writer()
    assert bed.write(writer) == []
    bed.now = START + 200
    assert bed.write(writer) == []
    bed.now = START + 302
    assert bed.write(writer) == [DELETE]


def test_metrics_only_scorer_loses_its_object(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    bed.add(destination="None")
    writer.check([("c1", "s1")])
    assert bed.write(writer) == [DELETE]
    bed.cycle()
    assert bed.write(writer) == []


def test_results_for_metrics_only_are_no_empty_answer(bed: ResultsHarness) -> None:
    rule = EmptyRule(behavior="Value", value=-100)
    bed.add(destination="None", when_empty=rule)
    bed.cycle()
    bed.add(when_empty=rule)
    assert bed.write() == []
    bed.cycle()
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}


def test_renamed_score_moves_the_object(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.write()
    bed.add(score_name="other")
    bed.cycle()
    assert bed.write() == [DELETE, ("apply", "c1", "other")]


def test_first_score_of_a_new_scorer_is_written_by_a_running_writer(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    writer.step()
    bed.add(cluster="c2", scorer="s2")
    bed.cycle("c2", "s2")
    writer.step()
    assert bed.backend.log == [APPLY, ("apply", "c2", "score-of-s2")]


def test_edited_scorer_takes_effect_in_a_running_writer(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle(outcome="empty")
    writer.step()
    bed.add(when_empty=EmptyRule(behavior="Value", value=-100))
    writer.check([("c1", "s1")])
    writer.step()
    assert list((bed.backend.scores("c1", NAME) or {}).values()) == [-100]


def edit(bed: ResultsHarness, **items: int) -> None:
    """Change the items like another program."""
    status = bed.backend.objects["c1", NAME]["status"]
    scores = [{"name": name, "value": value} for name, value in items.items()]
    bed.backend.objects["c1", NAME] = {**bed.backend.objects["c1", NAME], "status": {**status, "scores": scores}}


def test_edited_and_deleted_objects_are_repaired(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    writer.handle_object_change("c1", NAME)
    assert bed.write(writer) == [], "its own write"
    edit(bed, a=99)
    writer.handle_object_change("c1", NAME)
    assert bed.write(writer) == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}
    bed.backend.objects.clear()
    writer.handle_object_change("c1", NAME)
    assert bed.write(writer) == [APPLY]
    edit(bed, b=3)
    assert bed.write() == [APPLY], "edited while no hub ran"


@pytest.mark.parametrize("is_first", [True, False])
def test_edit_during_a_write_is_repaired(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    writer = bed.writer()
    bed.cycle()
    if not is_first:
        bed.write(writer)
        edit(bed, a=50)
        writer.handle_object_change("c1", NAME)
    apply = bed.backend.apply_score

    def edited_at_once(manifest: dict[str, Any], status: dict[str, Any]) -> ScoreState:
        applied_digest = apply(manifest, status)
        monkeypatch.undo()
        edit(bed, a=99)
        return applied_digest

    monkeypatch.setattr(bed.backend, "apply_score", edited_at_once)
    operations = bed.write(writer)
    writer.handle_object_change("c1", NAME)
    bed.now += 1
    assert [*operations, *bed.write(writer)] == [APPLY, APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}


def test_object_with_the_label_of_another_scorer_is_put_right(bed: ResultsHarness) -> None:
    bed.add("c1", "s2")
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    metadata = bed.backend.objects["c1", NAME]["metadata"]
    labels = {**metadata["labels"], "dynamic-scoring.open-cluster-management.io/scorer-name": "s2"}
    bed.backend.objects["c1", NAME] = {**bed.backend.objects["c1", NAME], "metadata": {**metadata, "labels": labels}}
    writer.handle_object_change("c1", NAME)
    assert bed.write(writer) == [APPLY]
    assert bed.backend.objects["c1", NAME]["metadata"]["labels"] == metadata["labels"]


def test_recreated_cluster_becomes_the_owner(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    record = bed.registry.read_cluster("c1")
    bed.registry.put_cluster(record.model_copy(update={"uid": "another"}))
    writer.check([("c1", "s1")])
    assert bed.write(writer) == [APPLY]
    assert bed.backend.objects["c1", NAME]["metadata"]["ownerReferences"][0]["uid"] == "another"


def test_change_while_no_hub_leads_is_written_by_the_next_leader(bed: ResultsHarness) -> None:
    old = bed.writer()
    bed.cycle()
    bed.write(old)
    bed.cycle(results=[({"node": "a"}, 7.0)])
    # The old leader receives the notification and stops before it writes.
    assert old._store.pop_changes() == {("c1", "s1"): 1}
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 7}


def test_objects_of_a_departed_cluster_are_not_changed(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    bed.owners.departed.add("c1")
    bed.cycle(results=[({"node": "a"}, 7.0)])
    assert bed.write(writer) == []
    bed.owners.departed.clear()
    writer.check([("c1", "s1")])
    assert bed.write(writer) == [APPLY]


def test_writer_waits_for_the_desired_state(bed: ResultsHarness) -> None:
    bed.cycle()
    writer = ScoreWriter(bed.client, bed.settings, bed.backend, lambda: None, clock=lambda: bed.now)
    assert bed.write(writer) == []
    assert bed.write() == [APPLY]


def test_service_writes_and_stops(bed: ResultsHarness) -> None:
    writer = ScoreWriter(bed.client, bed.settings, bed.backend, lambda: bed.owners)
    writer.start()
    try:
        bed.now = time.time()
        bed.send(make_run_id(bed.now))
        wait_for(lambda: bed.backend.scores("c1", NAME), 5, "the object")
        assert writer.find_problem() == ""
    finally:
        writer.stop()
    assert not any(thread.name == "score-writer" for thread in threading.enumerate())


def test_clock_that_is_set_back_keeps_no_pair_waiting(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.now = START + 7200
    bed.cycle()
    bed.write(writer)
    bed.now = START
    assert ResultsGuard(bed.client).repair(bed.now) > 0
    assert bed.write(writer) == [APPLY]
    bed.now += 301
    assert bed.write(writer) == [DELETE]
    assert bed.client.hlen(keys.WRITES) == 0


def test_upstreams_score_of_a_scorer_without_a_score_expires(bed: ResultsHarness) -> None:
    _create_upstreams_score(bed, old=7)
    writer = bed.writer()
    bed.write(writer)
    adopted = bed.backend.objects["c1", NAME]
    assert bed.backend.scores("c1", NAME) == {"old": 7}
    assert adopted["status"]["validUntil"] == "2100-01-01T00:05:00Z"
    assert adopted["status"]["conditions"][0]["reason"] == "WrittenByUpstream"
    # Failing cycles do not extend its validity.
    bed.now = START + 200
    bed.cycle(outcome="error")
    assert bed.write(writer) == []
    bed.now = START + 301
    assert bed.write(writer) == [DELETE]


def test_upstreams_score_is_replaced_by_the_first_score(bed: ResultsHarness) -> None:
    _create_upstreams_score(bed, old=7)
    writer = bed.writer()
    bed.write(writer)
    bed.cycle()
    assert bed.write(writer) == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}


def test_first_score_equal_to_upstreams_replaces_it(bed: ResultsHarness) -> None:
    _create_upstreams_score(bed, a=1, b=2)
    writer = bed.writer()
    bed.write(writer)
    bed.cycle()
    assert bed.write(writer) == [APPLY]
    assert bed.backend.objects["c1", NAME]["status"]["conditions"][0]["reason"] != "WrittenByUpstream"


@pytest.mark.parametrize("is_same_leader", [True, False])
def test_upstreams_score_is_shown_until_the_first_score(bed: ResultsHarness, is_same_leader: bool) -> None:
    _create_upstreams_score(bed, old=7)
    writer = bed.writer() if is_same_leader else None
    bed.write(writer)
    bed.write(writer)
    fleet = FleetQueries(bed.client, clock=lambda: bed.now)
    [score] = fleet.summary().upstream_scores
    assert (score.cluster, score.scorer) == ("c1", "s1")
    assert "AddOnPlacementScore score-of-s1" in score.message
    assert "2100-01-01T00:05:00Z" in score.message
    assert fleet.scores(scorer="s1").upstream_scores == [score]
    bed.add("c2", "s2")
    assert fleet.scores(cluster="c2").upstream_scores == fleet.scores(scorer="s2").upstream_scores == []
    # The use of upstream's score is no failure to write one.
    assert not [problem for problem in fleet.find_path_problems() if "AddOnPlacementScore" in problem.message]
    assert bed.state().unwritten is None
    for scorer, sentences in (("s1", [score.sentence]), ("s2", []), (None, [score.sentence])):
        problems = make_report(fleet, scorer).problems
        assert [problem.message for problem in problems if problem.severity == "note"] == sentences
    terminal = make_console()
    with terminal.capture() as screen:
        terminal.print(render_scores(fleet.scores()))
    assert "the original project's agent wrote AddOnPlacementScore" in " ".join(screen.get().split())
    bed.cycle()
    bed.write(writer)
    assert fleet.summary().upstream_scores == []


def test_upstreams_score_of_a_scorer_that_cannot_run_is_shown_until_its_end(bed: ResultsHarness) -> None:
    bed.client.hdel(keys.ENTRIES, "c1/s1")
    bed.owners.wanted.add(("c1", "s1"))
    _create_upstreams_score(bed, old=7)
    writer = bed.writer()
    bed.write(writer)
    bed.write(writer)
    fleet = FleetQueries(bed.client, clock=lambda: bed.now)
    [score] = fleet.scores().upstream_scores
    assert (score.cluster, score.scorer) == ("c1", "s1")
    bed.now = START + 301
    assert bed.write(writer) == [DELETE]
    assert fleet.scores().upstream_scores == []


def _create_upstreams_score(bed: ResultsHarness, **items: int) -> None:
    bed.backend.objects["c1", NAME] = {
        "metadata": {"namespace": "c1", "name": NAME},
        "status": {"scores": [{"name": name, "value": value} for name, value in items.items()]},
    }


def test_object_that_another_program_changes_all_the_time_is_written_seldom(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    bed.backend.log.clear()
    reports: set[str] = set()
    for number in range(1000):
        edit(bed, a=number % 50 + 2)
        writer.handle_object_change("c1", NAME)
        writer.step()
        bed.now += 0.06
        unwritten = bed.state().unwritten
        reports.add(unwritten.message[:47] if unwritten is not None else "")
    # Another program edits the object 17 times a second for a minute.
    assert len(bed.backend.log) <= 10
    assert "another program changes AddOnPlacementScore sco" in reports
    # After the conflict, the object has the desired items.
    for _ in range(100):
        bed.now += 1
        writer.step()
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}
    assert bed.state().unwritten is None


def _forge(bed: ResultsHarness, number: int, **metadata: Any) -> None:
    """Create objects with the labels of a scorer that does not exist, as anybody with the right to write scores can."""
    for index in range(number):
        name = f"forged-{index}"
        labels = {MANAGED_BY_LABEL: MANAGED_BY, SCORER_NAME_LABEL: "forged"}
        body = {"metadata": {"name": name, "namespace": "c2", "labels": labels, "uid": name, **metadata}, "status": {}}
        bed.backend.objects["c2", name] = body


def test_forged_objects_do_not_delay_scores(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.write(writer)
    _forge(bed, 40)
    for name in range(40):
        writer.handle_object_change("c2", f"forged-{name}")
    bed.cycle(results=[({"node": "a"}, 7.0)])
    before = len(bed.backend.log)
    writer.step()
    operations = bed.backend.log[before:]
    assert APPLY in operations
    assert len(operations) <= 2
    bed.write(writer)
    assert [*bed.backend.objects] == [("c1", NAME)]


def test_object_that_is_being_deleted_is_not_deleted_again(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.write(writer)
    _forge(bed, 1, deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.com/keep"])
    writer.handle_object_change("c2", "forged-0")
    assert bed.write(writer) == []


def test_forged_objects_do_not_extend_validities(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.add(validity=1)
    _forge(bed, 5000)
    for score_object in bed.backend.objects.values():
        score_object["metadata"]["labels"][SCORER_NAME_LABEL] = "s1"
    writer._plan_all()
    writer._update_validity_factor()
    assert bed.writes.read_validity_factor() == 1.0


def test_validity_below_the_interval_does_not_extend_the_validities_of_all_scores(bed: ResultsHarness) -> None:
    """One namespace could otherwise keep the outdated scores of all others valid."""
    labels = {MANAGED_BY_LABEL: MANAGED_BY, SCORER_NAME_LABEL: "s1"}
    for number in range(200):
        cluster = f"c{number}"
        metadata = {"name": NAME, "namespace": cluster, "labels": labels, "uid": cluster}
        bed.backend.objects[cluster, NAME] = {"metadata": metadata, "status": {}}
    bed.add(validity=1, interval=60)
    writer = bed.writer()
    writer._plan_all()
    writer._update_validity_factor()
    assert bed.writes.read_validity_factor() == 1.0


def test_long_search_for_upstreams_scores_does_not_delay_scores(
    bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs may have many large scores, which anybody with the right to write scores can create."""
    is_over = threading.Event()
    monkeypatch.setattr(bed.backend, "adopt_scores", lambda _: int(is_over.wait(PATIENCE)))
    bed.cycle()
    began = time.monotonic()
    try:
        assert bed.write() == [APPLY]
        assert time.monotonic() - began < PATIENCE
    finally:
        is_over.set()
