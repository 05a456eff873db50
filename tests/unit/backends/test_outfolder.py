"""The hub's own files, which users may edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.backends.eventlog import EventLog, ProblemReport
from dsf.backends.outfolder import OutFolder
from dsf.backends.protocol import Kind


@pytest.mark.parametrize(
    "change",
    [{"namespace": ["x"]}, {"namespace": 5}, {"namespace": "A B"}, {"name": "A B"}, {"name": "another"}],
)
def test_an_object_that_is_not_that_of_its_file_is_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    out = OutFolder(tmp_path, "default")
    path = tmp_path / "dynamicscorers" / "one.yaml"
    path.parent.mkdir()
    manifest = {"kind": "DynamicScorer", "metadata": {"name": "one", "namespace": "default"}, "status": "text"}
    path.write_text(yaml.safe_dump(manifest))
    (found,) = out.all(Kind.SCORER)
    assert "status" not in found
    path.write_text(yaml.safe_dump({**manifest, "metadata": manifest["metadata"] | change}))  # type: ignore[operator]
    assert list(out.all(Kind.SCORER)) == []


def test_problems_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    path = tmp_path / "problems.yaml"
    path.mkdir()
    report = ProblemReport(path, EventLog(tmp_path / "events.yaml"))
    report.update([])
    path.rmdir()
    report.update([])
    assert path.read_text() == "[]\n"
