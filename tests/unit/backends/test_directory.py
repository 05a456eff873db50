"""The folder backend as a whole: identity of objects, and errors that stop it or do not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import yaml

from dsf.api.score import make_score_body
from dsf.backends import directory, make_backend
from dsf.backends.manifestfolder import ManifestFolder
from dsf.backends.outfolder import OutFolder
from dsf.backends.protocol import Backend, Credentials, Kind, ObjectKey
from dsf.errors import BackendError, ObjectNotFoundError, SettingsError
from dsf.hub.manifestwork import is_applied, make_manifest_work
from dsf.redisacl.keyids import KeyIds
from tests.support.fixtures import SettingsFactory
from tests.support.wait import wait_for

KEY = ObjectKey(Kind.CLUSTER, "", "c")
Start = Callable[[], contextlib.AbstractContextManager[tuple[Backend, list[ObjectKey]]]]


def _cluster(**spec: Any) -> str:
    manifest = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
    return yaml.safe_dump({**manifest, "metadata": {"name": "c"}, "spec": {"hubAcceptsClient": True, **spec}})


@pytest.fixture
def start(tmp_path: Path, settings_factory: SettingsFactory) -> Start:
    """Return a function that runs a backend on the test's folder and yields it with the changed keys."""

    @contextlib.contextmanager
    def run() -> Iterator[tuple[Backend, list[ObjectKey]]]:
        backend = make_backend(settings_factory(backend="dir", manifests=tmp_path, departure_grace=0))
        changed_keys: list[ObjectKey] = []
        backend.start(changed_keys.append)
        try:
            yield backend, changed_keys
        finally:
            backend.stop()

    return run


