"""Contributors' pages and workflows name existing make targets, folders and files; workflows have minimal rights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.docs import pages
from tests.unit.scripts.test_commands import TARGETS

ROOT = Path(__file__).resolve().parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]


def workflow(path: Path) -> dict[str, Any]:
    """Return a workflow. YAML 1.1 reads its key `on` as a boolean."""
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def steps(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all steps of all jobs."""
    for job in workflow(path)["jobs"].values():
        yield from job.get("steps", ())


def commands() -> Iterator[tuple[str, str]]:
    """Yield file and text of each command that GitHub or pre-commit runs, or that a page shows as code."""
    for path in WORKFLOWS:
        yield from ((path.name, step["run"]) for step in steps(path) if "run" in step)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    yield from ((".pre-commit-config.yaml", hook["entry"]) for hook in hooks)
    for page in PAGES:
        yield from ((page.name, code) for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))
        yield from ((page.name, command.text) for command in pages.commands(page))


def targets() -> list[tuple[str, str]]:
    """Yield file and name of each make target that is called."""
    return [
        (name, word)
        for name, text in commands()
        for words in re.findall(r"\bmake((?: [a-z][a-z-]*)+)", text)
        for word in words.split()
    ]


def test_called_make_targets_exist() -> None:
    called = targets()
    assert {name for name, _ in called} >= {"pull-request.yaml", "nightly.yaml", "release.yaml", "CONTRIBUTING.md"}
    assert [(name, target) for name, target in called if target not in TARGETS] == []


def test_nightly_checkout_has_the_tag_of_the_upgrade() -> None:
    (checkout,) = [
        step
        for step in workflow(GITHUB / "workflows" / "nightly.yaml")["jobs"]["node"]["steps"]
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert checkout["with"]["fetch-depth"] == 0


def test_nights_run_what_ci_runs() -> None:
    script = " ".join((ROOT / ".ci" / name).read_text(encoding="utf-8") for name in ("nightly", "run"))
    nightly_targets = {"oldest", "soak", "node"} | {
        target for target in TARGETS if re.search(rf"^ *make [^#\n]*\b{target}\b", script, re.MULTILINE)
    }
    assert nightly_targets >= {"newest", "test", "lint"}
    assert nightly_targets <= {target for name, target in targets() if name == "nightly.yaml"}


def test_each_folder_of_tests_is_in_one_shard() -> None:
    matrix = workflow(GITHUB / "workflows" / "pull-request.yaml")["jobs"]["tests"]["strategy"]["matrix"]["include"]
    sharded_folders = sorted(path for shard in matrix for path in shard["paths"].split())
    folders = [ROOT / "tests" / "e2e", ROOT / "tests" / "faults"]
    folders += (path for path in (ROOT / "tests" / "integration").iterdir() if (path / "__init__.py").is_file())
    folders += (*ROOT.glob("packages/*/tests/integration"), *ROOT.glob("*/tests/integration"))
    assert sharded_folders == sorted(str(path.relative_to(ROOT)) for path in folders)


def test_workflows_have_the_go_that_the_control_plane_needs() -> None:
    def version(path: Path) -> tuple[int, ...]:
        version_line = re.search(r"^go ([\d.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert version_line, path
        return tuple(int(number) for number in version_line[1].split("."))

    newest = max(version(path) for path in (ROOT / "tests" / "controlplane").glob("*/go.mod"))
    files = {step["with"]["go-version-file"] for path in WORKFLOWS for step in steps(path) if "setup-go" in str(step)}
    assert {version(ROOT / file) for file in files} == {newest}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_grants_permissions_per_job_only(path: Path) -> None:
    loaded = workflow(path)
    assert loaded["permissions"] == {}
    assert [name for name, job in loaded["jobs"].items() if "permissions" not in job] == []
    # The trigger pull_request_target would run untrusted code with the rights of this repository.
    assert "pull_request_target" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used_actions = re.findall(r"^ *-? *uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    pinned = re.compile(r"\./.*|[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [text for text in used_actions if not pinned.fullmatch(text)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_a_time_limit(path: Path) -> None:
    jobs = workflow(path)["jobs"]
    assert [name for name, job in jobs.items() if "uses" not in job and "timeout-minutes" not in job] == []


@pytest.mark.parametrize("path", sorted(GITHUB.rglob("*.yml")), ids=lambda path: path.name)
def test_files_read_by_github_are_yaml(path: Path) -> None:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    for field in loaded.get("body", ()):
        assert field["type"] == "markdown" or field["id"], field


@pytest.mark.parametrize("name", ["MAINTAINERS.md", "GOVERNANCE.md", "ADOPTERS.md", "ROADMAP.md", "SECURITY.md"])
def test_file_of_a_cncf_project_exists_and_has_a_text(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").split()) > 30


def test_security_insights_names_existing_files() -> None:
    text = (ROOT / "SECURITY-INSIGHTS.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["header"]["schema-version"] == "2.0.0"
    files = re.findall(r"/blob/main/(\S+)", text)
    assert {"SECURITY.md", "GOVERNANCE.md", "CONTRIBUTING.md", "LICENSE"} <= set(files)
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_release_signs_what_it_publishes() -> None:
    path = GITHUB / "workflows" / "release.yaml"
    jobs = workflow(path)["jobs"]
    scripts = {name: "\n".join(step.get("run", "") for step in job.get("steps", ())) for name, job in jobs.items()}
    # Names that OpenSSF's Scorecard takes for provenance and signatures of a release's files.
    assert "dist/provenance.intoto.jsonl" in scripts["build"]
    assert "cosign sign-blob --yes --bundle dist/SHA256SUMS.sigstore.json" in scripts["build"]
    assert scripts["notes"].rstrip().endswith("dist/*")
    assert scripts["pypi"].index("pypi-attestations") < scripts["pypi"].index("uv publish")
    for job in ("build", "pypi", "images", "chart"):
        assert jobs[job]["permissions"]["id-token"] == "write", job


def test_scans_cover_code_dependencies_and_images() -> None:
    jobs = workflow(GITHUB / "workflows" / "scan.yaml")["jobs"]
    assert {"codeql", "dependencies", "images"} <= set(jobs)
    assert set(jobs["images"]["strategy"]["matrix"]["target"]) == {"hub", "agent"}
    assert "python" in jobs["codeql"]["strategy"]["matrix"]["language"]
