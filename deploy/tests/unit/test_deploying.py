"""`make image`, `make deploy`, `make undeploy`, and the kustomize base."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import chart
from tests.support.child import run_program
from tests.support.controlplane import find
from tests.support.controlplane_fixtures import programs_needed

ROOT = chart.ROOT
BASE = ROOT / "deploy" / "kustomize"
GITOPS = ROOT / "deploy" / "gitops" / "values.yaml"
#: Programs that the script itself needs.
_TOOLS = ("cut", "dirname")
#: Stand-ins for programs that change a cluster. The images are those that were built.
_DOCKER = """case "$1 $2" in
"image inspect") cat "$WORLD/id" 2>/dev/null || exit 1 ;;
"build "*) echo sha256:0123456789abcdef > "$WORLD/id" ;;
esac"""
_KUBECTL = '[ "$1 $2" != "config current-context" ] || cat "$WORLD/context" 2>/dev/null || exit 1'


class Machine:
    """A PATH with these programs, which record their calls."""

    def __init__(self, folder: Path, context: str = "kind-hub", **programs: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        if context:
            (folder / "context").write_text(f"{context}\n")
        for name in _TOOLS:
            executable = shutil.which(name)
            assert executable is not None
            (folder / "bin" / name).symlink_to(executable)
        (folder / "bin" / "cat").symlink_to(shutil.which("cat") or "/bin/cat")
        for name, code in programs.items():
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >> "$WORLD/calls"\n{code}\n')
            program.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script with these arguments."""
        return run_program(
            ["/bin/sh", ROOT / "scripts" / "deploy", *arguments],
            env={"PATH": str(self.folder / "bin"), "WORLD": str(self.folder), **environment},
        )

    def calls(self, program: str) -> list[str]:
        """Return the calls of a program except read-only ones."""
        lines = (self.folder / "calls").read_text().splitlines()
        asks = (f"{program} image inspect", f"{program} config current-context")
        return [line for line in lines if line.startswith(f"{program} ") and not line.startswith(asks)]


def _complete_machine(folder: Path, context: str = "kind-hub") -> Machine:
    return Machine(folder, context, docker=_DOCKER, kubectl=_KUBECTL, helm="", kind="")


def test_images_are_built_and_loaded_into_kind_clusters(tmp_path: Path) -> None:
    machine = _complete_machine(tmp_path)
    process = machine.run("image", CLUSTERS="cluster1", REGISTRY="registry.example")
    assert process.returncode == 0, process.stderr
    targets = [line.split()[3] for line in machine.calls("docker") if line.startswith("docker build")]
    stages = [line.split()[-1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("FROM")]
    assert targets == ["hub", "agent"]
    assert set(targets) <= set(stages)
    image = "kind load docker-image registry.example/{}:dev-0123456789ab --name {}"
    assert machine.calls("kind") == [
        image.format("dynamic-scoring-framework", "hub"),
        image.format("dynamic-scoring-agent", "hub"),
        image.format("dynamic-scoring-agent", "cluster1"),
    ]
    assert "push" not in process.stderr


def test_managed_kind_cluster_gets_the_agent_image_without_a_local_hub(tmp_path: Path) -> None:
    machine = _complete_machine(tmp_path, "production")
    process = machine.run("image", CLUSTERS="cluster1", REGISTRY="registry.example")
    assert process.returncode == 0, process.stderr
    (call,) = machine.calls("kind")
    assert call.endswith("/dynamic-scoring-agent:dev-0123456789ab --name cluster1")
    assert "docker push registry.example/dynamic-scoring-framework:dev-0123456789ab" in process.stderr


def test_image_command_for_another_cluster_says_that_images_must_be_pushed(tmp_path: Path) -> None:
    machine = _complete_machine(tmp_path, "production")
    process = machine.run("image", REGISTRY="registry.example")
    assert process.returncode == 0, process.stderr
    assert "production is no kind cluster" in process.stderr
    assert "docker push registry.example/dynamic-scoring-agent:dev-0123456789ab" in process.stderr


def test_deploy_uses_the_built_images(tmp_path: Path) -> None:
    machine = _complete_machine(tmp_path)
    machine.run("image")
    process = machine.run("deploy", "--values", "deploy/exposure/nodeport.yaml")
    assert process.returncode == 0, process.stderr
    (call,) = machine.calls("helm")
    assert "upgrade --install dynamic-scoring-framework deploy/helm --kube-context kind-hub " in call
    words = call.split()
    sets = dict(words[position + 1].split("=") for position, word in enumerate(words) if word == "--set")
    values: chart.Values = {}
    for path, value in sets.items():
        inner = values
        *parts, last = path.split(".")
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    for name, workload in chart.workloads(chart.render(values)).items():
        images = {container["image"] for container in chart.containers(workload)}
        assert name == "dynamic-scoring-redis" or all(image.endswith(":dev-0123456789ab") for image in images), name
    assert machine.calls("kubectl") == [], "Helm upgrades the CRDs"


def test_deploy_without_built_image_uses_the_images_of_the_chart(tmp_path: Path) -> None:
    machine = _complete_machine(tmp_path)
    process = machine.run("deploy")
    assert process.returncode == 0, process.stderr
    assert "no image was built here" in process.stderr
    assert "--set" not in machine.calls("helm")[0]


def test_undeploy_follows_the_documented_order(tmp_path: Path) -> None:
    machine = _complete_machine(tmp_path)
    assert machine.run("undeploy").returncode == 0
    page = (ROOT / "docs" / "install.md").read_text().partition("## Uninstall")[2]
    documented_commands = [line[2:].split() for line in page.splitlines() if line.startswith("$ ")][:3]
    did = [line.split() for line in (tmp_path / "calls").read_text().splitlines() if "current-context" not in line]
    assert len(did) == len(documented_commands)
    for command, documented_command in zip(did, documented_commands, strict=True):
        assert {word for word in documented_command if not word.startswith("-")} <= set(command)


@pytest.mark.parametrize(
    ("action", "program", "says"),
    [
        ("image", "docker", "docker is not on PATH; install it: https://docs.docker.com"),
        ("image", "kubectl", "kubectl is not on PATH"),
        ("image", "kind", "kind is not on PATH"),
        ("deploy", "helm", "helm is not on PATH"),
        ("undeploy", "helm", "helm is not on PATH"),
        ("undeploy", "kubectl", "kubectl is not on PATH"),
    ],
)
def test_missing_program_is_named(tmp_path: Path, action: str, program: str, says: str) -> None:
    machine = _complete_machine(tmp_path)
    (tmp_path / "bin" / program).unlink()
    process = machine.run(action)
    assert process.returncode == 1
    assert says in process.stderr


@pytest.mark.parametrize("action", ["image", "deploy", "undeploy"])
def test_missing_context_is_reported_before_any_change(tmp_path: Path, action: str) -> None:
    machine = _complete_machine(tmp_path, "")
    process = machine.run(action)
    assert process.returncode == 1
    assert "kubectl has no current context" in process.stderr
    assert machine.calls("helm") + machine.calls("docker") == []


def test_kustomize_base_equals_the_rendered_chart(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "kustomize-base", GITOPS, tmp_path]
    subprocess.run(command, check=True, timeout=300, cwd=ROOT)
    generated_files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert generated_files == {path.name: path.read_text() for path in BASE.iterdir()}, (
        "run: .venv/bin/python scripts/kustomize-base"
    )
    rendered = chart.render(yaml.safe_load(GITOPS.read_text()) | {"crds": {"install": False}})
    hooks = [manifest for manifest in rendered if "helm.sh/hook" in (manifest["metadata"].get("annotations") or {})]
    assert {manifest["kind"] for manifest in hooks} >= {"Job", "Pod"}
    assert list(yaml.safe_load_all(generated_files["hub.yaml"])) == [
        manifest for manifest in rendered if manifest not in hooks
    ]


@pytest.mark.kube
def test_kustomize_builds_the_base() -> None:
    with programs_needed():
        kubectl = str(find("kubectl") / "kubectl")
    process = run_program([kubectl, "kustomize", BASE], check=True)
    built = [manifest for manifest in yaml.safe_load_all(process.stdout) if manifest]
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in built}
    base_objects = list(yaml.safe_load_all((BASE / "hub.yaml").read_text()))
    assert names == {(manifest["kind"], manifest["metadata"]["name"]) for manifest in base_objects} | {
        ("Namespace", chart.NAMESPACE)
    }


