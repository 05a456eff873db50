"""The folder of manifests: what a file that is away or empty for a moment means."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsf.backends import manifestfolder
from dsf.backends.manifestfolder import ManifestFolder

CLUSTER = """\
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata: {name: %s}
spec: {hubAcceptsClient: true}
"""


def _empty(path: Path) -> None:
    path.write_text("")


def _lose_all(path: Path) -> None:
    for one in path.parent.glob("*.yaml"):
        one.unlink()


@pytest.mark.parametrize(
    ("lose", "grace"),
    [(_empty, 300), (Path.unlink, 1), (_lose_all, 300)],
    ids=["emptied", "removed", "all removed"],
)
def test_what_is_away_for_a_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None], grace: int
) -> None:
    now = 100.0
    monkeypatch.setattr(manifestfolder.time, "monotonic", lambda: now)
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default", grace=300)
    path, other = tmp_path / "clusters.yaml", tmp_path / "other.yaml"
    path.write_text(CLUSTER % "one")
    other.write_text(CLUSTER % "other")
    folder.refresh()
    held = dict(folder.objects)
    assert [key.name for key in held] == ["one", "other"]
    # As `yq ... > clusters.yaml` does, an editor, or a share that is unmounted.
    lose(path)
    folder.refresh()
    now += grace - 0.1
    folder.refresh()
    # Only a short grace is worth many looks.
    assert (folder.objects, folder.is_settling) == (held, grace == 1)
    assert all(problem.severity == "note" for problem in folder.problems)
    assert bool(folder.problems) == (grace == 300)
    path.write_text(CLUSTER % "two")
    other.write_text(CLUSTER % "other")
    folder.refresh()
    assert (sorted(key.name for key in folder.objects), folder.is_settling) == (["other", "two"], False)
    assert not folder.problems
    # Not for ever.
    lose(path)
    folder.refresh()
    now += grace + 0.1
    folder.refresh()
    assert "two" not in [key.name for key in folder.objects]
    assert (folder.is_settling, folder.problems) == (False, [])


@pytest.mark.parametrize(
    ("has", "lost", "grace"),
    [
        (["eu/one.yaml"], "eu/one.yaml", 300),
        (["eu/west/one.yaml"], "eu/west", 300),
        (["eu/one.yaml", "eu/.keep"], "eu/one.yaml", 1),
        (["eu/one.yaml", "eu/notes.txt"], "eu/one.yaml", 1),
        (["eu/one.yaml"], "eu", 1),
    ],
    ids=["a mount point", "one above", "a hidden file is left", "another file is left", "the folder is removed"],
)
def test_a_folder_without_anything_left_is_doubted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: list[str], lost: str, grace: int
) -> None:
    """As a share is whose mount point can be listed while it is not mounted."""
    now = 100.0
    monkeypatch.setattr(manifestfolder.time, "monotonic", lambda: now)
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default", grace=300)
    (tmp_path / "other.yaml").write_text(CLUSTER % "other")
    for name in has:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(CLUSTER % "one")
    folder.refresh()
    gone = tmp_path / lost
    gone.unlink() if gone.is_file() else shutil.rmtree(gone)
    folder.refresh()
    now += grace - 0.1
    folder.refresh()
    assert sorted(key.name for key in folder.objects) == ["one", "other"]
    assert [str(problem) for problem in folder.problems] == [
        f"{has[0]}:0: is empty, or gone with all else in its folder; what it had stays for 300 s"
    ] * (grace == 300)
    now += 0.2
    folder.refresh()
    assert [key.name for key in folder.objects] == ["other"]
    assert not folder.problems


def test_a_file_that_moved_out_of_its_folder_is_not_missed(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default", grace=300)
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "one.yaml").write_text(CLUSTER % "one")
    folder.refresh()
    (tmp_path / "eu" / "one.yaml").rename(tmp_path / "one.yaml")
    folder.refresh()
    assert [held.file for held in folder.objects.values()] == ["one.yaml"]
    assert not folder.problems


def test_a_file_that_is_empty_when_the_hub_starts_keeps_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "clusters.yaml"
    path.write_text(CLUSTER % "one")
    before = ManifestFolder(tmp_path, tmp_path / "out", "default")
    before.refresh()
    _empty(path)
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default", grace=300)
    folder.restore(before.objects)
    folder.refresh(grace=0)
    assert folder.objects == before.objects


class _Late(ManifestFolder):
    """A file changes after it was listed and before it is read."""

    change: Callable[[], object] | None = None

    def _scan(self) -> Iterator[tuple[str, Any]]:
        yield from [*super()._scan()]
        if self.change is not None:
            self.change()


@pytest.mark.parametrize("lose", [_empty, Path.unlink], ids=["emptied", "removed"])
def test_what_is_lost_between_two_looks_stays_for_a_moment(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    folder = _Late(tmp_path, tmp_path / "out", "default")
    (tmp_path / "notes.yaml").write_text("# No object.")
    path = tmp_path / "clusters.yaml"
    path.write_text(CLUSTER % "one")
    folder.refresh()
    path.write_text(f"{CLUSTER % 'one'}# changed\n")
    folder.change = lambda: lose(path)
    folder.refresh()
    folder.change = None
    for _ in range(2):
        assert [key.name for key in folder.objects] == ["one"]
        folder.refresh()
    assert folder.is_settling == (lose is Path.unlink)
    path.write_text(CLUSTER % "two")
    folder.refresh()
    assert ([key.name for key in folder.objects], folder.is_settling) == (["two"], False)


def test_a_link_that_leads_nowhere_is_a_problem_of_its_own(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    for name in ("a", "z"):
        (tmp_path / f"{name}.yaml").write_text(CLUSTER % name)
    for name in ("circle.yaml", "circle"):
        (tmp_path / name).symlink_to(name)
    (tmp_path / "away.yaml").symlink_to("nothing")
    for _ in range(2):
        folder.refresh(grace=0)
        assert sorted(key.name for key in folder.objects) == ["a", "z"]
        assert [str(problem) for problem in folder.problems] == [
            "circle.yaml:1: cannot be read: Too many levels of symbolic links"
        ]


def test_what_a_folder_had_that_cannot_be_listed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    for name in ("eu/one", "eu/west/two", "eu2/three", "four"):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CLUSTER % path.stem)
    folder.refresh()
    scandir = os.scandir

    def refused(path: str) -> Any:
        # Root may list everything.
        if path == str(tmp_path / "eu"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    shutil.rmtree(tmp_path / "eu2")
    assert folder.refresh(grace=0)
    assert sorted(key.name for key in folder.objects) == ["four", "one", "two"]
    assert [str(problem) for problem in folder.problems] == [
        "eu:0: cannot be listed (Permission denied); what it had stays until it can"
    ]
    assert not folder.refresh(grace=0)
    monkeypatch.undo()
    (tmp_path / "eu" / "one.yaml").unlink()
    assert folder.refresh(grace=0)
    assert (sorted(key.name for key in folder.objects), folder.problems) == (["four", "two"], [])


def test_a_file_that_was_always_empty_is_nothing(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    (tmp_path / "empty.yaml").write_text("")
    folder.refresh()
    assert (folder.objects, folder.problems, folder.is_settling) == ({}, [], False)


def test_names_that_are_not_utf_8_are_skipped_and_said(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    (tmp_path / "good.yaml").write_text(CLUSTER % "good")
    root = os.fsencode(tmp_path)
    os.mkdir(root + b"/sub\xe9")
    for name in (b"/bad\xff.yaml", b"/sub\xe9/b.yaml", b"/other\xff.txt"):
        with open(root + name, "w") as file:
            file.write(CLUSTER % "bad")
    assert folder.refresh()
    assert [key.name for key in folder.objects] == ["good"]
    assert [str(problem) for problem in folder.problems] == [
        "bad\\xff.yaml:0: its name is not UTF-8; give it another one",
        "sub\\xe9:0: its name is not UTF-8; give it another one",
    ]
    assert not folder.refresh(), "it is said once"
    os.rename(root + b"/bad\xff.yaml", root + b"/bad.yaml")
    os.rename(root + b"/sub\xe9", root + b"/.sub")
    assert folder.refresh()
    assert [key.name for key in folder.objects] == ["bad", "good"]
    assert not folder.problems


def test_of_many_new_files_each_scan_reads_some_and_misses_no_edit(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    known = tmp_path / "z-known.yaml"
    known.write_text(CLUSTER % "known")
    folder.refresh()
    (tmp_path / "many").mkdir()
    for number in range(5):
        (tmp_path / "many" / f"{number}.yaml").write_text(CLUSTER % f"c{number}")
    known.write_text((CLUSTER % "known").replace("true", "false"))
    assert folder.refresh(most_new=2)
    [edited] = [one.manifest for key, one in folder.objects.items() if key.name == "known"]
    assert edited["spec"]["hubAcceptsClient"] is False
    counts = [len(folder.objects)]
    while folder.is_settling:
        folder.refresh(most_new=2)
        counts.append(len(folder.objects))
    assert counts == [3, 5, 6]
    # A folder that gets another name loses nothing meanwhile, however long the other names take to read.
    before = folder.objects.keys()
    (tmp_path / "many").rename(tmp_path / "renamed")
    folder.refresh(grace=0.0, most_new=2)
    assert folder.objects.keys() == before
    while folder.is_settling:
        folder.refresh(grace=0.0, most_new=2)
        assert folder.objects.keys() == before
    assert all(one.file.startswith(("renamed/", "z-")) for one in folder.objects.values())
