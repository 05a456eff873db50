"""What stands in the backend, when it is written, and when not."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dsf import keys
from dsf.messages import new_run_id
from dsf.results.writer import Writer
from dsf.store.registry import EmptyRule
from tests.integration.results.bed import START, Bed
from tests.integration.results.writes import APPLY, DELETE, NAME, stats
from tests.support.wait import PATIENCE, wait_for


def test_a_first_score_is_written_at_once(bed: Bed) -> None:
    bed.cycle()
    assert bed.write() == [APPLY]
    manifest = bed.backend.objects["c1", NAME]
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-c1"
    assert manifest["status"]["validUntil"] == "2100-01-01T00:05:01Z"
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}
    assert bed.write() == []


def test_no_write_while_nothing_changes_until_half_the_validity_is_gone(bed: Bed) -> None:
    bed.cycle()
    assert bed.write() == [APPLY]
    written = bed.now
    while bed.now < written + 120:
        bed.now += 29
        bed.cycle()
        assert bed.write() == []
    bed.now = written + 181
    assert bed.write() == [APPLY]
    assert bed.backend.objects["c1", NAME]["status"]["validUntil"] == "2100-01-01T00:07:01Z"
    since = bed.backend.objects["c1", NAME]["status"]["conditions"][0]["lastTransitionTime"]
    assert since == "2100-01-01T00:00:01Z"


def test_an_object_follows_a_validity_that_was_made_shorter(bed: Bed) -> None:
    bed.add(validity=3600)
    bed.cycle()
    assert bed.write() == [APPLY]
    bed.add(validity=300)
    bed.cycle()
    assert bed.write() == [APPLY]
    bed.now += 301
    assert bed.write() == [DELETE]


def test_the_order_of_items_is_no_change(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.cycle(results=[({"node": "b"}, 2.0), ({"node": "a"}, 1.5)])
    assert bed.write() == []


def test_a_change_is_written_and_what_was_replaced_before_is_counted(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    for value in (3.0, 4.0, 5.0):
        bed.cycle(results=[({"node": "a"}, value)])
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 5}
    assert stats(bed) == {"written": 2, "coalesced": 2}


def test_expiry_deletes_the_object(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.news()
    for _ in range(19):
        bed.now += 14
        bed.cycle(outcome="error")
        assert bed.write() == []
    bed.now = START + 301
    assert bed.write() == [DELETE]
    assert bed.client.hlen(keys.WRITTEN) == bed.client.zcard(keys.WRITES) == 0
    assert bed.news() == {"s1"}
    bed.cycle()
    assert bed.write() == [APPLY]


def test_a_success_late_in_the_second_half_renews_before_expiry(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.now = START + 200
    assert bed.write() == []
    bed.now = START + 250
    bed.cycle()
    bed.now = START + 290
    assert bed.write() == [APPLY]


def test_a_masked_pair_loses_its_object(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.schedule.remove(["c1/s1"])
    bed.now = time.time()
    assert bed.write() == [DELETE]


def test_an_entry_that_goes_unannounced_is_found_by_the_audit(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.client.hdel(keys.ENTRIES, "c1/s1")
    assert bed.write() == []
    bed.client.delete(keys.WRITE_AUDIT)
    bed.now = time.time() + 1
    assert bed.write() == [DELETE]


def test_metrics_only_takes_the_object_away(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.add(destination="None")
    bed.cycle()
    assert bed.write() == [DELETE]
    bed.cycle()
    assert bed.write() == []


def test_results_for_metrics_only_are_no_empty_answer(bed: Bed) -> None:
    rule = EmptyRule(behavior="Value", value=-100)
    bed.add(destination="None", when_empty=rule)
    bed.cycle()
    bed.add(when_empty=rule)
    bed.writes.touch("c1", "s1")
    assert bed.write() == []
    bed.cycle()
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}


def test_another_score_name_moves_the_object(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.add(score_name="other")
    bed.cycle()
    assert bed.write() == [DELETE, ("apply", "c1", "other")]


def test_the_first_score_of_a_new_scorer_is_written_by_a_writer_that_has_just_looked(bed: Bed) -> None:
    writer = bed.writer()
    bed.cycle()
    writer.step()
    bed.add(cluster="c2", scorer="s2")
    bed.cycle("c2", "s2")
    writer.step()
    assert bed.backend.log == [APPLY, ("apply", "c2", "score-of-s2")]


def test_an_edited_scorer_is_seen_by_a_writer_that_has_just_looked(bed: Bed) -> None:
    writer = bed.writer()
    bed.cycle(outcome="empty")
    writer.step()
    bed.add(when_empty=EmptyRule(behavior="Value", value=-100))
    bed.writes.touch("c1", "s1")
    # Touched by the real clock.
    bed.now = time.time()
    writer.step()
    assert list((bed.backend.scores("c1", NAME) or {}).values()) == [-100]


def test_a_foreign_edit_is_repaired(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.backend.objects.clear()
    bed.now = time.time()
    bed.cycle()
    bed.write()
    bed.backend.objects.clear()
    bed.writes.touch("c1", "s1")
    bed.now = time.time()
    assert bed.write() == []
    bed.writes.touch("c1", "s1", forget_written=True)
    bed.now = time.time()
    assert bed.write() == [APPLY]


@pytest.mark.parametrize("is_first", [True, False])
def test_an_edit_while_the_object_is_written_is_repaired(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The first time, and while an earlier edit is repaired."""
    bed.cycle()
    if not is_first:
        bed.write()
        bed.writes.touch("c1", "s1", forget_written=True)
        bed.now = time.time()
    apply = bed.backend.apply_score

    def edited_at_once(manifest: dict[str, Any], status: dict[str, Any]) -> None:
        apply(manifest, status)
        monkeypatch.undo()
        bed.writes.touch("c1", "s1", forget_written=True)

    monkeypatch.setattr(bed.backend, "apply_score", edited_at_once)
    written = bed.write()
    bed.now += 1
    assert [*written, *bed.write()] == [APPLY, APPLY]
    assert bed.write() == []


def test_the_thread_writes_within_a_moment_and_stops(bed: Bed) -> None:
    stopping, wake = threading.Event(), threading.Event()
    writer = Writer(bed.client, bed.settings, bed.backend, stopping=stopping, wake=wake)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        bed.now = time.time()
        bed.send(new_run_id(bed.now))
        wake.set()
        wait_for(lambda: bed.backend.scores("c1", NAME), 5, "the object")
    finally:
        stopping.set()
        wake.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
