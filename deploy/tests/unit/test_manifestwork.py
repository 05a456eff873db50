"""deploy/utils/manifestwork.sh wraps objects of files in a ManifestWork."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.child import run_program

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy" / "utils" / "manifestwork.sh"
FILES = sorted((ROOT / "samples").glob("*/manifests/deployment.yaml"))


def work(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *map(str, arguments)]
    return run_program(command)


@pytest.mark.parametrize("file", FILES, ids=[file.parent.parent.name for file in FILES])
def test_every_sample_can_be_wrapped_in_a_manifestwork(file: Path) -> None:
    manifest_work = yaml.safe_load(work("scorer", "cluster1", file).stdout)
    assert (manifest_work["apiVersion"], manifest_work["kind"]) == (
        "work.open-cluster-management.io/v1",
        "ManifestWork",
    )
    assert manifest_work["metadata"] == {"name": "scorer", "namespace": "cluster1"}
    assert manifest_work["spec"]["workload"]["manifests"] == [
        manifest for manifest in yaml.safe_load_all(file.read_text()) if manifest
    ]


def test_several_files_and_texts_of_several_lines(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "# why\n\nkind: ConfigMap\ndata:\n  text: |\n    one\n\n    # two\n---\n# none\n---\nkind: B\n"
    )
    (tmp_path / "b.yaml").write_text("---\nkind: C")
    manifest_work = yaml.safe_load(work("n", "c", tmp_path / "a.yaml", tmp_path / "b.yaml").stdout)
    kinds = [manifest["kind"] for manifest in manifest_work["spec"]["workload"]["manifests"]]
    assert kinds == ["ConfigMap", "B", "C"]
    assert manifest_work["spec"]["workload"]["manifests"][0]["data"]["text"] == "one\n\n# two\n"


def test_wrong_usage_is_reported(tmp_path: Path) -> None:
    assert (work("n", "c").returncode, "usage: " in work("n", "c").stderr) == (2, True)
    missing_file = work("n", "c", tmp_path / "none.yaml")
    assert (missing_file.returncode, missing_file.stdout) == (1, "")
    assert "cannot read" in missing_file.stderr
