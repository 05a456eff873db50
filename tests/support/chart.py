"""Renders the chart as `helm template` does: with helm on PATH, otherwise with Helm's own code in helm-python-sdk."""

from __future__ import annotations

import base64
import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm"
RELEASE = "dynamic-scoring-framework"
NAMESPACE = "open-cluster-management"
#: Group of every agent of the add-on, in the certificates that OCM's registration makes.
ADDON_GROUP = "system:open-cluster-management:addon:dynamic-scoring-framework"

Object = dict[str, Any]
Values = dict[str, Any]

#: Services of the hub: one process in mode Single, a process for each in mode Distributed.
SERVICES = ("controller", "beat", "results", "web")
MODES = {"Single": ("hub",), "Distributed": SERVICES}

#: Values that turn on everything that is off by default, in mode Distributed.
EVERYTHING: Values = {
    "mode": "Distributed",
    "hubSetting": {
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "resourceController": {"image": {"name": "registry.example.com/dsf", "digest": f"sha256:{'0' * 64}"}},
        "addonController": {"image": {"name": "old", "tag": "latest", "pullPolicy": "Always"}},
        "scoringConfig": {"masks": [{"clusterName": "c1", "scoreName": "*"}]},
    },
    "spokeSetting": {
        "agent": {
            "imagePullSecrets": ["our-registry-secret"],
            "pullSecret": "agent-registry",
            "tokenSecrets": ["prometheus-token", {"name": "scorer-token", "hosts": ["scorer.example.com:8443"]}],
            "runAsUser": 65532,
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "system-cluster-critical",
            "extraEnv": [{"name": "DSF_MAX_SOURCE_BYTES", "value": "{{MAX_SOURCE_BYTES}}"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "podAnnotations": {"example.com/a": "b"},
            "serviceMonitor": {"enabled": True},
            "sources": {
                "kubernetes": True,
                "objects": [{"apiGroup": "apps", "resource": "deployments"}],
                "otlp": {"enabled": True, "port": 14318, "tokenSecret": "otlp-token"},
            },
        }
    },
    "addon": {
        "predicates": [{"requiredClusterSelector": {"labelSelector": {"matchLabels": {"vendor": "OpenShift"}}}}],
        "customizedVariables": [{"name": "MAX_SOURCE_BYTES", "value": "1000"}],
        "proxyConfig": {"httpsProxy": "http://proxy:3128", "noProxy": ".svc"},
        "registries": [{"source": "ghcr.io/open-cluster-management-io", "mirror": "mirror.example.com/ocm"}],
        "deploymentConfig": {
            "resourceRequirements": [
                {
                    "containerID": "deployments:dynamic-scoring-agent:agent",
                    "resources": {"requests": {"cpu": "10m"}},
                }
            ]
        },
    },
    "controller": {"extraEnv": [{"name": "DSF_HEALTH_INTERVAL", "value": "10"}]},
    "results": {"autoscaling": {"enabled": True}},
    "web": {
        "replicas": 2,
        "hosts": ["scores.example.com"],
        "trustedProxies": ["10.0.0.0/8"],
        "operators": ["sre"],
        "flowerUrl": "https://flower.example.com",
        "serviceAnnotations": {"a.example.com/b": "c"},
        "ingress": {"enabled": True, "host": "page.example.com", "className": "nginx", "tlsSecret": "page-tls"},
    },
    "flower": {
        "readOnly": False,
        "ingress": {"enabled": True, "host": "flower.example.com", "className": "nginx", "tlsSecret": "flower-tls"},
    },
    "optimizer": {"enabled": True, "extraEnv": [{"name": "DSF_OPTIMIZER_CLUSTER_SELECTOR", "value": "name"}]},
    "redis": {
        "persistence": {"storageClass": "fast"},
        "tls": {"extraHosts": ["redis.example.com", "192.0.2.7"]},
        "exposure": {
            "type": "LoadBalancer",
            "host": "192.0.2.8",
            "sourceRanges": ["192.0.2.0/24"],
            "loadBalancerClass": "example.com/internal",
            "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "PreferDualStack",
            # The API servers of the tests have IPv4 only.
            "ipFamilies": ["IPv4"],
        },
    },
    "networkPolicy": {
        "flowerFrom": [{"podSelector": {}}],
        "webFrom": [{"podSelector": {}}],
        "optimizerFrom": [{"podSelector": {}}],
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "kube-prometheus"}},
        "prometheusRule": {"enabled": True, "alertLabels": {"team": "platform"}},
    },
    "openshift": {"serviceCA": True},
    "trustedCA": {
        "configMap": "company-ca",
        "agentBundle": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
    },
    "proxy": {"httpsProxy": "http://proxy:3128", "noProxy": "10.0.0.0/8"},
    "imagePullSecrets": ["hub-registry-secret"],
    "nodeSelector": {"node-role.kubernetes.io/infra": ""},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"example.com/a": "b"},
    "commonLabels": {"example.com/team": "platform"},
}


