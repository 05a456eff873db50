"""Agents reach Redis through the hub's API server: rights of their credentials, and interruptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.docs import pages
from tests.node.lab.command import LabError
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, InstalledQuickstart, restarts
from tests.support.wait import wait_for

_SECRET = "dynamic-scoring-framework-hub-kubeconfig"
_REDIS = "dynamic-scoring-redis-0"
#: `sl local_address rem_address st ...`: a listening socket has state 0A.
_LISTENING = "0A"


@pytest.fixture
def stolen(world: InstalledQuickstart, tmp_path: Path) -> Path:
    """The kubeconfig of cluster1's agent for the hub, with its certificate beside it."""
    secret = world.managed["cluster1"].get("secret", _SECRET, "-n", AGENT_NAMESPACE)
    for name, text in secret["data"].items():
        world.on_the_lan("sh", "-c", f"echo {text} | base64 -d > {tmp_path / name}")
    return tmp_path / "kubeconfig"


@pytest.mark.usefixtures("own_nodes")
def test_agents_are_configured_to_use_the_hub_api(world: InstalledQuickstart) -> None:
    deployment = world.managed["cluster1"].get("deployment", "dynamic-scoring-agent", "-n", AGENT_NAMESPACE)
    environment = {
        entry["name"]: entry.get("value") for entry in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert environment["DSF_REDIS_POD"] == f"{HUB_NAMESPACE}/{_REDIS}:6379"


def test_check_succeeds_in_the_agents_pod(world: InstalledQuickstart) -> None:
    output = world.managed["cluster1"].kubectl(
        "-n", AGENT_NAMESPACE, "exec", "deployment/dynamic-scoring-agent", "--", "dsf", "agent", "--check"
    )
    assert [line.split()[:2] for line in output.splitlines()][-1] == ["ok", "queue"]
    assert "FAIL" not in output


def test_check_succeeds_as_a_job(world: InstalledQuickstart) -> None:
    """The Job that docs/install.md names, in a pod beside the agent's."""
    cluster = world.managed["cluster1"]
    manifest = (pages.ROOT / "deploy" / "utils" / "agent-check.yaml").read_text()
    name = "dynamic-scoring-agent-check"
    cluster.kubectl("apply", "-f", "-", stdin=manifest.replace("CLUSTER_NAME", "cluster1"))
    try:
        wait = ("wait", "--for=condition=Complete", f"job/{name}", "--timeout=90s")
        cluster.kubectl("-n", AGENT_NAMESPACE, *wait)
        output = cluster.kubectl("-n", AGENT_NAMESPACE, "logs", f"job/{name}")
    finally:
        cluster.kubectl("-n", AGENT_NAMESPACE, "delete", "job", name)
    steps = [line.split()[:2] for line in output.splitlines() if line.startswith(("ok", "FAIL"))]
    assert ["ok", "port-forward"] in steps, output
    assert steps[-1] == ["ok", "queue"], output


@pytest.mark.usefixtures("own_nodes")
@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "is_allowed"),
    [
        ("create", f"pods/{_REDIS}/portforward", HUB_NAMESPACE, True),
        ("create", f"pods/{_REDIS}/exec", HUB_NAMESPACE, False),
        ("create", "pods/dynamic-scoring-hub-0/portforward", HUB_NAMESPACE, False),
        ("create", f"pods/{_REDIS}/portforward", "default", False),
        ("get", f"pods/{_REDIS}/log", HUB_NAMESPACE, False),
        ("list", "pods", HUB_NAMESPACE, False),
        ("get", "secrets", HUB_NAMESPACE, False),
        ("list", "managedclusters", "", False),
    ],
)
def test_stolen_credential_may_only_forward_to_redis(
    world: InstalledQuickstart, stolen: Path, verb: str, resource: str, namespace: str, is_allowed: bool
) -> None:
    kind, _, name_and_subresource = resource.partition("/")
    name, _, subresource = name_and_subresource.partition("/")
    resource_arguments = [kind + (f"/{name}" if name else ""), *(["--subresource", subresource] if subresource else [])]
    scope = ["-n", namespace] if namespace else []
    command = [
        str(world.hub.programs / "kubectl"),
        "--kubeconfig",
        str(stolen),
        "auth",
        "can-i",
        verb,
        *resource_arguments,
        *scope,
    ]
    try:
        response = world.on_the_lan(*command)
    except LabError as error:
        response = str(error)
    assert ("yes" in response.splitlines()[0:1]) == is_allowed, response


def test_redis_pod_listens_on_its_port_alone(world: InstalledQuickstart) -> None:
    tables = world.hub.kubectl(
        "-n", HUB_NAMESPACE, "exec", _REDIS, "--", "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6"
    )
    sockets = [line.split() for line in tables.splitlines() if line.strip()[:1].isdigit()]
    ports = {int(fields[1].rpartition(":")[2], 16) for fields in sockets if fields[3] == _LISTENING}
    assert ports == {6379}


@pytest.mark.usefixtures("own_nodes")
def test_agents_reconnect_after_a_restart_of_the_api_server(world: InstalledQuickstart) -> None:
    daemon = world.hub.daemon("kube-apiserver")
    with world.watch() as watch, watch.window("API server restarted", 30):
        daemon.stop()
        world.hub.start()
        world.hub.wait()
        world.rescore()
    assert _agent_restarts(world) == {0}


@pytest.mark.usefixtures("own_nodes")
def test_agents_reconnect_after_a_restart_of_the_kubelet(world: InstalledQuickstart) -> None:
    with world.watch() as watch, watch.window("kubelet restarted", 30):
        world.hub.daemon("kubelet").stop()
        world.hub.node.start_kubelet(world.hub)
        world.hub.wait()
        world.rescore()
    assert _agent_restarts(world) == {0}


def _agent_restarts(world: InstalledQuickstart) -> set[int]:
    pods = [
        pod
        for cluster in world.managed.values()
        for pod in world.pods(cluster, AGENT_NAMESPACE, "app=dynamic-scoring-agent")
    ]
    return {count for pod in pods for count in restarts(pod).values()}


@pytest.mark.usefixtures("own_nodes")
def test_renewed_certificate_is_used_for_new_connections(world: InstalledQuickstart) -> None:
    """The Secret is replaced and Redis restarts: every agent reconnects with the new content of the Secret."""
    for cluster in world.managed.values():
        cluster.kubectl("-n", AGENT_NAMESPACE, "delete", "secret", _SECRET)

    def is_renewed() -> bool:
        clusters = world.managed.values()
        return all(cluster.try_kubectl("-n", AGENT_NAMESPACE, "get", "secret", _SECRET) for cluster in clusters)

    wait_for(is_renewed, 60, "the Secrets of all clusters", interval=1)
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "pod", _REDIS, timeout=180)
    world.settle()
    assert _agent_restarts(world) == {0}
