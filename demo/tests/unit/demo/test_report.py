"""Manifests that the demo's report reads repeatedly."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from dsf.api.manifest import parse_documents
from dsf.demo.report import DemoReport

CLUSTER = "{apiVersion: cluster.open-cluster-management.io/v1, kind: ManagedCluster, metadata: {name: NAME}}"


def test_changed_manifest_is_parsed_again_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "other"):
        (tmp_path / f"{name}.yaml").write_text(CLUSTER.replace("NAME", name))
    demo_report = DemoReport(Mock(), tmp_path, tmp_path / "_out")
    parse = Mock(side_effect=parse_documents)
    monkeypatch.setattr("dsf.demo.report.parse_documents", parse)

    def read_names() -> list[str]:
        return [document.object.metadata.name for document in demo_report._read_documents()]

    assert [read_names(), read_names()] == [["first", "other"]] * 2
    (tmp_path / "first.yaml").write_text(CLUSTER.replace("NAME", "changed"))
    assert read_names() == ["changed", "other"]
    (tmp_path / "other.yaml").unlink()
    assert read_names() == ["changed"]
    assert [call.args[1] for call in parse.call_args_list] == ["first.yaml", "other.yaml", "first.yaml"]
