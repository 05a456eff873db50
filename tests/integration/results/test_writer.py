"""What stands in the backend, when it is written, and when not."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.errors import BackendError, ObjectConflictError
from dsf.kube.session import ApiError
from dsf.messages import new_run_id
from dsf.results.writer import LEASE, Writer
from dsf.store.registry import WhenEmpty, WhenFailing
from tests.integration.results.bed import START, Bed
from tests.support.wait import wait_for

NAME = "score-of-s1"
APPLY, DELETE = ("apply", "c1", NAME), ("delete", "c1", NAME)


def stats(bed: Bed) -> dict[str, int]:
    found = {str(name): str(text) for name, text in bed.client.hgetall(keys.WRITE_STATS).items()}
    found.pop("validity_factor", None)
    return {name: int(text) for name, text in found.items()}


def test_a_first_score_is_written_at_once(bed: Bed) -> None:
    bed.cycle()
    assert bed.write() == [APPLY]
    manifest = bed.backend.objects["c1", NAME]
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-c1"
    assert manifest["status"]["validUntil"] == "2027-01-15T08:05:01Z"
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
    assert bed.backend.objects["c1", NAME]["status"]["validUntil"] == "2027-01-15T08:07:01Z"
    since = bed.backend.objects["c1", NAME]["status"]["conditions"][0]["lastTransitionTime"]
    assert since == "2027-01-15T08:00:01Z"


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
    bed.add(when_empty=WhenEmpty(behavior="Value", value=-100))
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


def test_an_edit_while_the_object_is_written_for_the_first_time_is_repaired(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = bed.backend.apply_score

    def edited_at_once(manifest: dict[str, Any], status: dict[str, Any]) -> None:
        apply(manifest, status)
        monkeypatch.undo()
        bed.writes.touch("c1", "s1", forget_written=True)

    monkeypatch.setattr(bed.backend, "apply_score", edited_at_once)
    bed.cycle()
    written = bed.write()
    bed.now += 1
    assert [*written, *bed.write()] == [APPLY, APPLY]
    assert bed.write() == []


def test_when_empty(bed: Bed) -> None:
    bed.cycle(outcome="empty")
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {}
    bed.add(when_empty=WhenEmpty(behavior="Value", value=-100), dimension_format="${node}-of-${cluster}")
    bed.writes.touch("c1", "s1")
    bed.now = time.time()
    bed.cycle(outcome="empty")
    bed.write()
    assert bed.backend.scores("c1", NAME) == {"-of-c1": -100}
    bed.add(when_empty=WhenEmpty(behavior="Value", value=-100), dimension_format="${node}")
    bed.writes.touch("c1", "s1", forget_written=True)
    bed.now = time.time()
    bed.write()
    assert bed.backend.scores("c1", NAME) == {"score of s1": -100}


def test_when_failing_value(bed: Bed) -> None:
    bed.add(when_failing=WhenFailing(failure_threshold=2, behavior="Value", value=-50))
    bed.cycle()
    bed.write()
    bed.cycle(outcome="error")
    assert bed.write() == []
    bed.cycle(outcome="error")
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": -50, "b": -50}
    # Renewed for as long as it fails, far beyond the score's own validity.
    renewals = 0
    for _ in range(40):
        bed.cycle(outcome="error")
        bed.now += 29
        renewals += len(bed.write())
    assert bed.backend.scores("c1", NAME) == {"a": -50, "b": -50}
    assert 6 <= renewals <= 9
    bed.cycle()
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}


def test_when_failing_value_without_any_score_and_by_losses(bed: Bed) -> None:
    bed.add(when_failing=WhenFailing(failure_threshold=2, behavior="Value", value=-50))
    for _ in range(2):
        bed.open(deadline=1)
        bed.now += 100
        bed.sweep()
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"score of s1": -50}


def test_when_failing_remove(bed: Bed) -> None:
    bed.add(when_failing=WhenFailing(failure_threshold=1, behavior="Remove"))
    bed.cycle()
    bed.write()
    bed.cycle(outcome="error")
    assert bed.write() == [DELETE]
    bed.cycle()
    assert bed.write() == [APPLY]


def test_a_backend_that_is_away(bed: Bed) -> None:
    bed.cycle()
    bed.backend.error = BackendError("away")
    assert bed.write() == []
    assert stats(bed) == {"failed": 1}
    # Changes do not bring the next attempt forward, and none of them is kept.
    for value in range(10):
        bed.cycle(results=[({"node": "a"}, float(value))])
    bed.now -= 10.5
    assert bed.write() == []
    assert stats(bed)["failed"] == 1
    bed.now += 10.5
    bed.backend.error = ObjectConflictError("changed")
    bed.write()
    assert stats(bed)["failed"] == 2
    bed.backend.error = None
    bed.now += 2
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 9}
    assert stats(bed) == {"failed": 2, "written": 1, "coalesced": 10}


def test_a_refusal_is_told_to_the_hub_until_it_is_over(bed: Bed) -> None:
    bed.cycle()
    bed.news()
    bed.backend.error = ApiError("403: no right", 403)
    bed.write()
    assert bed.news() == {"s1"}
    assert bed.state().unwritten == "403: no right"
    bed.now += 2
    bed.write()
    assert bed.news() == set(), "it is known"
    bed.backend.error = ApiError("422: not valid", 422)
    bed.now += 3
    bed.write()
    assert bed.news() == {"s1"}
    # That nobody answers is no refusal, and says nothing of whether the reason is gone.
    bed.backend.error = BackendError("away")
    bed.now += 5
    bed.write()
    assert bed.news() == set()
    [verdict] = bed.pairs.verdicts([("c1", "s1")])
    assert verdict.unwritten == "422: not valid"
    bed.backend.error = None
    bed.now += 9
    assert bed.write() == [APPLY]
    assert bed.news() == {"s1"}
    assert bed.state().unwritten == ""


def test_objects_of_a_batch_are_written_side_by_side(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    for cluster in ("c2", "c3", "c4"):
        bed.add(cluster)
        bed.cycle(cluster)
    bed.cycle()
    together, apply_score = threading.Barrier(4, timeout=5), bed.backend.apply_score

    def meet(manifest: dict[str, Any], status: dict[str, Any]) -> None:
        together.wait()
        apply_score(manifest, status)

    monkeypatch.setattr(bed.backend, "apply_score", meet)
    assert sorted(bed.write()) == [("apply", f"c{number}", NAME) for number in (1, 2, 3, 4)]
    monkeypatch.setattr(bed.backend, "apply_score", apply_score)
    # Redis goes while a batch is looked at: the step ends with that, and the pairs come back after their lease.
    for cluster in ("c1", "c2", "c3", "c4"):
        bed.cycle(cluster, results=[({"node": "a"}, 9.0)])
    writer = bed.writer()
    monkeypatch.setattr(writer._writes, "finish", _away)
    with pytest.raises(redis.ConnectionError):
        writer.step()
    bed.now += LEASE
    assert sorted(bed.write()) == [("apply", f"c{number}", NAME) for number in (1, 2, 3, 4)]


def _away(*_: object, **__: object) -> None:
    raise redis.ConnectionError("away")


def test_the_wait_doubles_up_to_a_minute(bed: Bed) -> None:
    bed.cycle()
    bed.backend.error = RuntimeError("a bug in the backend")
    writer, waits = bed.writer(), []
    for _ in range(9):
        writer.step()
        due = bed.client.zscore(keys.WRITES, "c1/s1")
        assert due is not None
        waits.append(round(float(due) - bed.now))
        bed.now = float(due)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_dead_writers_claims_come_back(bed: Bed) -> None:
    bed.cycle()
    claims, _ = bed.writes.claim(bed.now, LEASE, 10)
    assert [claim.pair for claim in claims] == ["c1/s1"]
    bed.cycle(results=[({"node": "a"}, 9.0)])
    assert bed.write() == []
    bed.now += LEASE
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 9}


def test_a_change_while_it_is_being_written_is_written_after(bed: Bed) -> None:
    bed.cycle()
    (claim,), _ = bed.writes.claim(bed.now, LEASE, 10)
    (facts,) = bed.writes.facts([claim])
    bed.cycle(results=[({"node": "a"}, 9.0)])
    assert bed.writes.claim(bed.now, LEASE, 10)[0] == []
    bed.writes.finish(claim, now=bed.now, next_look=bed.now + 100, facts=facts, written=None, counts={})
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 9}


def test_a_writer_whose_lease_ran_out_is_not_believed(bed: Bed) -> None:
    bed.cycle()
    (slow,), _ = bed.writes.claim(bed.now, LEASE, 10)
    (facts,) = bed.writes.facts([slow])
    bed.now += LEASE + 1
    assert bed.write() == [APPLY]
    # The slow one wrote something older in the meantime and says so only now.
    bed.writes.finish(slow, now=bed.now, next_look=bed.now + 100, facts=facts, written=None, counts={})
    assert bed.write() == [APPLY]


def test_two_workers_write_each_change_once(bed: Bed) -> None:
    pairs = [(f"c{n}", "s1") for n in range(60)]
    for cluster, scorer in pairs:
        bed.add(cluster, scorer)
    settings = bed.settings.model_copy(update={"write_rate": 10_000.0})
    bed.settings = settings
    for value in (1.0, 2.0):
        for cluster, scorer in pairs:
            bed.cycle(cluster, scorer, results=[({"node": "a"}, value)])
        before = len(bed.backend.log)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda writer: [writer.step() for _ in range(20)], [bed.writer(), bed.writer()]))
        assert sorted(bed.backend.log[before:]) == sorted(("apply", cluster, NAME) for cluster, _ in pairs)


def test_the_rate_is_that_of_all_writers_together(bed: Bed) -> None:
    bed.settings = bed.settings.model_copy(update={"write_rate": 50.0})
    for n in range(45):
        bed.add(f"c{n}")
        bed.cycle(f"c{n}")
    began = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda writer: [writer.step() for _ in range(5)], [bed.writer() for _ in range(3)]))
    seconds = time.monotonic() - began
    assert len(bed.backend.log) == 45
    # 40 at 50/s after a burst of 5.
    assert seconds >= 0.75


def test_validity_stretches_with_the_fleet(bed: Bed) -> None:
    bed.settings = bed.settings.model_copy(update={"write_rate": 0.1})
    bed.cycle()
    bed.write()
    for n in range(30):
        bed.client.hset(keys.WRITTEN, f"other{n}/s1", "{}")
    bed.client.delete(keys.WRITE_AUDIT, keys.WRITE_BUDGET)
    writer = bed.writer()
    writer._audit()
    # 31 objects / 150 s against half of 0.1 a second.
    assert bed.writes.validity_factor() == round(31 / 150 / 0.05, 3)
    for n in range(30):
        bed.client.hdel(keys.WRITTEN, f"other{n}/s1")
    bed.client.zremrangebyrank(keys.WRITES, 0, -1)
    bed.cycle(results=[({"node": "a"}, 7.0)])
    bed.client.set(keys.WRITE_AUDIT, "1")
    bed.write()
    written = bed.client.hget(keys.WRITTEN, "c1/s1")
    record = bed.writes.facts(bed.writes.claim(bed.now + 10_000, LEASE, 1)[0])[0].written
    assert written is not None
    assert record is not None
    assert round(record.valid_until - bed.now) == round(300 * 31 / 150 / 0.05)


def test_a_record_of_another_version_is_written_again(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.client.hset(keys.WRITTEN, "c1/s1", '{"v":7}')
    bed.writes.touch("c1", "s1")
    bed.now = time.time()
    bed.cycle()
    assert bed.write() == [APPLY]


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
        thread.join(10)
    assert not thread.is_alive()
