"""Scores as files: what an object keeps when it is written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.backends.outfolder import OutFolder
from dsf.backends.protocol import Kind, ObjectKey
from dsf.backends.scores import DirectoryScores
from dsf.errors import ObjectNotFoundError

MANIFEST = {"kind": "AddOnPlacementScore", "metadata": {"namespace": "c1", "name": "s1"}}
KEY = ObjectKey(Kind.SCORE, "c1", "s1")


def test_a_renewal_keeps_what_the_object_had(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "default")
    (tmp_path / "managedclusters").mkdir()
    (tmp_path / "managedclusters" / "c1.yaml").touch()
    DirectoryScores(out).apply_score(MANIFEST, {"value": 1})
    first = out.read(KEY) or {}
    for value in (2, 3):
        DirectoryScores(out).apply_score(MANIFEST, {"value": value})
        assert out.read(KEY) == {**first, "status": {"value": value}}
    assert first["metadata"]["uid"]
    # A new one has another uid.
    backend = DirectoryScores(out)
    backend.delete_score("c1", "s1")
    backend.delete_score("c1", "s1")
    assert out.read(KEY) is None
    assert not (tmp_path / "clusters").exists()
    backend.apply_score(MANIFEST, {"value": 9})
    assert (out.read(KEY) or {})["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_cluster_that_is_gone_gets_no_score(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="cluster 'c1' is not there"):
        DirectoryScores(OutFolder(tmp_path, "default")).apply_score(MANIFEST, {})
