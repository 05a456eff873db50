"""`make image`, `make deploy`, `make undeploy`, and the kustomize base."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import chart
from tests.support.child import ran
from tests.support.controlplane import ControlPlaneMissingError, find

ROOT = chart.ROOT
BASE = ROOT / "deploy" / "kustomize"
GITOPS = ROOT / "deploy" / "gitops" / "values.yaml"
#: What the script itself needs.
_TOOLS = ("cut", "dirname")
#: Stand-ins for programs that change a cluster. The images are those that were built.
_DOCKER = """case "$1 $2" in
"image inspect") cat "$WORLD/id" 2>/dev/null || exit 1 ;;
"build "*) echo sha256:0123456789abcdef > "$WORLD/id" ;;
esac"""
_KUBECTL = '[ "$1 $2" != "config current-context" ] || cat "$WORLD/context" 2>/dev/null || exit 1'


class Machine:
    """A PATH with these programs, which note how they are called."""

    def __init__(self, folder: Path, context: str = "kind-hub", **programs: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        if context:
            (folder / "context").write_text(f"{context}\n")
        for name in _TOOLS:
            found = shutil.which(name)
            assert found is not None
            (folder / "bin" / name).symlink_to(found)
        (folder / "bin" / "cat").symlink_to(shutil.which("cat") or "/bin/cat")
        for name, code in programs.items():
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >> "$WORLD/calls"\n{code}\n')
            program.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The script with these arguments."""
        return ran(
            ["/bin/sh", ROOT / "scripts" / "deploy", *arguments],
            env={"PATH": str(self.folder / "bin"), "WORLD": str(self.folder), **environment},
        )

    def calls(self, program: str) -> list[str]:
        """How a program was called, without those that only ask."""
        lines = (self.folder / "calls").read_text().splitlines()
        asks = (f"{program} image inspect", f"{program} config current-context")
        return [line for line in lines if line.startswith(f"{program} ") and not line.startswith(asks)]


def _whole(folder: Path, context: str = "kind-hub") -> Machine:
    return Machine(folder, context, docker=_DOCKER, kubectl=_KUBECTL, helm="", kind="")


def test_images_are_built_and_given_to_the_kind_clusters_that_run_them(tmp_path: Path) -> None:
    machine = _whole(tmp_path)
    done = machine.run("image", CLUSTERS="cluster1", REGISTRY="registry.example")
    assert done.returncode == 0, done.stderr
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
    assert "push" not in done.stderr


def test_managed_kind_cluster_gets_the_agent_image_without_a_local_hub(tmp_path: Path) -> None:
    machine = _whole(tmp_path, "production")
    done = machine.run("image", CLUSTERS="cluster1", REGISTRY="registry.example")
    assert done.returncode == 0, done.stderr
    (call,) = machine.calls("kind")
    assert call.endswith("/dynamic-scoring-agent:dev-0123456789ab --name cluster1")
    assert "docker push registry.example/dynamic-scoring-framework:dev-0123456789ab" in done.stderr


def test_on_another_cluster_it_says_that_the_images_must_be_pushed(tmp_path: Path) -> None:
    machine = _whole(tmp_path, "production")
    done = machine.run("image", REGISTRY="registry.example")
    assert done.returncode == 0, done.stderr
    assert "production is no kind cluster" in done.stderr
    assert "docker push registry.example/dynamic-scoring-agent:dev-0123456789ab" in done.stderr


def test_the_chart_takes_the_images_that_were_built(tmp_path: Path) -> None:
    machine = _whole(tmp_path)
    machine.run("image")
    done = machine.run("deploy", "--values", "deploy/exposure/nodeport.yaml")
    assert done.returncode == 0, done.stderr
    (call,) = machine.calls("helm")
    assert "upgrade --install dynamic-scoring-framework deploy/helm --kube-context kind-hub " in call
    words = call.split()
    sets = dict(words[place + 1].split("=") for place, word in enumerate(words) if word == "--set")
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
    assert machine.calls("kubectl") == [
        "kubectl --context kind-hub apply --server-side --force-conflicts --filename deploy/helm/crds"
    ]