def test_object_keeps_its_identity_after_edits_renames_and_restarts(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(_cluster())
    with start() as (backend, changed_keys):
        assert (changed_keys, [*backend.list_keys(Kind.CLUSTER)]) == ([KEY], [KEY])
        first = dict(backend.list(Kind.CLUSTER)[0]["metadata"])
        assert first["generation"] == 1
        backend.update_status(*KEY, {"seen": True})
        with pytest.raises(ObjectNotFoundError):
            backend.update_status(Kind.CLUSTER, "", "stranger", {})
    # Some editors remove the file first and write another name.
    path.rename(tmp_path / "renamed.yaml")
    with start() as (backend, changed_keys):
        assert changed_keys == [KEY]
        after = backend.get(*KEY) or {}
        assert {name: after["metadata"][name] for name in ("uid", "creationTimestamp", "generation")} == {
            name: first[name] for name in ("uid", "creationTimestamp", "generation")
        }
        assert after["status"] == {"seen": True}
        changed_keys.clear()
        (tmp_path / "renamed.yaml").write_text(_cluster(hubAcceptsClient=False))
        wait_for(lambda: changed_keys == [KEY])
        after = backend.get(*KEY) or {}
        assert (after["metadata"]["uid"], after["metadata"]["generation"]) == (first["uid"], 2)
        (tmp_path / "renamed.yaml").unlink()
        wait_for(lambda: backend.get(*KEY) is None)
        assert not (tmp_path / "_out" / "managedclusters").exists()
    path.write_text(_cluster())
    with start() as (backend, _):
        assert (backend.get(*KEY) or {})["metadata"]["uid"] != first["uid"]


def test_readers_do_not_wait_while_a_large_object_is_written(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ManifestWork of a cluster may have a megabyte, and each change rewrites those of all clusters."""
    (tmp_path / "c.yaml").write_text(_cluster())
    is_writing, may_write = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> None:
        is_writing.set()
        assert may_write.wait(60)

    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "agents"}}
    work: dict[str, Any] = {
        "apiVersion": "work.open-cluster-management.io/v1",
        "kind": "ManifestWork",
        "metadata": {"name": "w", "namespace": "c"},
        "spec": {"workload": {"manifests": [config_map]}},
    }
    with start() as (backend, _), monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(OutFolder, "put", wait)
        writer = pool.submit(backend.apply, work)
        try:
            assert is_writing.wait(60)
            cluster = pool.submit(backend.get, *KEY).result(10)
            assert cluster is not None
            assert cluster["metadata"]["name"] == "c"
        finally:
            may_write.set()
            writer.result(60)


def test_failed_refresh_is_repeated(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    observations: list[object] = []

    def refresh(*_: object, **__: object) -> None:
        observations.append(None)
        raise RuntimeError("a mistake of the hub's")

    with start() as (backend, _), structlog.testing.capture_logs():
        with monkeypatch.context() as patched:
            patched.setattr(ManifestFolder, "refresh", refresh)
            wait_for(lambda: len(observations) >= 2)
        (tmp_path / "c.yaml").write_text(_cluster())
        wait_for(lambda: backend.get(*KEY))


def test_object_that_cannot_be_written_is_used_and_written_later(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "REPAIR_SECONDS", 0.1)
    obstacle = tmp_path / "_out" / "managedclusters"
    with start() as (backend, _), structlog.testing.capture_logs():
        obstacle.write_text("in the way")
        (tmp_path / "c.yaml").write_text(_cluster())
        wait_for(lambda: backend.get(*KEY))
        obstacle.unlink()
        wait_for((obstacle / "c.yaml").exists)


def test_failed_repair_is_not_repeated_by_each_poll(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, polls, repairs = [0.0], [0], [0]
    refresh = ManifestFolder.refresh

    def count_poll(*arguments: Any, **options: Any) -> Any:
        polls[0] += 1
        return refresh(*arguments, **options)

    def fail(_: object) -> None:
        repairs[0] += 1
        raise BackendError("the disk is full")

    def wait_for_polls(count: int) -> None:
        target = polls[0] + count
        wait_for(lambda: polls[0] >= target)

    monkeypatch.setattr(directory, "time", SimpleNamespace(monotonic=lambda: clock[0], thread_time=time.thread_time))
    monkeypatch.setattr(ManifestFolder, "refresh", count_poll)
    monkeypatch.setattr(OutFolder, "repair", fail)
    with start(), structlog.testing.capture_logs() as lines:
        # The thread has read the clock before its first poll.
        wait_for_polls(2)
        for repair_count in (1, 2):
            clock[0] += directory.REPAIR_SECONDS
            wait_for_polls(5)
            assert repairs[0] == repair_count
    assert [line["event"] for line in lines].count("files cannot be written, will be tried again") == 2


def test_out_folder_edits_made_without_a_hub_are_repaired(tmp_path: Path, start: Start) -> None:
    work = make_manifest_work("c", "agent", [])
    folder = tmp_path / "_out" / "clusters" / "c"
    with start() as (backend, _):
        backend.apply(work)
        backend.deliver_credentials("c", Credentials(KeyIds(7), "7:00"))
        texts_by_path = {path: path.read_text() for path in folder.glob("*.yaml")}
        applied = backend.get(Kind.WORK, "c", work["metadata"]["name"]) or {}
        assert is_applied(applied)
    (folder / "dynamic-scoring-config.yaml").write_text("data: {summaries: evil}")
    with start() as (backend, changed_keys):
        assert {path: path.read_text() for path in texts_by_path} == texts_by_path
        assert [key.name for key in changed_keys if key.kind is Kind.WORK] == [work["metadata"]["name"]]
        assert (backend.get(*changed_keys[0]) or {})["metadata"]["uid"] == applied["metadata"]["uid"]
        assert backend.get_delivered_key_ids("c") == KeyIds(7)
    for path in texts_by_path:
        path.write_text(path.read_text().replace("workload:", "workloads:").replace("summaries:", "none:"))
    with start() as (backend, _), structlog.testing.capture_logs():
        assert backend.list(Kind.WORK) == []
        backend.apply(work)
        assert "summaries:" in (folder / "dynamic-scoring-config.yaml").read_text()
        backend.delete(Kind.WORK, "c", work["metadata"]["name"])
        backend.remove_credentials("c")
        assert not folder.exists()


def test_events_are_limited_and_stored_within_bounds(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "_out" / "events.yaml"
    monkeypatch.setattr(directory, "MAX_EVENTS", 30)
    with start() as (backend, _):
        backend.record_event(KEY, "Warning", "Bad", "first")
        backend.record_event(KEY, "Warning", "Bad", "first")
        backend.record_event(KEY, "Normal", "Good", "x")
    with start() as (backend, _):
        for number in range(40):
            backend.record_event(KEY._replace(name=f"c{number % 4}"), "Normal", "Many", str(number))
    events = [(event["reason"], event["message"]) for event in yaml.safe_load(path.read_text())]
    assert events == [("Many", str(number)) for number in range(10, 40)]
    with start() as (backend, _), structlog.testing.capture_logs() as lines:
        for number in range(100):
            backend.record_event(KEY, "Normal", "Many", str(number))
    events = [(event["reason"], event["message"]) for event in yaml.safe_load(path.read_text())]
    assert [message for _, message in events[-25:]] == [str(number) for number in range(25)]
    assert [line["message"] for line in lines if "message" in line] == [str(number) for number in range(25, 100)]


def test_problems_are_written_to_a_file_and_logged_once(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "REPAIR_SECONDS", 0.1)
    report = tmp_path / "_out" / "problems.yaml"
    report.mkdir(parents=True)
    with start(), structlog.testing.capture_logs() as lines:
        # The backend writes it as soon as the obstacle is removed.
        report.rmdir()
        wait_for(report.exists)
        (tmp_path / "c.yaml").write_text(_cluster(hubAcceptsClient="half"))
        wait_for(lambda: yaml.safe_load(report.read_text()))
        (row,) = yaml.safe_load(report.read_text())
        assert (row["file"], row["field"], row["severity"]) == ("c.yaml", "spec.hubAcceptsClient", "error")
        assert row["line"] > 1
        (tmp_path / "d.yaml").write_text("# Nothing.")
        (tmp_path / "c.yaml").write_text(_cluster())
        wait_for(lambda: report.read_text() == "[]\n")
    assert len([line for line in lines if line["event"] == "manifest problem"]) == 1
    (event,) = yaml.safe_load((tmp_path / "_out" / "events.yaml").read_text())
    assert (event["regarding"]["name"], event["reason"], event["type"]) == ("c.yaml", "ManifestProblem", "Warning")
    assert row["message"] in event["message"]


def test_second_hub_on_the_folder_is_refused(start: Start) -> None:
    with start(), pytest.raises(BackendError, match="another hub works on"), start():
        pass
    with start():
        pass


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"manifests": None}, "DSF_MANIFESTS: is required"),
        ({"manifests": Path("/nonexistent/x")}, "DSF_MANIFESTS: /nonexistent/x is not a folder"),
        ({"out_dir": Path("/")}, "DSF_OUT_DIR: / is or contains the folder of manifests"),
        ({"addon_mode": True}, "DSF_ADDON_MODE: goes with DSF_BACKEND=kube"),
    ],
)
def test_settings_that_cannot_be_used(
    tmp_path: Path, settings_factory: SettingsFactory, values: dict[str, object], message: str
) -> None:
    settings = settings_factory(**{"backend": "dir", "manifests": tmp_path, **values})
    with pytest.raises(SettingsError, match=message):
        make_backend(settings)


def test_copies_of_score_files_by_people_are_no_scores(tmp_path: Path, start: Start) -> None:
    (tmp_path / "c.yaml").write_text(_cluster())
    score = make_score_body("c", "scorer", "s")
    with start() as (backend, _):
        backend.apply_score(score, {"scores": []})
        folder = tmp_path / "_out" / "clusters" / "c" / "addonplacementscores"
        for name in ("copy", "not a name"):
            (folder / f"{name}.yaml").write_text((folder / "s.yaml").read_text())
        (folder / "broken.yaml").write_text("{")
        assert [key.name for key in backend.list_keys(Kind.SCORE)] == ["s"]
        assert backend.get(Kind.SCORE, "c", "copy") is None
        assert (backend.get(Kind.SCORE, "c", "s") or {})["status"] == {"scores": []}
        assert backend.get(Kind.SCORE, "c", "broken") is None
