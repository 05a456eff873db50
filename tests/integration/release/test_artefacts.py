"""The files of a release: their content, and that all have one version and match each other."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml

from dsf.auth.authenticator import GROUP, METHODS
from dsf.sources.base import OTLP, PLUGIN_BY_BUILTIN_TYPE
from tests.integration.release.conftest import CHART_VERSION, VERSION, DryRun, run, wheel
from tests.support import chart
from tests.support.uv import ROOT, build_wheel

PACKAGES = {
    "framework": ".",
    "demo": "demo",
    **{name: f"packages/dsf-{name}" for name in ("backtest", "optimizer", "scorer", "sources")},
}
#: The index that a release before this one has left.
EARLIER = """
apiVersion: v1
entries:
  dynamic-scoring-framework:
    - {apiVersion: v2, name: dynamic-scoring-framework, version: 0.0.9, digest: abc, urls: [https://example.com/0.0.9.tgz]}
"""
#: Fields without which, or with a different form of which, krew's index refuses a manifest.
KREW: dict[str, Any] = {
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "krew.googlecontainertools.github.com/v1alpha2"},
        "kind": {"const": "Plugin"},
        "metadata": {"required": ["name"], "properties": {"name": {"pattern": "^[a-z0-9][a-z0-9_-]*$"}}},
        "spec": {
            "required": ["version", "homepage", "shortDescription", "platforms"],
            "properties": {
                "version": {"pattern": r"^v\d+\.\d+\.\d+$"},
                "shortDescription": {"maxLength": 50},
                "platforms": {
                    "minItems": 1,
                    "items": {
                        "required": ["uri", "sha256", "bin", "files", "selector"],
                        "properties": {
                            "uri": {"pattern": r"^https://.*\.(zip|tar\.gz)$"},
                            "sha256": {"pattern": "^[0-9a-f]{64}$"},
                        },
                    },
                },
            },
        },
    },
}


def metadata(file: Path) -> Message:
    with zipfile.ZipFile(file) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def contents(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_release_files_are_complete_and_match_their_checksums(dist: Path) -> None:
    sums = dict(line.split("  ")[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert {name: checksum(dist / name) for name in sums} == sums
    python = [f"dynamic_scoring_{name}-{VERSION}" for name in PACKAGES]
    other_files = {
        f"dynamic-scoring-framework-{CHART_VERSION}.tgz",
        "index.yaml",
        "kubectl-dsf.tar.gz",
        "dsf.yaml",
        "sbom.cdx.json",
    }
    assert (
        sums.keys()
        == {f"{name}-py3-none-any.whl" for name in python} | {f"{name}.tar.gz" for name in python} | other_files
    )


@pytest.mark.parametrize("name", PACKAGES)
def test_sdist_and_checkout_build_the_same_wheel(dist: Path, sources: Path, name: str, tmp_path: Path) -> None:
    """The wheels of a release are built from the source distribution."""
    assert contents(wheel(dist, name)) == contents(build_wheel(sources / PACKAGES[name], tmp_path, "--wheel"))


@pytest.mark.parametrize("name", PACKAGES)
def test_wheel_contains_exactly_the_files_of_its_package(dist: Path, name: str) -> None:
    folder = ROOT / PACKAGES[name]
    files = (path for path in (folder / "dsf").rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    # The demo's wheel also has copies of samples and manifests.
    other_parts = (".dist-info/", "dsf/demo/files/")
    names = {file for file in contents(wheel(dist, name)) if not any(other in file for other in other_parts)}
    assert names == {str(path.relative_to(folder)) for path in files}


def test_wheels_have_no_common_files(dist: Path) -> None:
    files = [file for name in PACKAGES for file in contents(wheel(dist, name)) if ".dist-info/" not in file]
    assert len(files) == len(set(files))


@pytest.mark.parametrize("name", PACKAGES)
def test_wheel_has_types_its_version_and_pinned_siblings(dist: Path, name: str) -> None:
    names = contents(wheel(dist, name)).keys()
    packages = {file.rpartition("/")[0] for file in names if file.endswith("/__init__.py")}
    markers = {file.rpartition("/")[0] for file in names if file.endswith("/py.typed")}
    unmarked = {p for p in packages if not any(p == marker or p.startswith(f"{marker}/") for marker in markers)}
    assert packages
    assert unmarked == set()
    wheel_metadata = metadata(wheel(dist, name))
    assert wheel_metadata["Version"] == VERSION
    assert wheel_metadata["License-Expression"] == "Apache-2.0"
    assert any(file.endswith("licenses/LICENSE") for file in names)
    # Fields that an index displays.
    assert all(
        [
            wheel_metadata["Author"],
            wheel_metadata["Summary"],
            wheel_metadata.get_all("Project-URL"),
            str(wheel_metadata.get_payload()).strip(),
        ]
    )
    classifiers = wheel_metadata.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)} <= set(classifiers)
    own_requirements = [
        line for line in wheel_metadata.get_all("Requires-Dist", []) if line.startswith("dynamic-scoring-")
    ]
    assert [line for line in own_requirements if f"=={VERSION}" not in line.partition(";")[0]] == []


def test_framework_finds_the_types_and_methods_of_the_sources(dist: Path) -> None:
    files = contents(wheel(dist, "sources"))
    (name,) = [name for name in files if name.endswith("/entry_points.txt")]
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(files[name].decode())
    modules = [value.partition(":")[0] for value in parser["dsf.sources"].values()]
    modules += [value.partition(":")[0] for value in parser[GROUP].values()]
    assert set(parser[GROUP]) == {field for field, function in METHODS.items() if not function}
    assert set(parser["dsf.sources"]) == {OTLP, *PLUGIN_BY_BUILTIN_TYPE.values()}
    assert {Path(*module.split(".")).with_suffix(".py").as_posix() for module in modules} <= files.keys()


def test_framework_alone_requires_neither_solver_nor_demo(dist: Path) -> None:
    plain = [line for line in metadata(wheel(dist, "framework")).get_all("Requires-Dist", []) if "extra ==" not in line]
    assert plain
    assert [line for line in plain if line.startswith(("dynamic-scoring", "highspy", "numpy", "valkey"))] == []


def test_chart_is_rendered_from_its_package(dist: Path) -> None:
    package = dist / f"dynamic-scoring-framework-{CHART_VERSION}.tgz"
    with helm_python.Chart.load_archive(package.read_bytes()) as packed:
        files = packed.render({}, name=chart.RELEASE, namespace=chart.NAMESPACE)
        assert packed.schema
    images = {
        line.split()[-1].strip('"') for text in files.values() for line in text.splitlines() if " image: " in line
    }
    assert f"ghcr.io/open-cluster-management-io/dynamic-scoring-framework:{VERSION}" in images
    with tarfile.open(package) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    chart_files = {str(path.relative_to(chart.CHART)) for path in chart.CHART.rglob("*") if path.is_file()}
    assert names == chart_files
    (entry,) = yaml.safe_load((dist / "index.yaml").read_text())["entries"]["dynamic-scoring-framework"]
    assert (entry["version"], entry["appVersion"], entry["digest"]) == (CHART_VERSION, VERSION, checksum(package))
    (url,) = entry["urls"]
    assert url.endswith(f"/releases/download/v{VERSION}/{package.name}")


def test_chart_index_keeps_earlier_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index.yaml").write_text(EARLIER)
    script = str(ROOT / "scripts" / "artefacts")
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "dist"), str(tmp_path / "index.yaml")])

    def write_empty_bill(command: Sequence[str], **_: object) -> None:
        """Replace uv, which takes seconds and does not concern the chart."""
        if "--output-file" in command:
            Path(command[command.index("--output-file") + 1]).write_text('{"components": []}')

    monkeypatch.setattr(subprocess, "run", write_empty_bill)
    runpy.run_path(script, run_name="__main__")
    index = yaml.safe_load((tmp_path / "dist" / "index.yaml").read_text())
    entry, earlier = index["entries"]["dynamic-scoring-framework"]
    assert (earlier["version"], earlier["urls"]) == ("0.0.9", ["https://example.com/0.0.9.tgz"])
    package = tmp_path / "dist" / f"dynamic-scoring-framework-{entry['version']}.tgz"
    assert entry["digest"] == checksum(package)
    (url,) = entry["urls"]
    assert url.endswith(f"/releases/download/v{entry['appVersion']}/{package.name}")


def test_krew_archive_contains_the_files_of_the_manifest(dist: Path, tmp_path: Path) -> None:
    manifest = yaml.safe_load((dist / "dsf.yaml").read_text())
    jsonschema.validate(manifest, KREW)
    assert manifest["spec"]["version"] == f"v{VERSION}"
    (platform,) = manifest["spec"]["platforms"]
    archive = dist / platform["uri"].rpartition("/")[2]
    assert f"/releases/download/v{VERSION}/" in platform["uri"]
    assert platform["sha256"] == checksum(archive)
    with tarfile.open(archive) as tar:
        assert tar.getnames() == [file["from"] for file in platform["files"]]
        tar.extractall(tmp_path, filter="data")
    assert os.access(tmp_path / platform["bin"], os.X_OK)


def test_bill_of_materials_lists_the_locked_packages(dist: Path, sources: Path) -> None:
    bill = json.loads((dist / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == (
        "dynamic-scoring-framework",
        VERSION,
    )
    vendored = [component for component in bill["components"] if component.get("purl", "").startswith("pkg:npm/")]
    components = {
        (component["name"], component["version"]) for component in bill["components"] if component not in vendored
    }
    locked = {
        (package["name"], package["version"]) for package in tomllib.loads((sources / "uv.lock").read_text())["package"]
    }
    assert components <= locked
    names = {name for name, _ in components}
    assert {"celery", "redis", "highspy", "dynamic-scoring-optimizer"} <= names
    assert not {"pytest", "ruff"} & names
    licences = {component["name"]: component.get("licenses") for component in bill["components"]}
    assert licences["celery"] == [{"license": {"name": "BSD-3-Clause"}}]
    assert licences["dynamic-scoring-optimizer"] == [{"expression": "Apache-2.0"}]
    # Packages for other machines are not installed here, so that their licences are not read.
    installed = {distribution.name.lower().replace("_", "-") for distribution in distributions()}
    assert {name for name, licence in licences.items() if not licence} & installed == set()
    (swagger,) = vendored
    assert (swagger["name"], swagger["licenses"]) == ("swagger-ui-dist", [{"expression": "Apache-2.0"}])
    readme = (sources / "dsf" / "http" / "swagger" / "README.md").read_text()
    assert f"Swagger UI {swagger['version']} " in readme


@pytest.mark.parametrize("name", PACKAGES)
def test_page_on_pypi_has_no_relative_link(name: str, dist: Path, sources: Path) -> None:
    message = metadata(wheel(dist, name))
    urls = dict(value.split(", ", 1) for value in message.get_all("Project-URL", []))
    assert urls["Documentation"].startswith("https://")
    description = str(message.get_payload())
    links = re.findall(r"\]\(([^)\s]+)", description)
    assert [link for link in links if not link.startswith(("https://", "http://", "#"))] == []
    assert not re.search(r"<(?:img|a)\b", description)
    files = [link.partition(f"/v{VERSION}/")[2].partition("#")[0] for link in links if f"/v{VERSION}/" in link]
    assert [file for file in files if not (sources / file).exists()] == []
    if name == "framework":
        assert message["Description-Content-Type"] == "text/markdown"
        assert len(files) > 20
        assert re.search(
            rf"!\[[^\]]+\]\(https://raw\.githubusercontent\.com/\S+/v{VERSION}/docs/pictures/\S+\.png\)", description
        )


def test_existing_target_folder_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    command = (sys.executable, ROOT / "scripts" / "artefacts", tmp_path)
    assert subprocess.run(command, capture_output=True, timeout=300, check=False).returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_dry_run_builds_a_later_version_from_the_last_commit(dry_run: DryRun) -> None:
    for expected_refusal in ("uncommitted changes", "no section of this version", "`make test-all`"):
        assert any("would be refused" in line and expected_refusal in line for line in dry_run.stderr.splitlines()), (
            expected_refusal
        )
    built_files = {path.name for path in (dry_run.folder / "dist").iterdir()}
    assert {
        f"dynamic-scoring-framework-{CHART_VERSION}.tgz",
        f"dynamic_scoring_demo-{VERSION}-py3-none-any.whl",
    } <= built_files
    assert run(dry_run.folder, "git", "tag").stdout == ""
    assert run(dry_run.folder, "git", "status", "--porcelain").stdout == " M pyproject.toml\n?? .venv\n"