#: The chart's own values.
DEFAULTS: Values = yaml.load((CHART / "values.yaml").read_text(), Loader=yaml.CSafeLoader)


def _read_exposure(name: str) -> Values:
    values: Values = yaml.safe_load((ROOT / "deploy" / "exposure" / f"{name}.yaml").read_text())
    return values


#: Values with which every check is repeated.
MATRIX: dict[str, Values] = {
    "defaults": {},
    "distributed": {"mode": "Distributed"},
    "everything": EVERYTHING,
    "everything-single": {
        **{name: value for name, value in EVERYTHING.items() if name not in ("mode", "controller", "results")},
        "web": {name: value for name, value in EVERYTHING["web"].items() if name != "replicas"},
        "hub": {"replicas": 2, "extraEnv": [{"name": "DSF_HEALTH_INTERVAL", "value": "10"}]},
    },
    "least": {
        "addon": {"enabled": False},
        "flower": {"enabled": False},
        "hubSetting": {"scoringConfig": {"create": False}},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "redis": {"persistence": {"enabled": False}, "tls": {"enabled": False}},
        "rbac": {"aggregate": True},
        "affinity": {"nodeAffinity": {}},
    },
    "other-names": {
        "hubSetting": {"namespace": "scoring-hub", "skipClusterSetBinding": True},
        "spokeSetting": {"namespace": "scoring-agent", "keepNamespace": False, "agent": {"copyPullSecret": False}},
        "addon": {"installStrategy": "Manual"},
        "signing": {"existingSecret": "our-signing"},
        "flower": {"existingSecret": "our-flower", "service": {"type": "NodePort"}},
    },
    "openshift": {"openshift": {"enabled": True, "serviceCA": True}},
    "open-otlp": {
        "spokeSetting": {"agent": {"networkPolicy": False, "sources": {"otlp": {"enabled": True}}}},
    },
    "optimizer": {"optimizer": {"enabled": True}},
    "keda": {"mode": "Distributed", "results": {"keda": {"enabled": True}}},
    "cert-manager": {
        "redis": {"tls": {"source": "certManager", "certManager": {"issuerName": "ca"}, "extraHosts": ["192.0.2.7"]}}
    },
    "own-certificate": {"redis": {"tls": {"source": "existingSecret", "existingSecret": "redis-cert"}}},
    "external": {"redis": {"mode": "external", "usersSecret": "users", "external": {"url": "rediss://redis:6380/0"}}},
    **{path.stem: _read_exposure(path.stem) for path in sorted((ROOT / "deploy" / "exposure").glob("*.yaml"))},
}

#: Kinds of other operators, whose CRDs a hub may lack, by the values in MATRIX that create them.
FOREIGN = {
    "everything": {"ServiceMonitor", "PrometheusRule"},
    "everything-single": {"ServiceMonitor", "PrometheusRule"},
    "keda": {"ScaledObject"},
    "cert-manager": {"Certificate"},
    "route": {"Route"},
    "tlsroute": {"TLSRoute"},
    "skupper-v2": {"Connector"},
}
FOREIGN_KINDS = set().union(*FOREIGN.values())

#: Severity of advice in Helm: information, then warning, then error.
_INFO = 1


class RenderError(Exception):
    """Helm refused the values or the chart."""


def render(values: Values | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE) -> list[Object]:
    """Return every object of the chart. Raises RenderError with Helm's message."""
    return [
        json.loads(text) for text in _render_documents(json.dumps(values or {}, sort_keys=True), release, namespace)
    ]