def _find_namespace_names(manifests: list[chart.Object]) -> set[str]:
    """Return the lines of objects that name the namespace of the base, without labels of OCM."""
    text = yaml.safe_dump_all(manifests, width=1000)
    pattern = r"^.*(?<!system:)\bopen-cluster-management(?!\.io|-).*$"
    return {line.strip() for line in re.findall(pattern, text, flags=re.MULTILINE)}


@pytest.mark.kube
def test_namespace_of_an_overlay_leaves_the_documented_places(tmp_path: Path) -> None:
    with programs_needed():
        kubectl = str(find("kubectl") / "kubectl")
    shutil.copytree(BASE, tmp_path / "base")
    (tmp_path / "kustomization.yaml").write_text("namespace: elsewhere\nresources: [base]\n")
    process = run_program([kubectl, "kustomize", tmp_path], check=True)
    built = [manifest for manifest in yaml.safe_load_all(process.stdout) if manifest]
    namespaces = {manifest["metadata"]["namespace"] for manifest in built if "namespace" in manifest["metadata"]}
    assert namespaces == {"elsewhere"}
    remaining = "\n".join(_find_namespace_names(built))
    page = (ROOT / "docs" / "gitops.md").read_text()
    # The page warns that this is not enough: an overlay must change all of them.
    assert "`namespace:` of an overlay is not enough" in page
    for old_text in ("value: open-cluster-management", "dynamic-scoring-redis.open-cluster-management.svc:6379"):
        assert old_text in remaining


def test_base_of_another_namespace_names_no_other(tmp_path: Path) -> None:
    values = yaml.safe_load(GITOPS.read_text())
    values["hubSetting"]["namespace"] = "elsewhere"
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, ROOT / "scripts" / "kustomize-base", tmp_path / "values.yaml", tmp_path / "out"]
    subprocess.run(command, check=True, timeout=300, cwd=ROOT)
    manifests = list(yaml.safe_load_all((tmp_path / "out" / "hub.yaml").read_text()))
    assert _find_namespace_names(manifests) == set()


def test_kustomize_base_of_refused_values_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("redis: {mode: cluster}\n")
    command = [sys.executable, ROOT / "scripts" / "kustomize-base", tmp_path / "bad.yaml", tmp_path / "out"]
    process = run_program(command, cwd=ROOT)
    assert process.returncode == 1
    assert "bad.yaml" in process.stderr
    assert "mode" in process.stderr
    assert not (tmp_path / "out").exists()
