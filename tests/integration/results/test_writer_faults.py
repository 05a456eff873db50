"""Writing while the backend, Redis or another writer fails."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.errors import BackendError, ObjectConflictError
from dsf.kube.session import ApiServerError
from dsf.results.ingest import Ingest
from dsf.results.writer import LEASE
from dsf.store.entries import Entry
from dsf.store.registry import ClusterRecord
from dsf.store.writes import Finish
from tests.integration.results.bed import Bed
from tests.integration.results.writes import APPLY, NAME, stats


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


def test_a_pair_whose_data_is_spoilt_keeps_no_other_waiting(bed: Bed) -> None:
    bed.add("c2")
    bed.cycle()
    bed.cycle("c2")
    bed.client.delete(keys.pair_key("c2", "s1"))
    bed.client.set(keys.pair_key("c2", "s1"), "of another type")
    assert bed.write() == [("apply", "c1", NAME)]


def test_a_refusal_is_told_to_the_hub_until_it_is_over(bed: Bed) -> None:
    bed.cycle()
    bed.news()
    bed.backend.error = ApiServerError("403: no right", 403)
    bed.write()
    assert bed.news() == {"s1"}
    assert bed.state().unwritten == "403: no right"
    bed.now += 2
    bed.write()
    assert bed.news() == set(), "it is known"
    bed.backend.error = ApiServerError("422: not valid", 422)
    bed.now += 3
    bed.write()
    assert bed.news() == {"s1"}
    # That nobody answers is no refusal, and says nothing of whether the reason is gone.
    bed.backend.error = BackendError("away")
    bed.now += 5
    bed.write()
    assert bed.news() == set()
    [verdict] = bed.pairs.rows([("c1", "s1")])
    assert verdict.unwritten == "422: not valid"
    bed.backend.error = None
    bed.now += 9
    assert bed.write() == [APPLY]
    assert bed.news() == {"s1"}
    assert bed.state().unwritten == ""


def test_scores_are_written_and_pairs_go_while_redis_is_full(bed: Bed) -> None:
    """Else scores expire although nothing is wrong with them, and nobody could make room by removing a scorer."""
    bed.add("c2")
    bed.cycle("c2")
    bed.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            bed.client.set("x", "y")
        bed.cycle()
        bed.backend.error = ApiServerError("403: no right", 403)
        bed.write()
        assert bed.news() == {"s1"}
        bed.backend.error = None
        bed.now += 2
        assert sorted(bed.write()) == [APPLY, ("apply", "c2", NAME)]
        bed.writes.touch("c1", "s1", forget_written=True)
        assert bed.write() == [APPLY]
        assert bed.schedule.remove(["c1/s1"]) == 1
        assert bed.write() == [("delete", "c1", NAME)]
        bed.registry.put_cluster(ClusterRecord(name="c3"))
        bed.schedule.upsert([Entry(cluster="c3", scorer="s1", score_name="score of s1", interval=30)])
        bed.ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now)
        assert bed.cycle("c3") == "ok"
        assert bed.write() == [("apply", "c3", NAME)]
    finally:
        bed.client.config_set("maxmemory", "0")
    assert bed.state("c2").unwritten == ""


def test_objects_of_a_batch_are_written_side_by_side(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    for cluster in ("c2", "c3", "c4"):
        bed.add(cluster)
        bed.cycle(cluster)
    bed.cycle()
    together, apply_score = threading.Barrier(4, timeout=300), bed.backend.apply_score

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
    monkeypatch.setattr(writer._writes, "finish_all", _away)
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
        bed.backend.error = BackendError("away")
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
    bed.writes.finish_all([Finish(claim, facts, bed.now, bed.now + 100, None, {})])
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 9}


def test_a_writer_whose_lease_ran_out_is_not_believed(bed: Bed) -> None:
    bed.cycle()
    (slow,), _ = bed.writes.claim(bed.now, LEASE, 10)
    (facts,) = bed.writes.facts([slow])
    bed.now += LEASE + 1
    assert bed.write() == [APPLY]
    # The slow one wrote something older in the meantime and says so only now.
    bed.writes.finish_all([Finish(slow, facts, bed.now, bed.now + 100, None, {})])
    assert bed.write() == [APPLY]


def test_a_record_of_another_version_is_written_again(bed: Bed) -> None:
    bed.cycle()
    bed.write()
    bed.client.hset(keys.WRITTEN, "c1/s1", '{"v":7}')
    bed.writes.touch("c1", "s1")
    bed.now = time.time()
    bed.cycle()
    assert bed.write() == [APPLY]
