"""Files of the out folder, which users may edit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api import kubeyaml
from dsf.api.score import make_score_body, make_score_status
from dsf.backends.outfolder import DirectoryScores, OutFolder, read_yaml, remove, write_text
from dsf.backends.protocol import Kind, ObjectKey
from dsf.errors import BackendError, ForeignObjectError, ObjectNotFoundError

KEY = ObjectKey(Kind.SCORER, "hub", "s")


def test_writing_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.yaml"
    write_text(path, "x: 1\n", mode=0o600)
    write_text(path, "x: 2\n", mode=0o600)
    assert [file.name for file in path.parent.iterdir()] == ["b.yaml"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_yaml(path) == {"x": 2}


def test_unwritable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match=r"cannot write .*file/x\.yaml"):
        write_text(tmp_path / "file" / "x.yaml", "")


def test_written_yaml_keeps_times_as_text_and_has_no_aliases(tmp_path: Path) -> None:
    shared = {"a": "2026-01-01T00:00:00Z"}
    path = tmp_path / "x.yaml"
    write_text(path, kubeyaml.dump({"one": shared, "two": shared}))
    assert "&" not in path.read_text()
    assert read_yaml(path) == {"one": shared, "two": shared}


@pytest.mark.parametrize("text", ["a: [", "\ttab: 1", "!!python/object:os.system {}", "&a [*a]"])
def test_invalid_yaml_is_read_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert OutFolder(tmp_path, "hub").read(KEY) is None
    read_yaml(tmp_path / "x.yaml")


def test_removing_takes_empty_folders_along_up_to_the_root(tmp_path: Path) -> None:
    write_text(tmp_path / "a/b/c.yaml", "")
    write_text(tmp_path / "a/d.yaml", "")
    remove(tmp_path / "a/b/c.yaml", up_to=tmp_path)
    assert not (tmp_path / "a/b").exists()
    assert (tmp_path / "a/d.yaml").exists()
    remove(tmp_path / "a/d.yaml", up_to=tmp_path)
    assert [*tmp_path.iterdir()] == []
    remove(tmp_path / "a/b/c.yaml", up_to=tmp_path)


def test_edits_of_owned_files_are_put_right(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "hub")
    files = [out.get_cluster_folder(cluster) / "x.yaml" for cluster in ("a", "b", "c", "d")]
    for file in files:
        out.put(file, "x: 1\n", mode=0o600)
    OutFolder(tmp_path, "hub").put(files[3].with_name("of-another-process"), "")
    files[0].write_text("x: 22\n")
    files[1].unlink()
    out.remove(files[2])
    out.repair()
    assert [file.exists() and file.read_text() for file in files] == ["x: 1\n", "x: 1\n", False, "x: 1\n"]
    assert files[1].stat().st_mode & 0o777 == 0o600


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "hub")
    for name in ("../x", "a/b", "", ".."):
        with pytest.raises(BackendError):
            out.get_cluster_folder(name)
    with pytest.raises(BackendError):
        out.get_path(ObjectKey(Kind.SCORE, "c", "../../x"))


def test_foreign_namespace_is_in_the_file_name(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "hub")
    assert out.get_path(KEY) == tmp_path / "dynamicscorers/s.yaml"
    assert out.get_path(ObjectKey(Kind.SCORER, "team", "s")) == tmp_path / "dynamicscorers/team_s.yaml"


@pytest.mark.parametrize(
    "change",
    [{"namespace": ["x"]}, {"namespace": 5}, {"namespace": "A B"}, {"name": "A B"}, {"name": "another"}],
)
def test_object_that_does_not_match_its_file_name_is_ignored(tmp_path: Path, change: dict[str, Any]) -> None:
    out = OutFolder(tmp_path, "default")
    path = tmp_path / "dynamicscorers" / "one.yaml"
    path.parent.mkdir()
    manifest = {"kind": "DynamicScorer", "metadata": {"name": "one", "namespace": "default"}, "status": "text"}
    path.write_text(yaml.safe_dump(manifest))
    (stored_manifest,) = out.iter_objects(Kind.SCORER)
    assert "status" not in stored_manifest
    path.write_text(yaml.safe_dump({**manifest, "metadata": manifest["metadata"] | change}))  # type: ignore[operator]
    assert list(out.iter_objects(Kind.SCORER)) == []


CLUSTER = "c1"
SCORE = ObjectKey(Kind.SCORE, CLUSTER, "s1")
MANIFEST = make_score_body(CLUSTER, "scorer", "s1")


def status(value: int) -> dict[str, Any]:
    """Return a status with one item."""
    now = datetime(2026, 11, 29, tzinfo=UTC)
    return make_score_status([("item", value)], valid_until=now + timedelta(minutes=5), now=now)


@pytest.fixture
def out(tmp_path: Path) -> OutFolder:
    """Return an out folder with one cluster."""
    (tmp_path / "managedclusters").mkdir()
    (tmp_path / "managedclusters" / f"{CLUSTER}.yaml").touch()
    return OutFolder(tmp_path, "default")


def test_renewed_score_keeps_its_identity(out: OutFolder, tmp_path: Path) -> None:
    DirectoryScores(out).apply_score(MANIFEST, status(1))
    first = out.read(SCORE) or {}
    for value in (2, 3):
        DirectoryScores(out).apply_score(MANIFEST, status(value))
        assert out.read(SCORE) == {**first, "status": status(value)}
    assert first["metadata"]["uid"]
    # A new object has another uid.
    backend = DirectoryScores(out)
    backend.delete_score("c1", "s1")
    backend.delete_score("c1", "s1")
    assert out.read(SCORE) is None
    assert not (tmp_path / "clusters").exists()
    backend.apply_score(MANIFEST, status(9))
    assert (out.read(SCORE) or {})["metadata"]["uid"] != first["metadata"]["uid"]


def test_missing_cluster_gets_no_score(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="cluster 'c1' is not there"):
        DirectoryScores(OutFolder(tmp_path, "default")).apply_score(MANIFEST, status(1))


def test_foreign_score_is_neither_written_nor_deleted(out: OutFolder) -> None:
    foreign = {**MANIFEST, "metadata": {"namespace": CLUSTER, "name": "s1"}, "status": {"scores": []}}
    write_text(out.get_path(SCORE), kubeyaml.dump(foreign))
    backend = DirectoryScores(out)
    assert backend.refresh_scores() == []
    assert backend.find_score(CLUSTER, "s1") is None
    with pytest.raises(ForeignObjectError, match=r"belongs to somebody else.*managed-by"):
        backend.apply_score(MANIFEST, status(1))
    backend.delete_score(CLUSTER, "s1")
    assert out.read(SCORE) == foreign


def test_score_without_the_label_is_released(out: OutFolder) -> None:
    backend = DirectoryScores(out)
    backend.apply_score(MANIFEST, status(1))
    text = kubeyaml.dump({**(out.read(SCORE) or {}), "metadata": {"namespace": CLUSTER, "name": "s1"}})
    write_text(out.get_path(SCORE), text)
    assert backend.refresh_scores() == [SCORE]
    assert backend.find_score(CLUSTER, "s1") is None
    with pytest.raises(ForeignObjectError):
        backend.apply_score(MANIFEST, status(2))
    backend.delete_score(CLUSTER, "s1")
    assert out.get_path(SCORE).read_text() == text


def test_changes_of_score_files_are_reported(out: OutFolder) -> None:
    backend = DirectoryScores(out)
    first_score = backend.apply_score(MANIFEST, status(1))
    assert backend.refresh_scores() == []
    assert backend.find_score(CLUSTER, "s1") == first_score
    write_text(out.get_path(SCORE), kubeyaml.dump({**(out.read(SCORE) or {}), "status": status(99)}))
    assert backend.refresh_scores() == [SCORE]
    edited = backend.find_score(CLUSTER, "s1")
    assert edited is not None
    assert edited.digest != first_score.digest
    remove(out.get_path(SCORE), up_to=out.root)
    assert backend.refresh_scores() == [SCORE]
    assert backend.find_score(CLUSTER, "s1") is None
    # The next hub reads the existing files.
    backend.apply_score(MANIFEST, status(1))
    assert DirectoryScores(out).refresh_scores() == [SCORE]
