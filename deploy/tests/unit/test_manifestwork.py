"""deploy/utils/manifestwork.sh: objects of files become those of a ManifestWork."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.child import ran

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy" / "utils" / "manifestwork.sh"
FILES = sorted((ROOT / "samples").glob("*/manifests/deployment.yaml"))


def work(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *map(str, arguments)]
    return ran(command)


@pytest.mark.parametrize("file", FILES, ids=[file.parent.parent.name for file in FILES])
def test_every_sample_can_be_brought_to_a_cluster(file: Path) -> None:
    made = yaml.safe_load(work("scorer", "cluster1", file).stdout)
    assert (made["apiVersion"], made["kind"]) == ("work.open-cluster-management.io/v1", "ManifestWork")
    assert made["metadata"] == {"name": "scorer", "namespace": "cluster1"}
    assert made["spec"]["workload"]["manifests"] == [one for one in yaml.safe_load_all(file.read_text()) if one]


def test_several_files_and_texts_of_several_lines(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "# why\n\nkind: ConfigMap\ndata:\n  text: |\n    one\n\n    # two\n---\n# none\n---\nkind: B\n"
    )
    (tmp_path / "b.yaml").write_text("---\nkind: C")
    made = yaml.safe_load(work("n", "c", tmp_path / "a.yaml", tmp_path / "b.yaml").stdout)
    kinds = [one["kind"] for one in made["spec"]["workload"]["manifests"]]
    assert kinds == ["ConfigMap", "B", "C"]
    assert made["spec"]["workload"]["manifests"][0]["data"]["text"] == "one\n\n# two\n"


def test_wrong_usage_says_what_is_wrong(tmp_path: Path) -> None:
    assert (work("n", "c").returncode, "usage: " in work("n", "c").stderr) == (2, True)
    missing = work("n", "c", tmp_path / "none.yaml")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "cannot read" in missing.stderr
