"""The folder of manifests: errors, and files that are missing or empty for a moment."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
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

WRONG = """\
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata:
  name: wrong
spec:
  description: x
  configURL: http://127.0.0.1:9/config
  configSyncMode: Ful
  scoring:
    param: {}
"""


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        (
            {"sub/wrong.yaml": f"# a comment\n---\n{WRONG}---\n{CLUSTER % 'c'}"},
            [
                "sub/wrong.yaml:10: spec.configSyncMode: 'Ful' is not one of Full, None",
                (
                    "sub/wrong.yaml:12: spec.scoring.param: is not a known field; allowed are expression, host, path, "
                    "params, auth, tls; did you mean params?"
                ),
            ],
        ),
        (
            {"a.yaml": CLUSTER % "c", "b.yaml": "# One that is there twice.\n---\n" + CLUSTER % "c"},
            [
                (
                    "b.yaml:3: metadata.name: ManagedCluster 'c' is also in a.yaml, line 1, and that one counts; "
                    "remove one of them"
                )
            ],
        ),
        (
            {"c.yaml": (CLUSTER % "c").replace("hubAcceptsClient: true", "")},
            [
                (
                    "c.yaml:1: spec.hubAcceptsClient: is missing, so the cluster is not accepted and nothing runs on "
                    "it; true accepts it"
                )
            ],
        ),
        (
            {"c.yaml": CLUSTER % "c", "big.yaml": "#" * (5 * 1024 * 1024), "binary.yaml": b"a: 1\nb: \xff\xfe\n"},
            [
                "big.yaml:1: is larger than the 4194304 bytes a file of manifests may have",
                "binary.yaml:2: is not UTF-8 text",
            ],
        ),
        (
            {
                "c.yaml": CLUSTER % "c",
                **dict.fromkeys((".hidden.yaml", ".dir/x.yaml", "x.yaml~", ".x.yaml.swp", "#x.yaml#"), WRONG),
                **dict.fromkeys(("notes.txt", "out/own.yaml", "another-out/x.yaml", "another-out/.hub/lock"), WRONG),
            },
            [],
        ),
    ],
    ids=["mistakes", "twice", "not accepted", "large and binary", "no manifests"],
)
def test_each_error_names_its_place_and_blocks_no_other_file(
    tmp_path: Path, files: dict[str, str | bytes], problems: list[str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    for _ in range(2):
        folder.refresh()
        assert [str(problem) for problem in folder.problems] == problems
        assert [key.name for key in folder.objects] == ["c"]


def test_half_written_file_is_ignored_until_complete(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(CLUSTER % "c")
    (tmp_path / "notes.yaml").write_text("# No object.")
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    folder.refresh()
    objects_before = dict(folder.objects)
    path.write_text((CLUSTER % "c").replace("true}", "'half"))
    folder.refresh()
    # A hub that starts while the file is broken keeps the objects too.
    anew = ManifestFolder(tmp_path, tmp_path / "out", "default")
    anew.restore(objects_before)
    anew.refresh(grace=0)
    for each in (folder, anew):
        assert each.objects == objects_before
        [problem] = each.problems
        assert str(problem).startswith("c.yaml:")
        assert "is not YAML" in problem.message
    # Deleting the file removes its objects.
    path.unlink()
    anew.refresh(grace=0)
    assert (anew.objects, anew.problems) == ({}, [])


def test_first_file_of_an_object_takes_precedence(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    (tmp_path / "z.yaml").write_text(CLUSTER % "c")
    folder.refresh()
    (tmp_path / "a-copy.yaml").write_text((CLUSTER % "c").replace("true", "false"))
    folder.refresh()
    assert [folder_object.file for folder_object in folder.objects.values()] == ["z.yaml"]
    assert [problem.source for problem in folder.problems] == ["a-copy.yaml"]
    (tmp_path / "z.yaml").unlink()
    folder.refresh(grace=0)
    assert [folder_object.manifest["spec"] for folder_object in folder.objects.values()] == [
        {"hubAcceptsClient": False}
    ]
    assert folder.problems == []


def test_missing_folder_keeps_all_objects(tmp_path: Path) -> None:
    root = tmp_path / "manifests"
    root.mkdir()
    (root / "c.yaml").write_text(CLUSTER % "c")
    folder = ManifestFolder(root, tmp_path / "out", "default")
    folder.refresh()
    objects_before = dict(folder.objects)
    root.rename(tmp_path / "unmounted")
    folder.refresh(grace=0)
    [problem] = folder.problems
    assert "nothing is changed until it can" in problem.message
    assert folder.objects == objects_before
    (tmp_path / "unmounted").rename(root)
    folder.refresh(grace=0)
    assert (folder.objects, folder.problems) == (objects_before, [])


def _empty(path: Path) -> None:
    path.write_text("")


def _lose_all(path: Path) -> None:
    for file in path.parent.glob("*.yaml"):
        file.unlink()


@pytest.mark.parametrize(
    ("lose", "grace"),
    [(_empty, 300), (Path.unlink, 1), (_lose_all, 300)],
    ids=["emptied", "removed", "all removed"],
)
def test_missing_file_keeps_its_objects_for_the_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None], grace: int
) -> None:
    now = 100.0
    monkeypatch.setattr(manifestfolder.time, "monotonic", lambda: now)
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default", grace=300)
    path, other = tmp_path / "clusters.yaml", tmp_path / "other.yaml"
    path.write_text(CLUSTER % "one")
    other.write_text(CLUSTER % "other")
    folder.refresh()
    objects_before = dict(folder.objects)
    assert [key.name for key in objects_before] == ["one", "other"]
    # `yq ... > clusters.yaml`, an editor or an unmounted share has this effect.
    lose(path)
    folder.refresh()
    now += grace - 0.1
    folder.refresh()
    assert folder.objects == objects_before
    assert all(problem.severity == "note" for problem in folder.problems)
    assert bool(folder.problems) == (grace == 300)
    path.write_text(CLUSTER % "two")
    other.write_text(CLUSTER % "other")
    folder.refresh()
    assert sorted(key.name for key in folder.objects) == ["other", "two"]
    assert not folder.problems
    # The grace period ends.
    lose(path)
    folder.refresh()
    now += grace + 0.1
    folder.refresh()
    assert "two" not in [key.name for key in folder.objects]
    assert folder.problems == []


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
def test_emptied_folder_keeps_its_objects_for_the_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: list[str], lost: str, grace: int
) -> None:
    """An unmounted share whose mount point can be listed looks like this."""
    now = 100.0
    monkeypatch.setattr(manifestfolder.time, "monotonic", lambda: now)
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default", grace=300)
    (tmp_path / "other.yaml").write_text(CLUSTER % "other")
    for name in has:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(CLUSTER % "one")
    folder.refresh()
    lost_path = tmp_path / lost
    lost_path.unlink() if lost_path.is_file() else shutil.rmtree(lost_path)
    folder.refresh()
    now += grace - 0.1
    folder.refresh()
    assert sorted(key.name for key in folder.objects) == ["one", "other"]
    assert [str(problem) for problem in folder.problems] == [
        f"{has[0]}:0: is empty, or its folder has no files any more; its objects stay in force for 300 s"
    ] * (grace == 300)
    now += 0.2
    folder.refresh()
    assert [key.name for key in folder.objects] == ["other"]
    assert not folder.problems


def test_moved_file_is_not_reported_missing(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default", grace=300)
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "one.yaml").write_text(CLUSTER % "one")
    folder.refresh()
    (tmp_path / "eu" / "one.yaml").rename(tmp_path / "one.yaml")
    folder.refresh()
    assert [folder_object.file for folder_object in folder.objects.values()] == ["one.yaml"]
    assert not folder.problems


def test_file_empty_at_start_keeps_its_objects(tmp_path: Path) -> None:
    path = tmp_path / "clusters.yaml"
    path.write_text(CLUSTER % "one")
    before = ManifestFolder(tmp_path, tmp_path / "out", "default")
    before.refresh()
    _empty(path)
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default", grace=300)
    folder.restore(before.objects)
    folder.refresh(grace=0)
    assert folder.objects == before.objects


def test_broken_link_is_reported_alone(tmp_path: Path) -> None:
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


def test_unlistable_folder_keeps_its_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    for name in ("eu/one", "eu/west/two", "eu2/three", "four"):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CLUSTER % path.stem)
    folder.refresh()
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        # Root may list every folder.
        if str(path) == str(tmp_path / "eu"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    shutil.rmtree(tmp_path / "eu2")
    folder.refresh(grace=0)
    assert sorted(key.name for key in folder.objects) == ["four", "one", "two"]
    assert [str(problem) for problem in folder.problems] == [
        "eu:0: cannot be listed (Permission denied); its objects stay in force until it can"
    ]
    folder.refresh(grace=0)
    monkeypatch.undo()
    (tmp_path / "eu" / "one.yaml").unlink()
    folder.refresh(grace=0)
    assert (sorted(key.name for key in folder.objects), folder.problems) == (["four", "two"], [])


def test_folders_may_be_nested_deeper_than_python_calls_itself(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    (tmp_path / "near.yaml").write_text(CLUSTER % "near")
    nested = [f"{tmp_path}{'/a' * depth}" for depth in range(1, 1100)]
    for path in nested:
        os.mkdir(path)
    try:
        folder.refresh()
    finally:
        # Pytest's removal of old folders calls scandir too.
        for path in reversed(nested):
            os.rmdir(path)
    assert ([key.name for key in folder.objects], folder.problems) == (["near"], [])


def test_always_empty_file_is_ignored(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    (tmp_path / "empty.yaml").write_text("")
    folder.refresh()
    assert (folder.objects, folder.problems) == ({}, [])


def test_names_that_are_not_utf_8_are_skipped_and_reported(tmp_path: Path) -> None:
    folder = ManifestFolder(tmp_path, tmp_path / "out", "default")
    (tmp_path / "good.yaml").write_text(CLUSTER % "good")
    root = os.fsencode(tmp_path)
    os.mkdir(root + b"/sub\xe9")
    for name in (b"/bad\xff.yaml", b"/sub\xe9/b.yaml", b"/other\xff.txt"):
        with open(root + name, "w") as file:
            file.write(CLUSTER % "bad")
    folder.refresh()
    assert [key.name for key in folder.objects] == ["good"]
    assert [str(problem) for problem in folder.problems] == [
        "bad\\xff.yaml:0: its name is not UTF-8; give it another one",
        "sub\\xe9:0: its name is not UTF-8; give it another one",
    ]
    folder.refresh()
    os.rename(root + b"/bad\xff.yaml", root + b"/bad.yaml")
    os.rename(root + b"/sub\xe9", root + b"/.sub")
    folder.refresh()
    assert [key.name for key in folder.objects] == ["bad", "good"]
    assert not folder.problems
