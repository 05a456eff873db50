"""Files of the out folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.api import kubeyaml
from dsf.backends.eventlog import LIMIT, EventLog
from dsf.backends.files import read_yaml, remove, write_text
from dsf.backends.outfolder import OutFolder, merged
from dsf.backends.protocol import Kind, ObjectKey
from dsf.errors import BackendError

KEY = ObjectKey(Kind.SCORER, "hub", "s")


def test_writing_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.yaml"
    write_text(path, "x: 1\n", mode=0o600)
    write_text(path, "x: 2\n", mode=0o600)
    assert [found.name for found in path.parent.iterdir()] == ["b.yaml"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_yaml(path) == {"x": 2}


def test_a_file_that_cannot_be_written_is_said_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match=r"cannot write .*file/x\.yaml"):
        write_text(tmp_path / "file" / "x.yaml", "")


def test_times_stay_text_and_nothing_is_an_alias(tmp_path: Path) -> None:
    shared = {"a": "2026-01-01T00:00:00Z"}
    path = tmp_path / "x.yaml"
    write_text(path, kubeyaml.dump({"one": shared, "two": shared}))
    assert "&" not in path.read_text()
    assert read_yaml(path) == {"one": shared, "two": shared}


@pytest.mark.parametrize("text", ["a: [", "\ttab: 1", "!!python/object:os.system {}", "&a [*a]"])
def test_what_is_no_yaml_any_more_is_nothing(tmp_path: Path, text: str) -> None:
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


def test_edits_of_delivered_files_are_seen_once(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "hub")
    for cluster in ("a", "b", "c"):
        out.deliver(out.cluster(cluster) / "x.yaml", "x: 1\n")
    work = ObjectKey(Kind.WORK, "d", "work")
    out.write(work, {"metadata": {"name": "work"}})
    OutFolder(tmp_path, "hub").deliver(out.path(work), "of another process\n")
    out.read(work)
    assert out.edited_clusters() == set()
    (out.cluster("a") / "x.yaml").write_text("x: 22\n")
    (out.cluster("b") / "x.yaml").unlink()
    out.withdraw(out.cluster("c") / "x.yaml")
    assert [out.edited_clusters(), out.edited_clusters()] == [{"a", "b"}, set()]
    out.deliver(out.cluster("a") / "x.yaml", "x: 1\n", mode=0o600)
    assert (out.cluster("a") / "x.yaml").read_text() == "x: 1\n"
    assert (out.cluster("a") / "x.yaml").stat().st_mode & 0o777 == 0o600
    assert out.edited_clusters() == set()


def test_keys_are_found_without_reading(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "hub")
    assert [*out.keys(Kind.SCORE)] == []
    wanted = {ObjectKey(Kind.SCORE, cluster, "s") for cluster in ("a", "b")} | {ObjectKey(Kind.SCORE, "a", "t")}
    for key in (*wanted, ObjectKey(Kind.WORK, "a", "work")):
        write_text(out.path(key), "no: [yaml")
    write_text(tmp_path / "clusters/a/config-map.yaml", "")
    (tmp_path / "clusters/a/addonplacementscores/.s.yaml.1.tmp").write_text("")
    assert set(out.keys(Kind.SCORE)) == wanted
    assert [*out.keys(Kind.WORK)] == [ObjectKey(Kind.WORK, "a", "work")]


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "hub")
    for name in ("../x", "a/b", "", ".."):
        with pytest.raises(BackendError):
            out.cluster(name)
    with pytest.raises(BackendError):
        out.path(ObjectKey(Kind.SCORE, "c", "../../x"))


def test_another_namespace_is_in_the_file_name(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "hub")
    assert out.path(KEY) == tmp_path / "dynamicscorers/s.yaml"
    assert out.path(ObjectKey(Kind.SCORER, "team", "s")) == tmp_path / "dynamicscorers/team_s.yaml"


def test_events_are_counted_kept_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "events.yaml"
    events = EventLog(path)
    events.load()
    events.add(KEY, "Warning", "Bad", "first")
    events.add(KEY, "Normal", "Good", "x")
    events.add(KEY, "Warning", "Bad", "first")
    events.write()
    assert [(event["reason"], event["count"]) for event in read_yaml(path)] == [("Good", 1), ("Bad", 2)]
    again = EventLog(path)
    again.load()
    again.add(KEY, "Warning", "Bad", "first")
    again.write()
    assert read_yaml(path)[-1]["count"] == 3
    for number in range(LIMIT + 10):
        again.add(KEY, "Normal", "Many", str(number))
    again.write()
    assert len(read_yaml(path)) == LIMIT


def test_applying_keeps_what_belongs_to_others() -> None:
    before = {"metadata": {"labels": {"theirs": "1", "ours": "old"}, "finalizers": ["x"]}, "spec": {"list": [1, 2]}}
    after = merged(before, {"metadata": {"labels": {"ours": "new"}}, "spec": {"list": [3]}})
    assert after == {
        "metadata": {"labels": {"theirs": "1", "ours": "new"}, "finalizers": ["x"]},
        "spec": {"list": [3]},
    }
    assert before["spec"] == {"list": [1, 2]}