def test_without_an_image_of_its_own_the_charts_are_used(tmp_path: Path) -> None:
    machine = _whole(tmp_path)
    done = machine.run("deploy")
    assert done.returncode == 0, done.stderr
    assert "no image was built here" in done.stderr
    assert "--set" not in machine.calls("helm")[0]


def test_undeploy_follows_the_order_of_the_page(tmp_path: Path) -> None:
    machine = _whole(tmp_path)
    assert machine.run("undeploy").returncode == 0
    page = (ROOT / "docs" / "install.md").read_text().partition("## Uninstall")[2]
    shown = [line[2:].split() for line in page.splitlines() if line.startswith("$ ")][:3]
    did = [line.split() for line in (tmp_path / "calls").read_text().splitlines() if "current-context" not in line]
    assert len(did) == len(shown)
    for ours, theirs in zip(did, shown, strict=True):
        assert {word for word in theirs if not word.startswith("-")} <= set(ours)


@pytest.mark.parametrize(
    ("action", "missing", "says"),
    [
        ("image", "docker", "docker is not on PATH; install it: https://docs.docker.com"),
        ("image", "kubectl", "kubectl is not on PATH"),
        ("image", "kind", "kind is not on PATH"),
        ("deploy", "helm", "helm is not on PATH"),
        ("undeploy", "helm", "helm is not on PATH"),
        ("undeploy", "kubectl", "kubectl is not on PATH"),
    ],
)
def test_missing_program_is_named(tmp_path: Path, action: str, missing: str, says: str) -> None:
    machine = _whole(tmp_path)
    (tmp_path / "bin" / missing).unlink()
    done = machine.run(action)
    assert done.returncode == 1
    assert says in done.stderr


@pytest.mark.parametrize("action", ["image", "deploy", "undeploy"])
def test_without_a_context_nothing_is_done(tmp_path: Path, action: str) -> None:
    machine = _whole(tmp_path, "")
    done = machine.run(action)
    assert done.returncode == 1
    assert "kubectl has no current context" in done.stderr
    assert machine.calls("helm") + machine.calls("docker") == []


def test_the_kustomize_base_is_that_of_the_chart(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "kustomize-base", GITOPS, tmp_path]
    subprocess.run(command, check=True, timeout=300, cwd=ROOT)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in BASE.iterdir()}, (
        "run: .venv/bin/python scripts/kustomize-base"
    )
    rendered = chart.render(yaml.safe_load(GITOPS.read_text()))
    hooks = [one for one in rendered if "helm.sh/hook" in (one["metadata"].get("annotations") or {})]
    assert {one["kind"] for one in hooks} >= {"Job", "Pod"}
    assert list(yaml.safe_load_all(made["hub.yaml"])) == [one for one in rendered if one not in hooks]


def test_kustomize_builds_the_base() -> None:
    try:
        kubectl = str(find("kubectl") / "kubectl")
    except ControlPlaneMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    done = ran([kubectl, "kustomize", BASE], check=True)
    built = [one for one in yaml.safe_load_all(done.stdout) if one]
    names = {(one["kind"], one["metadata"]["name"]) for one in built}
    written = list(yaml.safe_load_all((BASE / "hub.yaml").read_text()))
    assert names == {(one["kind"], one["metadata"]["name"]) for one in written} | {("Namespace", chart.NAMESPACE)}


def test_values_that_the_chart_refuses_are_no_base(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("redis: {mode: cluster}\n")
    command = [sys.executable, ROOT / "scripts" / "kustomize-base", tmp_path / "bad.yaml", tmp_path / "out"]
    done = ran(command, cwd=ROOT)
    assert done.returncode == 1
    assert "bad.yaml" in done.stderr
    assert "mode" in done.stderr
    assert not (tmp_path / "out").exists()
