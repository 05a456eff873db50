"""The version is defined in pyproject.toml; `scripts/version` updates all other places."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support import chart
from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
CHART_VERSION = yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
OTHER = "98.76.54"
#: Separate versions: those of other projects, and those of published files.
OWN = {"samples/csv-source/pyproject.toml", "CHANGELOG.md"}


def run(*command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return run_program(command, cwd=folder)


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Return the text files of the repository except tests, which use other versions."""
    # Files in a container of CI belong to another user, whom git does not trust.
    names = run("git", "-c", "safe.directory=*", "ls-files").stdout.splitlines()
    assert names
    texts = (name for name in names if not re.match(r"(.*/)?tests/", name) and not name.endswith((".png", ".gz")))
    return [name for name in texts if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def test_version_is_printed() -> None:
    assert run("scripts/version").stdout == f"{VERSION}\n"


def test_repository_names_only_its_version() -> None:
    process = run("scripts/version", "--check")
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_version_command_changes_all_files(tracked: list[str], tmp_path: Path) -> None:
    for name in tracked:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "Dockerfile").write_text((tmp_path / "Dockerfile").read_text().replace(f"={VERSION}", "=1.1.1"))
    checked = run("scripts/version", "--check", folder=tmp_path)
    assert checked.returncode == 1
    assert re.fullmatch(r"Dockerfile:\d+: ARG VERSION=1\.1\.1\n", checked.stderr)

    assert run("scripts/version", OTHER, folder=tmp_path).returncode == 0
    assert run("scripts/version", folder=tmp_path).stdout == f"{OTHER}\n"
    assert run("scripts/version", "--check", folder=tmp_path).returncode == 0
    described = yaml.safe_load((tmp_path / "deploy" / "helm" / "Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == ("99.76.54", OTHER)
    old = re.compile(
        rf"^.*(?:(?:dynamic-scoring|scorer|watcher|version).*\b{re.escape(VERSION)}"
        rf"|dynamic-scoring-framework.*\b{re.escape(CHART_VERSION)})\b.*$",
        re.IGNORECASE | re.M,
    )
    outdated_versions = {
        name: matches
        for name in tracked
        if name not in OWN
        # Prose may mention older versions; commands name the version of this checkout.
        if (
            matches := [
                line
                for line in old.findall((tmp_path / name).read_text())
                if not name.endswith(".md") or line[0] == "$"
            ]
        )
    }
    assert outdated_versions == {}
    # The file uv.lock equals the one that uv would write.
    locked = {package["name"]: package for package in tomllib.loads((tmp_path / "uv.lock").read_text())["package"]}
    own_packages = {name for name in locked if name.startswith("dynamic-scoring-")}
    assert len(own_packages) == 6
    assert {locked[name]["version"] for name in own_packages} == {OTHER}


def test_version_of_another_form_is_refused() -> None:
    process = run("scripts/version", "v1.0")
    assert (process.returncode, process.stdout) == (2, "")
    assert "usage: scripts/version" in process.stderr


def test_chart_pages_and_compose_name_the_images_of_the_version(tracked: list[str]) -> None:
    expected_images = {
        f"ghcr.io/open-cluster-management-io/dynamic-scoring-{name}:{VERSION}" for name in ("framework", "agent")
    }
    objects = chart.render()
    images = {c["image"] for workload in chart.workloads(objects).values() for c in chart.containers(workload)}
    assert images - {image for image in images if "/valkey/valkey:" in image} == expected_images
    image_pattern = re.compile(
        rf"(?<!\$REGISTRY/)(?<=[\s\"=])[\w./-]*dynamic-scoring-(?:framework|agent):{re.escape(VERSION)}"
    )
    texts = [ROOT / name for name in tracked if name.startswith(("docs/", "deploy/")) and name.endswith(("md", "yaml"))]
    named_images = {
        image for path in [*texts, ROOT / "docker-compose.yaml"] for image in image_pattern.findall(path.read_text())
    }
    assert named_images == expected_images


def test_artifact_hub_shows_those_images_and_the_kinds_of_the_chart() -> None:
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    annotations = described["annotations"]
    images = {image["image"] for image in yaml.safe_load(annotations["artifacthub.io/images"])}
    assert {image.rpartition(":")[2] for image in images} == {described["appVersion"]}
    crds = list(yaml.safe_load_all((chart.CHART / "files" / "crds.yaml").read_text()))
    chart_kinds = {
        (crd["metadata"]["name"], crd["spec"]["names"]["kind"], crd["spec"]["versions"][-1]["name"]) for crd in crds
    }
    annotated_kinds = yaml.safe_load(annotations["artifacthub.io/crds"])
    assert {(crd["name"], crd["kind"], crd["version"]) for crd in annotated_kinds} == chart_kinds
