"""Sources that need more of an agent's pod than Prometheus does: rights, a port, Secrets from the hub, a CA."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.lab import folders
from tests.node.lab.certificates import Authority
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, MANAGED, InstalledQuickstart
from tests.support.wait import wait_for

_OPENSHIFT = "service.beta.openshift.io/inject-cabundle"
_SERVER = "prometheus-tls"
_GROUP = "dynamic-scoring.open-cluster-management.io"
_AGENT = "dynamic-scoring-agent"
_INTERVAL = 10
_DELETE = ("-n", HUB_NAMESPACE, "delete", "dynamicscorer")
_VALUES = (
    "--set hubSetting.secretDelivery=true",
    "--set spokeSetting.agent.sources.otlp.enabled=true",
    """--set-json 'spokeSetting.agent.sources.objects=[{"apiGroup":"apps","resource":"deployments"}]'""",
)
_OBJECT = {
    "type": "Object",
    "object": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "namespace": AGENT_NAMESPACE,
        "fields": [{"name": "grace", "path": "spec.template.spec.terminationGracePeriodSeconds"}],
    },
    "params": {"range": 60},
}
_PUSHED = {
    "type": "OpenTelemetry",
    "path": "/v1/metrics",
    "params": {"query": "power.used", "range": 60, "step": 10},
}
#: Pushes one value to the agents' Service, as a collector would; runs in a pod of the cluster.
_PUSH = """
import json, time, urllib.request
point = {"timeUnixNano": str(time.time_ns()), "asDouble": 42}
metric = {"name": "power.used", "gauge": {"dataPoints": [point]}}
body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
urllib.request.urlopen(urllib.request.Request("http://dynamic-scoring-agent-otlp:4318/v1/metrics",
    json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=5)
"""


@pytest.fixture(scope="module", autouse=True)
def _registered(world: InstalledQuickstart) -> Iterator[None]:
    """The chart gives agents the right, the port and the Secrets, none of which is on by default. They stay."""
    # The windows of the files before: their cycles are decided by now, and still in the histories.
    world.judge()
    world.helm("upgrade", "deploy/helm", "--reuse-values", *_VALUES, "--wait --timeout 8m")
    prometheus = copy.deepcopy(_page(world)["spec"]["source"])
    prometheus |= {"name": "seven", "auth": {"authenticationRef": {"name": "fleet-token"}}}
    prometheus["params"]["query"] = "vector(7)"
    spec = {
        "allowedHosts": [prometheus["host"]],
        "secretDelivery": [{"name": "fleet-token"}],
        "tokenSecretRef": {"name": "fleet-token", "key": "token"},
    }
    world.hub.apply(_secret("fleet-token", token=b"first"), _make_object("ScoringAuthentication", "fleet-token", spec))
    _register(world, "grace-period", source=_OBJECT)
    _register(world, "power-used", source=_PUSHED)
    _register(world, "seven", sources=[prometheus, {"name": "grace", **_OBJECT}])
    try:
        yield
    finally:
        world.hub.kubectl(*_DELETE, "grace-period", "power-used", "seven", "--ignore-not-found")
        world.settle()


def _page(world: InstalledQuickstart) -> dict[str, Any]:
    """Return the quickstart's second scorer."""
    return world.hub.get("dynamicscorer", "cluster-free", "-n", HUB_NAMESPACE)


def _make_object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": HUB_NAMESPACE}
    return {"apiVersion": f"{_GROUP}/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def _secret(name: str, **data: bytes) -> dict[str, Any]:
    """Return a Secret that the hub delivers to the clusters; an underscore in its keys stands for a dot."""
    metadata = {"name": name, "namespace": HUB_NAMESPACE, "labels": {f"{_GROUP}/deliver": "true"}}
    values = {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": values}


def _register(world: InstalledQuickstart, name: str, **sources: Any) -> None:
    """The quickstart's second scorer once more, with other sources."""
    spec = copy.deepcopy(_page(world)["spec"])
    del spec["source"]
    spec |= sources
    spec["scoring"]["params"] |= {"name": name.replace("-", "_"), "interval": _INTERVAL}
    world.hub.apply(_make_object("DynamicScorer", name, spec))


def _has(world: InstalledQuickstart, cluster: str, name: str, value: int) -> bool:
    score = world.score(cluster, name)
    assert score == {name.replace("-", "_"): value}, f"{score}; {world.dsf('scores', '--cluster', cluster)}"
    return True


def test_object_source_scores_fields_of_objects(world: InstalledQuickstart) -> None:
    for name in MANAGED:
        agent = world.managed[name].get("deployment", _AGENT, "-n", AGENT_NAMESPACE)
        seconds = agent["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        wait_for(lambda name=name, value=seconds: _has(world, name, "grace-period", value), 90, interval=1)


def test_pushed_metrics_of_a_collector_are_scored(world: InstalledQuickstart) -> None:
    for name in MANAGED:
        cluster = world.managed[name]

        def scored(name: str = name, cluster: Any = cluster) -> bool:
            # The port opens with the scorer: until then a collector tries again.
            deployment = ("-n", AGENT_NAMESPACE, "exec", f"deployment/{_AGENT}", "--")
            cluster.try_kubectl(*deployment, "python", "-c", _PUSH)
            return _has(world, name, "power-used", 42)

        wait_for(scored, 90, f"a score of what was pushed on {name}", interval=2)


def test_several_sources_use_a_secret_from_the_hub(world: InstalledQuickstart) -> None:
    for name in MANAGED:
        # The cycle reads the Secret: it is there, and so is the right that the hub wrote for it.
        wait_for(lambda name=name: _has(world, name, "seven", 7), 90, interval=1)
        assert _token(world, name) == "first"
    world.hub.apply(_secret("fleet-token", token=b"second"))
    for name in MANAGED:
        wait_for(lambda name=name: _token(world, name) == "second", 60, f"the new token on {name}", interval=1)
    world.hub.kubectl(*_DELETE, "seven")
    for name in MANAGED:
        wait_for(lambda name=name: not _token(world, name), 60, f"no token on {name}", interval=1)


def test_service_ca_injected_by_the_cluster_is_trusted(world: InstalledQuickstart, tmp_path: Path) -> None:
    """The test signs a service with a CA of the cluster and fills ConfigMaps that request it, as OpenShift does.

    The server requires a client certificate, which comes from the hub.
    """
    host = f"https://{_SERVER}.default.svc:9090"
    cas, clients = {name: Authority(tmp_path / name) for name in MANAGED}, Authority(tmp_path / "clients")
    clients.sign("client", "/CN=agents")
    for name, ca in cas.items():
        ca.sign("tls", "/CN=service", f"DNS:{_SERVER}.default.svc")
        files = {"tls.crt": ca.path("tls.crt"), "tls.key": ca.path("tls.key"), "clients.crt": clients.path("ca.crt")}
        secret_files = [f"--from-file={key}={path}" for key, path in files.items()]
        world.managed[name].kubectl("-n", "default", "create", "secret", "generic", _SERVER, *secret_files)
        world.managed[name].apply(folders.HERE / "manifests" / f"{_SERVER}.yaml")
    data = {f"tls_{kind}": clients.path(f"client.{kind}").read_bytes() for kind in ("crt", "key")}
    spec = {
        "allowedHosts": [host],
        "secretDelivery": [{"name": "agents-certificate"}],
        "clientCertificate": {"secretName": "agents-certificate"},
    }
    world.hub.apply(_secret("agents-certificate", **data), _make_object("ScoringAuthentication", "agents", spec))
    source = copy.deepcopy(_page(world)["spec"]["source"]) | {"host": host}
    source |= {"auth": {"authenticationRef": {"name": "agents"}}}
    source["params"]["query"] = "vector(7)"
    _register(world, "service-ca", source=source)
    try:
        for name in MANAGED:
            wait_for(lambda name=name: _has_refusal(world, name), 90, f"a certificate that {name} refuses", interval=1)
            [asking] = [
                config_map
                for config_map in world.managed[name].items("configmaps", "-n", AGENT_NAMESPACE)
                if _requests_ca(config_map)
            ]
            patch = json.dumps({"data": {"service-ca.crt": cas[name].path("ca.crt").read_text()}})
            where = ("-n", AGENT_NAMESPACE, "patch", "configmap", asking["metadata"]["name"])
            world.managed[name].kubectl(*where, "--type=merge", "--patch", patch)
            # The kubelet updates a mounted ConfigMap within about a minute, or at once when the pod changes.
            world.managed[name].kubectl(
                "-n", AGENT_NAMESPACE, "annotate", "pod", f"--selector=app={_AGENT}", "look=now"
            )
        for name in MANAGED:
            wait_for(lambda name=name: _has(world, name, "service-ca", 7), 150, interval=1)
    finally:
        world.hub.kubectl(*_DELETE, "service-ca")


def _has_refusal(world: InstalledQuickstart, cluster: str) -> bool:
    history = world.dsf("history", "service-ca", "--cluster", cluster)
    assert "TLS failed" in history, history
    return True


def _requests_ca(config_map: dict[str, Any]) -> bool:
    return bool(config_map["metadata"].get("annotations", {}).get(_OPENSHIFT) == "true")


def _token(world: InstalledQuickstart, cluster: str) -> str:
    """Return the token of the hub's Secret on the cluster, or an empty string without one."""
    secrets = world.managed[cluster].items(
        "secrets", "-n", AGENT_NAMESPACE, "--field-selector=metadata.name=fleet-token"
    )
    return base64.b64decode(secrets[0]["data"]["token"]).decode() if secrets else ""
