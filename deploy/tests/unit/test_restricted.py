"""Every pod meets Kubernetes' Pod Security level `restricted`, with any user id that a platform assigns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import yaml

from tests.support import chart

FILES = sorted(
    path
    for folder in ("deploy", "samples")
    for path in (chart.ROOT / folder).rglob("*.yaml")
    if "helm" not in path.parts
)
#: Volumes that the level allows.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def _pods(objects: Iterable[Any]) -> Iterator[tuple[str, chart.Object]]:
    for manifest in objects:
        if not isinstance(manifest, dict) or "kind" not in manifest:
            continue
        if manifest["kind"] == "Pod":
            yield manifest["metadata"]["name"], manifest["spec"]
        elif manifest["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            yield manifest["metadata"]["name"], chart.pod(manifest)
        for inner in manifest.get("spec", {}).get("workload", {}).get("manifests", []):
            yield from _pods([inner])


def _faults(spec: chart.Object) -> list[str]:
    """Return the fields that `restricted` would refuse."""
    faults = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    of_pod = spec.get("securityContext", {})
    for volume in spec.get("volumes", []):
        faults += [f"volume {volume['name']}: {kind}" for kind in set(volume) - {"name"} - VOLUMES]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container_context = container.get("securityContext", {})
        both = of_pod | container_context
        requirements = {
            "no privileges gained": container_context.get("allowPrivilegeEscalation") is False,
            "no capabilities": container_context.get("capabilities", {}).get("drop") == ["ALL"]
            and "add" not in container_context["capabilities"],
            "not root": both.get("runAsNonRoot") is True and both.get("runAsUser") != 0,
            "seccomp": both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "not privileged": not container_context.get("privileged"),
            "no host ports": not [port for port in container.get("ports", []) if port.get("hostPort")],
            "read-only root": container_context.get("readOnlyRootFilesystem") is True,
            "requests": "requests" in container.get("resources", {}),
        }
        faults += [f"{container['name']}: {requirement}" for requirement, is_so in requirements.items() if not is_so]
    return faults


@pytest.mark.parametrize("name", chart.MATRIX)
def test_pods_of_the_chart_are_restricted(name: str) -> None:
    objects = chart.render(chart.MATRIX[name])
    pods = dict(_pods([*objects, *chart.agent_objects(objects)]))
    processes = {f"dynamic-scoring-{process}" for process in chart.MODES[chart.MATRIX[name].get("mode", "Single")]}
    assert processes | {"dynamic-scoring-uninstall", "dynamic-scoring-installation-test"} <= set(pods)
    assert {pod: faults for pod, spec in pods.items() if (faults := _faults(spec))} == {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(chart.ROOT)))
def test_pods_of_manifests_are_restricted(file: Any) -> None:
    pods = dict(_pods(yaml.safe_load_all(file.read_text())))
    assert {pod: faults for pod, spec in pods.items() if (faults := _faults(spec))} == {}


def test_manifests_with_pods_are_looked_at() -> None:
    pod_names = {pod for file in FILES for pod, _ in _pods(yaml.safe_load_all(file.read_text()))}
    assert {"dynamic-scoring-redis", "dynamic-scoring-optimizer", "dynamic-scoring-test", "sample-scorer"} <= pod_names


def test_uninstall_hook_runs_the_leave_command() -> None:
    objects = chart.render()
    job = chart.find_object(objects, "Job", "dynamic-scoring-uninstall")
    assert chart.containers(job)[0]["args"] == ["hub", "--leave"]
    hooks = [o for o in objects if o["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-delete"]
    assert {o["kind"] for o in hooks} == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Job",
    }
    for hook in hooks:
        assert "hook-succeeded" in hook["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    test = chart.find_object(objects, "Pod", "dynamic-scoring-installation-test")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert chart.environment(test["spec"]["containers"][0])["DSF_REDIS_USERNAME"] == "dsf-operator"
