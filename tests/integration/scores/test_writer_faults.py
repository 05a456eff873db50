"""Writing while the backend or Redis fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.backends.scorestate import ScoreState
from dsf.errors import BackendError, ForeignObjectError, ObjectConflictError, ObjectNotFoundError
from dsf.kube.session import ApiServerError, UnreachableError
from dsf.results.ingest import Ingest
from dsf.scores import writer as writer_module
from dsf.store.entries import Entry
from dsf.store.registry import ClusterRecord
from tests.integration.results.bed import ResultsHarness
from tests.integration.scores.writes import APPLY, DELETE, NAME, stats


def test_newest_score_is_written_after_a_failure(bed: ResultsHarness) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.backend.error = BackendError("disk full")
    assert bed.write(writer) == []
    assert stats(bed) == {"failed": 1}
    # Changes do not bring the next attempt forward.
    for value in range(10):
        bed.cycle(results=[({"node": "a"}, float(value))])
    bed.now -= 10.5
    assert bed.write(writer) == []
    assert stats(bed)["failed"] == 1
    bed.now += 10.5
    bed.backend.error = ObjectConflictError("changed")
    bed.write(writer)
    assert stats(bed)["failed"] == 2
    bed.backend.error = None
    bed.now += 2
    assert bed.write(writer) == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 9}
    assert stats(bed) == {"failed": 2, "written": 1, "coalesced": 10}


def test_malformed_data_of_a_pair_does_not_delay_others(bed: ResultsHarness) -> None:
    bed.add("c2")
    bed.cycle()
    bed.cycle("c2")
    bed.client.delete(keys.pair_key("c2", "s1"))
    bed.client.set(keys.pair_key("c2", "s1"), "of another type")
    assert bed.write() == [("apply", "c1", NAME)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiServerError("403: no right", 403), "ScoresNotWritten"),
        (ApiServerError("422: not valid", 422), "ScoresNotWritten"),
        (ForeignObjectError("somebody else's"), "ScoreNameForeign"),
    ],
)
def test_refused_write_is_reported_at_once_and_until_it_succeeds(
    bed: ResultsHarness, error: Exception, reason: str
) -> None:
    writer = bed.writer()
    bed.cycle()
    bed.backend.error = error
    bed.write(writer)
    assert bed.changed_statuses == {"s1"}
    unwritten = bed.state().unwritten
    assert unwritten is not None
    assert (unwritten.reason, unwritten.message) == (reason, str(error))
    bed.changed_statuses.clear()
    bed.now += 2
    bed.write(writer)
    assert bed.changed_statuses == set(), "it is known"
    bed.backend.error = None
    bed.now += 3
    assert bed.write(writer) == [APPLY]
    assert bed.changed_statuses == {"s1"}
    assert bed.state().unwritten is None


@pytest.mark.parametrize(
    "error",
    [
        ApiServerError("500: failed calling webhook: connection refused", 500),
        ApiServerError("500: etcdserver: mvcc: database space exceeded", 500),
        ObjectNotFoundError("namespace c1 is being terminated"),
        UnreachableError("cannot reach the API server"),
        ApiServerError("429: too many requests", 429),
        BackendError("No space left on device"),
        RuntimeError("a bug"),
    ],
)
def test_any_lasting_failure_is_reported_and_written_soon_after_its_end(
    bed: ResultsHarness, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see it whatever the error is, and no pair waits for a long backoff."""
    monkeypatch.setattr(writer_module, "_OUTAGE_RETRY_SECONDS", 0.0)
    bed.add("c2")
    writer = bed.writer()
    bed.cycle()
    bed.cycle("c2")
    bed.backend.error = error
    for _ in range(200):
        bed.now += 1
        writer.step()
    assert {bed.state(cluster).unwritten is None for cluster in ("c1", "c2")} == {False}
    assert bed.changed_statuses == {"s1"}
    sequence = int(bed.client.get(keys.SEQUENCE) or 0)
    bed.cycle(results=[({"node": "a"}, 3.0)])
    bed.backend.error = None
    for _ in range(6):
        bed.now += 1
        writer.step()
    assert bed.backend.scores("c1", NAME) == {"a": 3}
    assert bed.backend.scores("c2", NAME) == {"a": 1, "b": 2}
    assert {bed.state(cluster).unwritten for cluster in ("c1", "c2")} == {None}
    assert int(bed.client.get(keys.SEQUENCE) or 0) > sequence


