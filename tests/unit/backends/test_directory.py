"""The folder backend as a whole: what objects keep, and what stops it or does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from dsf.backends import make_backend
from dsf.backends.manifestfolder import ManifestFolder
from dsf.backends.protocol import Backend, Kind, ObjectKey
from dsf.errors import BackendError, ObjectNotFoundError, SettingsError
from tests.conftest import SettingsFactory
from tests.support.wait import wait_for

KEY = ObjectKey(Kind.CLUSTER, "", "c")
Start = Callable[[], contextlib.AbstractContextManager[tuple[Backend, list[ObjectKey]]]]


def _cluster(**spec: Any) -> str:
    manifest = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
    return yaml.safe_dump({**manifest, "metadata": {"name": "c"}, "spec": {"hubAcceptsClient": True, **spec}})


@pytest.fixture
def start(tmp_path: Path, settings_factory: SettingsFactory) -> Start:
    """Runs a backend on the test's folder, with what it reports."""

    @contextlib.contextmanager
    def run() -> Iterator[tuple[Backend, list[ObjectKey]]]:
        backend = make_backend(settings_factory(backend="dir", manifests=tmp_path, departure_grace=0))
        told: list[ObjectKey] = []
        backend.start(told.append)
        try:
            yield backend, told
        finally:
            backend.stop()

    return run


def test_an_object_stays_itself_through_edits_renames_and_restarts(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(_cluster())
    with start() as (backend, told):
        assert (told, [*backend.keys(Kind.CLUSTER)]) == ([KEY], [KEY])
        first = dict(backend.list(Kind.CLUSTER)[0]["metadata"])
        assert first["generation"] == 1
        backend.update_status(*KEY, {"seen": True})
        with pytest.raises(ObjectNotFoundError):
            backend.update_status(Kind.CLUSTER, "", "stranger", {})
    # As an editor that removes the file first, and under another name.
    path.rename(tmp_path / "renamed.yaml")
    with start() as (backend, told):
        assert told == [KEY]
        after = backend.get(*KEY) or {}
        assert {name: after["metadata"][name] for name in ("uid", "creationTimestamp", "generation")} == {
            name: first[name] for name in ("uid", "creationTimestamp", "generation")
        }
        assert after["status"] == {"seen": True}
        told.clear()
        (tmp_path / "renamed.yaml").write_text(_cluster(hubAcceptsClient=False))
        wait_for(lambda: told == [KEY])
        after = backend.get(*KEY) or {}
        assert (after["metadata"]["uid"], after["metadata"]["generation"]) == (first["uid"], 2)
        (tmp_path / "renamed.yaml").unlink()
        wait_for(lambda: backend.get(*KEY) is None)
        assert not (tmp_path / "_out" / "managedclusters").exists()
    path.write_text(_cluster())
    with start() as (backend, _):
        assert (backend.get(*KEY) or {})["metadata"]["uid"] != first["uid"]


def test_a_look_that_fails_is_not_the_last(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def refresh(*_: object, **__: object) -> bool:
        looks.append(None)
        raise RuntimeError("a mistake of the hub's")

    with start() as (backend, _), structlog.testing.capture_logs():
        with monkeypatch.context() as patched:
            patched.setattr(ManifestFolder, "refresh", refresh)
            wait_for(lambda: len(looks) >= 2)
        (tmp_path / "c.yaml").write_text(_cluster())
        wait_for(lambda: backend.get(*KEY))


def test_an_object_that_cannot_be_stored_is_stored_later(tmp_path: Path, start: Start) -> None:
    with start() as (backend, _), structlog.testing.capture_logs() as lines:
        (tmp_path / "_out" / "managedclusters").write_text("in the way")
        (tmp_path / "c.yaml").write_text(_cluster())
        wait_for(lambda: lines)
        assert backend.get(*KEY) is None
        (tmp_path / "_out" / "managedclusters").unlink()
        wait_for(lambda: backend.get(*KEY))


def test_a_second_hub_on_the_folder_is_refused(start: Start) -> None:
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