def notes(values: Values | None = None) -> str:
    """Return the notes printed after an installation. Does not work with a helm on PATH."""
    return _files(json.dumps(values or {}, sort_keys=True), RELEASE, NAMESPACE)[f"{RELEASE}/templates/NOTES.txt"]


def lint(values: Values | None = None) -> list[str]:
    """Return the findings of `helm lint --strict`."""
    if helm := shutil.which("helm"):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values or {}, file)
            file.flush()
            process = _run(helm, "lint", "--strict", "--values", file.name, str(CHART))
        return [] if process.returncode == 0 else [process.stdout + process.stderr]
    import helm_python

    report = helm_python.lint(CHART, values=values or {}, strict=True)
    return [str(message) for message in report["messages"] if message["severity"] > _INFO]


@functools.cache
def _render_documents(values: str, release: str, namespace: str) -> tuple[str, ...]:
    if helm := shutil.which("helm"):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(values)
            file.flush()
            process = _run(helm, "template", release, str(CHART), "--namespace", namespace, "--values", file.name)
        if process.returncode:
            raise RenderError(process.stderr)
        texts: Iterable[str] = [process.stdout]
    else:
        texts = [text for name, text in _files(values, release, namespace).items() if name.endswith(".yaml")]
    return tuple(document for text in texts for document in _parse(text))


@functools.cache
def _parse(text: str) -> tuple[str, ...]:
    """Return the documents of a file as JSON. Most files, such as those of CRDs, are the same with other values."""
    return tuple(json.dumps(document) for document in yaml.load_all(text, Loader=_Loader) if document)


@functools.lru_cache(64)
def _files(values: str, release: str, namespace: str) -> dict[str, str]:
    """Return the rendered files by name, by Helm's own code in helm-python-sdk."""
    import helm_python

    chart = _chart()
    try:
        # Helm's commands validate the schema; rendering alone does not.
        chart.validate_schema(json.loads(values))
        return chart.render(json.loads(values), name=release, namespace=namespace)
    except helm_python.HelmError as error:
        raise RenderError(str(error)) from None


@functools.cache
def _chart() -> Any:
    """Return the chart, read once, because its files do not change."""
    import helm_python

    return helm_python.Chart.load(CHART)


# C code if PyYAML has it: ten times as fast, and tests render the chart hundreds of times.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses duplicate keys, of which PyYAML silently keeps the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise RenderError(f"twice in one mapping: {twice} {node.start_mark}")
        return super().construct_mapping(node, deep)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return run_program(command)


def find_object(objects: Iterable[Object], kind: str, name: str = "") -> Object:
    """Return the object of this kind and name."""
    (matching_object,) = [o for o in objects if o["kind"] == kind and (not name or o["metadata"]["name"] == name)]
    return matching_object


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    """Return the objects of these kinds."""
    return [o for o in objects if o["kind"] in kinds]


def agent_objects(objects: list[Object]) -> list[Object]:
    """Return the objects in the AddOnTemplate; none without one."""
    return [m for t in of_kind(objects, "AddOnTemplate") for m in t["spec"]["agentSpec"]["workload"]["manifests"]]


def workloads(objects: list[Object]) -> dict[str, Object]:
    """Return Deployments and StatefulSets by name, including the agent's."""
    all_objects = [*objects, *agent_objects(objects)]
    return {o["metadata"]["name"]: o for o in of_kind(all_objects, "Deployment", "StatefulSet")}


def pod(workload: Object) -> Object:
    """Return the pod spec of a workload."""
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def containers(workload: Object) -> list[Object]:
    """Return the containers of a workload, init containers first."""
    spec = pod(workload)
    return [*spec.get("initContainers", []), *spec["containers"]]


def environment(container: Object) -> dict[str, str]:
    """Return the environment of a container; `(a reference)` for values from other objects."""
    return {entry["name"]: entry.get("value", "(a reference)") for entry in container.get("env", [])}


def get_environment(objects: list[Object] | dict[str, Object], name: str) -> dict[str, str]:
    """Return the environment of the only container of a process, of these objects or workloads."""
    (container,) = containers((workloads(objects) if isinstance(objects, list) else objects)[f"dynamic-scoring-{name}"])
    return environment(container)


def secret_text(secret: Object, key: str) -> str:
    """Return a value of a Secret."""
    return base64.b64decode(secret["data"][key], validate=True).decode()