def test_outage_of_the_backend_is_reported_for_every_pair(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_OUTAGE_REPORT_SECONDS", 0.0)
    clusters = [f"c{number}" for number in range(1, 41)]
    for cluster in clusters:
        bed.add(cluster)
        bed.cycle(cluster)
    writer = bed.writer()
    bed.backend.error = UnreachableError("cannot reach the API server")
    for _ in range(3):
        bed.now += 1
        writer.step()
    assert stats(bed)["failed"] < len(clusters), "no request for each of them"
    assert all(bed.state(cluster).unwritten for cluster in clusters)


def test_first_success_after_a_failure_retries_the_other_pairs(bed: ResultsHarness) -> None:
    clusters = [f"c{number}" for number in range(1, 41)]
    for cluster in clusters:
        bed.add(cluster)
        bed.cycle(cluster)
    bed.settings = bed.settings.model_copy(update={"write_rate": 100_000.0})
    writer = bed.writer()
    bed.backend.error = ApiServerError("500: failed calling webhook", 500)
    for _ in range(50):
        bed.now += 1
        writer.step()
    bed.backend.error = None
    bed.now += 5
    for _ in range(4):
        writer.step()
    assert {cluster for _, cluster, _ in bed.backend.log} == set(clusters)


def test_failing_pairs_use_a_small_share_of_the_writes(bed: ResultsHarness) -> None:
    """A namespace whose scores are refused must not slow down the scores of all others."""
    for number in range(60):
        bed.add(f"bad{number}")
        bed.cycle(f"bad{number}")
    writer = bed.writer()
    bed.backend.error = ApiServerError("403: no right", 403)
    bed.write(writer)
    apply = bed.backend.apply_score
    bed.backend.error = None

    def refuse(manifest: dict[str, Any], status: dict[str, Any]) -> ScoreState:
        if manifest["metadata"]["namespace"].startswith("bad"):
            raise ApiServerError("403: no right", 403)
        return apply(manifest, status)

    bed.backend.apply_score = refuse  # type: ignore[method-assign]
    for number in range(60):
        bed.add(f"good{number}")
        bed.cycle(f"good{number}")
    bed.now += 10
    failed_before = stats(bed)["failed"]
    for _ in range(3):
        writer.step()
    assert len(bed.backend.log) == 60
    assert stats(bed)["failed"] - failed_before <= 24


def test_scores_are_written_and_pairs_removed_while_redis_is_full(bed: ResultsHarness) -> None:
    """Otherwise valid scores would expire, and removing a scorer could not free any memory."""
    writer = bed.writer()
    bed.add("c2")
    bed.cycle("c2")
    bed.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            bed.client.set("x", "y")
        bed.cycle()
        bed.backend.error = ApiServerError("403: no right", 403)
        bed.write(writer)
        assert bed.changed_statuses == {"s1"}
        bed.backend.error = None
        bed.now += 2
        assert sorted(bed.write(writer)) == [APPLY, ("apply", "c2", NAME)]
        assert bed.schedule.remove(["c1/s1"]) == 1
        writer.check([("c1", "s1")])
        assert bed.write(writer) == [DELETE]
        bed.registry.put_cluster(ClusterRecord(name="c3"))
        bed.schedule.upsert([Entry(cluster="c3", scorer="s1", score_name="score of s1", interval=30)])
        bed.ingest = Ingest(bed.client, bed.settings, clock=lambda: bed.now)
        assert bed.cycle("c3") == "ok"
        assert bed.write(writer) == [("apply", "c3", NAME)]
    finally:
        bed.client.config_set("maxmemory", "0")
    assert bed.state("c2").unwritten is None


def test_objects_of_a_batch_are_written_concurrently(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for cluster in ("c2", "c3", "c4"):
        bed.add(cluster)
        bed.cycle(cluster)
    bed.cycle()
    together, apply_score = threading.Barrier(4, timeout=300), bed.backend.apply_score

    def meet(manifest: dict[str, Any], status: dict[str, Any]) -> ScoreState:
        together.wait()
        return apply_score(manifest, status)

    monkeypatch.setattr(bed.backend, "apply_score", meet)
    assert sorted(bed.write()) == [("apply", f"c{number}", NAME) for number in (1, 2, 3, 4)]


def test_pairs_of_a_batch_are_checked_again_after_an_outage_of_redis(
    bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cluster in ("c1", "c2", "c3"):
        bed.add(cluster)
        bed.cycle(cluster)
    writer = bed.writer()
    with monkeypatch.context() as patch:
        patch.setattr(writer._store, "read_pair_data", _away)
        with pytest.raises(redis.ConnectionError):
            writer.step()
    assert sorted(bed.write(writer)) == [("apply", f"c{number}", NAME) for number in (1, 2, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(writer._store, "record_pass", _away)
        bed.cycle(results=[({"node": "a"}, 9.0)])
        with pytest.raises(redis.ConnectionError):
            writer.step()
    assert bed.write(writer) == []
    assert stats(bed)["written"] == 4, "counted when Redis is back"


def _away(*_: object, **__: object) -> None:
    raise redis.ConnectionError("away")


def test_wait_between_attempts_doubles_up_to_five_seconds(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.backend.error = RuntimeError("a bug in the backend")
    writer, waits = bed.writer(), []
    for _ in range(7):
        writer.step()
        bed.backend.error = BackendError("disk full")
        due = writer._retries.get_next_due()
        assert due is not None
        waits.append(round(due - bed.now))
        bed.now = due
    assert waits == [1, 2, 4, 5, 5, 5, 5]


def test_record_of_an_earlier_leader_is_cleared(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.backend.error = ApiServerError("403: no right", 403)
    bed.write()
    assert bed.state().unwritten is not None
    bed.backend.error = None
    assert bed.write() == [APPLY]
    assert bed.state().unwritten is None
