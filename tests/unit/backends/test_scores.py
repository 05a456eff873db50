"""Scores as files: what an object keeps when it is written again, and what is read for it."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from dsf.backends import scores
from dsf.backends.files import read_yaml
from dsf.backends.outfolder import OutFolder
from dsf.backends.protocol import Kind, ObjectKey
from dsf.backends.scores import DirectoryScores

MANIFEST = {"kind": "AddOnPlacementScore", "metadata": {"namespace": "c1", "name": "s1"}}
KEY = ObjectKey(Kind.SCORE, "c1", "s1")


def test_a_renewal_reads_no_file_and_keeps_what_the_object_had(tmp_path: Path) -> None:
    out = OutFolder(tmp_path, "default")
    (tmp_path / "managedclusters").mkdir()
    (tmp_path / "managedclusters" / "c1.yaml").touch()
    backend = DirectoryScores(out)
    with mock.patch.object(scores, "read_yaml", wraps=read_yaml) as reads:
        for value in range(3):
            backend.apply_score(MANIFEST, {"value": value})
        # Only to see that there was none.
        assert reads.call_count == 1
        first = out.read(KEY) or {}
        assert first["status"] == {"value": 2}
        assert first["metadata"]["uid"]
        # Another worker writes it: it is read once more, and stays the same object.
        DirectoryScores(out).apply_score(MANIFEST, {"value": 7})
        backend.apply_score(MANIFEST, {"value": 8})
        assert reads.call_count == 3
        assert (out.read(KEY) or {}) == {**first, "status": {"value": 8}}
        # A new one has another uid.
        backend.delete_score("c1", "s1")
        assert out.read(KEY) is None
        backend.apply_score(MANIFEST, {"value": 9})
    assert (out.read(KEY) or {})["metadata"]["uid"] != first["metadata"]["uid"]
