"""The chart renders, is valid and complete with every set of values, and refuses what is wrong."""

from __future__ import annotations

import functools
import json
import re
import sys
from typing import Any

import jsonschema
import kubernetes_validate.utils  # type: ignore[import-untyped]
import pytest
import yaml

from dsf.api.crd import dump_crds, make_crds
from tests.support import chart, ocmschemas
from tests.support.child import run_program

#: Values of earlier versions, which the schema lets pass for a template to refuse with a sentence.
REFUSED = {"exporter", "results.writeRate", "web.enabled"}
#: Oldest and newest Kubernetes that the chart is checked with.
VERSIONS = ("1.27", "1.36")


@pytest.fixture(params=chart.MATRIX)
def objects(request: pytest.FixtureRequest) -> list[chart.Object]:
    """Return the rendered objects of one set of values."""
    return chart.render(chart.MATRIX[request.param])


#: Values with which `make test` lints the chart. `make test-all` also lints it with all others.
LINTED = {"defaults", "everything"}


@pytest.mark.parametrize(
    "name", [name if name in LINTED else pytest.param(name, marks=pytest.mark.whole) for name in chart.MATRIX]
)
def test_chart_passes_helm_lint(name: str) -> None:
    assert chart.lint(chart.MATRIX[name]) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_of_kubernetes_are_valid(objects: list[chart.Object], version: str) -> None:
    for obj in [*objects, *chart.agent_objects(objects)]:
        if _is_builtin(obj):
            _validate(json.dumps(obj), version)


def test_objects_of_ocm_and_ours_are_valid(objects: list[chart.Object]) -> None:
    schemas = ocmschemas.read_schemas()
    for obj in [*objects, *chart.agent_objects(objects)]:
        if (schema := schemas.get((obj["apiVersion"], obj["kind"]))) is not None:
            jsonschema.Draft202012Validator(schema).validate(obj)
        else:
            # A test with their CRDs on an API server applies objects of other operators.
            assert _is_builtin(obj) or obj["kind"] in chart.FOREIGN_KINDS, obj["kind"]


@pytest.mark.parametrize("name", chart.MATRIX)
def test_objects_of_other_operators_are_rendered_on_request(name: str) -> None:
    objects = chart.render(chart.MATRIX[name])
    kinds = {o["kind"] for o in [*objects, *chart.agent_objects(objects)]}
    assert kinds & chart.FOREIGN_KINDS == chart.FOREIGN.get(name, set())


def test_no_object_is_rendered_twice(objects: list[chart.Object]) -> None:
    for part in (objects, chart.agent_objects(objects)):
        names = [(o["apiVersion"], o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in part]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hubsetting": {}}, "hubsetting"),
        ({"redis": {"mode": "cluster"}}, "mode"),
        ({"redis": {"mode": "external"}}, "redis.external.url: required"),
        ({"redis": {"mode": "external", "external": {"url": "rediss://r"}}}, "redis.usersSecret: required"),
        ({"redis": {"exposure": {"host": "redis.example.com"}}}, "redis.exposure.host: not used"),
        (
            {
                "redis": {
                    "mode": "external",
                    "external": {"url": "rediss://redis.example.com:6379/0"},
                    "usersSecret": "users",
                    "exposure": {"type": "HubAPI"},
                }
            },
            "redis.exposure.type: HubAPI forwards connections to the pod of the bundled Redis",
        ),
        ({"redis": {"agentUrl": 'rediss://h:1/0","x":"'}}, "agentUrl"),
        ({"redis": {"agentUrl": "rediss://user:password@h:1/0"}}, "agentUrl"),
        ({"redis": {"exposure": {"type": "Route"}}}, "redis.exposure.host: required"),
        ({"redis": {"exposure": {"type": "NodePort"}}}, "redis.exposure.host: required"),
        ({"redis": {"exposure": {"type": "Ingress"}}}, "redis.exposure.host: required"),
        ({"redis": {"exposure": {"type": "TLSRoute", "host": "h"}}}, "redis.exposure.parentRefs: required"),
        (
            {"redis": {"exposure": {"type": "NodePort", "host": "192.0.2.1:30379"}}},
            "redis.exposure.host: 192.0.2.1:30379 has a port",
        ),
        ({"redis": {"exposure": {"type": "LoadBalancer", "host": "redis.example:6379"}}}, "has a port"),
        ({"redis": {"exposure": {"type": "NodePort", "host": "h", "nodePort": None}}}, "redis.agentUrl: required"),
        ({"redis": {"tls": {"source": "certManager"}}}, "issuerName: required"),
        ({"redis": {"tls": {"source": "existingSecret"}}}, "existingSecret: required"),
        (
            {"redis": {"mode": "external", "usersSecret": "u", "external": {"url": "sentinel://a:1"}}},
            "sentinel.master: required",
        ),
        (
            {"mode": "Distributed", "results": {"autoscaling": {"enabled": True}, "keda": {"enabled": True}}},
            "enable one",
        ),
        ({"flower": {"ingress": {"enabled": True}}}, "flower.ingress.host: required"),
        ({"web": {"ingress": {"enabled": True, "host": "page.example.com"}}}, "web.trustedProxies: required"),
        ({"addon": {"customizedVariables": [{"name": "A", "value": 'a"b'}]}}, "customizedVariables"),
        ({"addon": {"customizedVariables": [{"name": "A", "value": "a\\b"}]}}, "customizedVariables"),
        ({"addon": {"customizedVariables": [{"name": "A-B", "value": "a"}]}}, "customizedVariables"),
        ({"hub": {"replicas": 0}}, "replicas"),
        ({"log": {"level": "LOUD"}}, "level"),
        ({"spokeSetting": {"agent": {"runAsUser": 0}}}, "runAsUser"),
        # The metrics port is open to Prometheus.
        ({"spokeSetting": {"agent": {"sources": {"otlp": {"port": 8080}}}}}, "port"),
        # A rule without peers would allow everybody.
        ({"spokeSetting": {"agent": {"sources": {"otlp": {"from": []}}}}}, "from"),
        ({"spokeSetting": {"agent": {"sources": {"prometheus": True}}}}, "prometheus"),
    ],
)
def test_wrong_values_are_refused(values: chart.Values, message: str) -> None:
    with pytest.raises(chart.RenderError) as caught:
        chart.render(values)
    assert message in str(caught.value)


def test_crds_are_those_of_the_models() -> None:
    text = (chart.CHART / "files" / "crds.yaml").read_text()
    assert list(yaml.load_all(text, Loader=yaml.CSafeLoader)) == make_crds(), (
        "run: dsf crds > deploy/helm/files/crds.yaml"
    )
    assert text == dump_crds()
    assert not re.search(r"(^|\s)[&*]\w+$", text, re.MULTILINE), "anchors and aliases"


def test_crds_are_installed_and_kept_by_default() -> None:
    crds = chart.of_kind(chart.render(), "CustomResourceDefinition")
    assert [crd | {"metadata": {"name": crd["metadata"]["name"]}} for crd in crds] == make_crds()
    for crd in crds:
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert crd["metadata"]["labels"]["app.kubernetes.io/name"] == "dynamic-scoring-framework"
    crds = chart.of_kind(chart.render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert len(crds) == 3
    assert all("annotations" not in crd["metadata"] for crd in crds)


def test_crds_can_be_left_to_others() -> None:
    values: chart.Values = {"crds": {"install": False}}
    assert not chart.of_kind(chart.render(values), "CustomResourceDefinition")
    notes = chart.notes(values)
    assert "--show-only templates/crds.yaml" in notes
    assert "oci://ghcr.io/open-cluster-management-io/charts/dynamic-scoring-framework" in notes
    assert "templates/crds.yaml" not in chart.notes()


def test_notes_name_the_next_steps() -> None:
    notes = chart.notes()
    pages = re.findall(r"https://github\.com/\S+/blob/main/(docs/[a-z-]+\.md)", notes)
    assert sorted(pages) == ["docs/expressions.md", "docs/gitops.md"]
    assert all((chart.ROOT / page).is_file() for page in pages)
    account = re.search(r"kubectl -n (\S+) create token (\S+)", notes)
    assert account is not None
    assert account[1] == chart.NAMESPACE
    chart.find_object(chart.render(), "ServiceAccount", account[2])
    assert "create token" not in chart.notes({"web": {"auth": "open"}})


def test_values_table_is_up_to_date() -> None:
    script = chart.ROOT / "scripts" / "helm-values-table"
    process = run_program([sys.executable, script, "--print"], check=True)
    assert (chart.ROOT / "docs" / "helm-values.md").read_text() == process.stdout, "run: scripts/helm-values-table"
    rows = re.findall(r"^\| `([^`]+)` \|", process.stdout, re.MULTILINE)
    readme = (chart.CHART / "README.md").read_text()
    assert re.findall(r"^\| (\S+) \| (?:bool|int|float|string|list|object) \|", readme, re.MULTILINE) == rows
    descriptions = [line.split(" | ")[-1] for line in process.stdout.splitlines() if line.startswith("| `")]
    assert [line.split(" | ")[-1] for line in readme.splitlines() if line.startswith("| ")][1:] == descriptions


def test_links_of_the_readme_are_absolute_and_exist() -> None:
    readme = (chart.CHART / "README.md").read_text().partition("## Values")[0]
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert links
    for link in links:
        assert link.startswith("https://"), link
        if "/main/" in link:
            assert (chart.ROOT / link.partition("/main/")[2]).exists(), link


def test_chart_metadata_is_what_artifact_hub_shows() -> None:
    metadata = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert (chart.ROOT / metadata["icon"].partition("/main/")[2]).is_file()
    assert metadata["maintainers"]
    for name in ("category", "license", "images", "crds", "links", "changes"):
        assert metadata["annotations"][f"artifacthub.io/{name}"], name


def test_settings_template_is_up_to_date() -> None:
    script = chart.ROOT / "scripts" / "chart-settings"
    process = run_program([sys.executable, script, "--print"], check=True)
    template = (chart.CHART / "templates" / "_settings.tpl").read_text()
    assert template == process.stdout, "run: .venv/bin/python scripts/chart-settings"


def test_schema_and_values_have_the_same_keys() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    assert _keys_of_schema(schema) - REFUSED == _keys_of_values(values, schema)


def test_every_value_is_used() -> None:
    text = "".join(path.read_text() for path in sorted((chart.CHART / "templates").rglob("*.*")))
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    for key in _keys_of_values(values, schema):
        name = key.rpartition(".")[2]
        assert re.search(rf"\.{name}\b", text), key


def test_keys_of_the_upstream_project_mean_the_same() -> None:
    values = {
        "hubSetting": {
            "namespace": "hub-ns",
            "skipClusterSetBinding": True,
            "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
            "resourceController": {"image": {"name": "r/hub", "tag": "v1", "pullPolicy": "Always"}},
            "addonController": {"image": {"name": "r/addon", "tag": "v1", "pullPolicy": "Always"}},
        },
        "spokeSetting": {
            "namespace": "agent-ns",
            "agent": {"image": {"name": "r/agent", "tag": "v2", "pullPolicy": "Never"}},
        },
    }
    objects = chart.render(values)
    namespaced = [o for o in objects if "namespace" in o["metadata"]]
    assert {o["metadata"]["namespace"] for o in namespaced} == {"hub-ns"}
    assert not chart.of_kind(objects, "ManagedClusterSetBinding")
    workloads = chart.workloads(objects)
    hub = workloads["dynamic-scoring-hub"]
    assert {"name": "ca", "configMap": {"name": "ca"}} in chart.pod(hub)["volumes"]
    (container,) = chart.containers(hub)
    assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
    assert (container["image"], container["imagePullPolicy"]) == ("r/hub:v1", "Always")
    assert chart.environment(container)["DSF_AGENT_NAMESPACE"] == "agent-ns"
    agent = workloads["dynamic-scoring-agent"]
    assert agent["metadata"]["namespace"] == "agent-ns"
    (container,) = chart.containers(agent)
    assert (container["image"], container["imagePullPolicy"]) == ("r/agent:v2", "Never")
    assert "hubSetting.addonController.image is ignored" in chart.notes(values)


#: The images in the values file of the upstream chart.
_UPSTREAM_IMAGES = {
    "hubSetting": {
        "resourceController": {
            "image": {"name": "quay.io/open-cluster-management/dynamic-scoring-controller", "tag": "latest"}
        },
        "addonController": {"image": {"name": "quay.io/open-cluster-management/dynamic-scoring-addon"}},
    },
    "spokeSetting": {
        "agent": {"image": {"name": "quay.io/open-cluster-management/dynamic-scoring-addon", "tag": "latest"}}
    },
}


def test_images_of_the_upstream_project_are_ignored_with_a_note() -> None:
    images = set(re.findall(r'"image": "([^"]*)"', json.dumps(chart.render(_UPSTREAM_IMAGES))))
    assert images == set(re.findall(r'"image": "([^"]*)"', json.dumps(chart.render({}))))
    notes = chart.notes(_UPSTREAM_IMAGES)
    for key in ("hubSetting.resourceController.image", "spokeSetting.agent.image"):
        assert f"NOTE: {key} is ignored" in notes
    assert "is ignored" not in chart.notes({})


@pytest.mark.parametrize(
    "values",
    [
        {"hubSetting": {"resourceController": {"image": {"name": "mirror.example/dynamic-scoring-controller"}}}},
        {"spokeSetting": {"agent": {"image": {"name": "mirror.example/ocm/dynamic-scoring-addon", "tag": "v1"}}}},
        {"addon": {"customizedVariables": [{"name": "Image", "value": "mirror.example/dynamic-scoring-addon:v1"}]}},
        {
            "addon": {
                "customizedVariables": [
                    {"name": "Image", "value": "quay.io/open-cluster-management/dynamic-scoring-addon:latest"}
                ]
            }
        },
    ],
)
def test_images_of_the_upstream_project_elsewhere_are_refused(values: chart.Values) -> None:
    with pytest.raises(chart.RenderError, match="of the upstream project"):
        chart.render(values)


def test_chart_version_cannot_be_taken_for_upstream() -> None:
    """Upstream has a chart of this name with versions 0.x."""
    project = (chart.ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert version is not None
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert described["appVersion"] == version[1]
    major, _, rest = version[1].partition(".")
    assert described["version"] == f"{int(major) + 1}.{rest}"
    labels = chart.find_object(chart.render(), "Deployment", "dynamic-scoring-hub")["metadata"]["labels"]
    assert labels["helm.sh/chart"] == f"dynamic-scoring-framework-{described['version']}"
    assert labels["app.kubernetes.io/version"] == version[1]
    assert described["name"] == "dynamic-scoring-framework"


# The validator reads a megabyte of definitions for each object.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def _is_builtin(obj: chart.Object) -> bool:
    group = obj["apiVersion"].partition("/")[0]
    return ("." not in group or group.endswith(".k8s.io")) and obj["kind"] not in chart.FOREIGN_KINDS


@functools.cache
def _validate(obj: str, version: str) -> None:
    kubernetes_validate.validate(json.loads(obj), version, strict=True)


def _keys_of_schema(schema: dict[str, Any], prefix: str = "") -> set[str]:
    keys = set()
    for name, part in schema["properties"].items():
        is_group = part.get("additionalProperties") is False and set(part["properties"]) != {
            *("requests", "limits", "claims")
        }
        if is_group and not _is_free(part):
            keys |= _keys_of_schema(part, f"{prefix}{name}.")
        else:
            keys.add(prefix + name)
    return keys


def _is_free(part: dict[str, Any]) -> bool:
    """Return True if the default is an empty object, which has no keys in the values file."""
    return set(part["properties"]) in (
        {"httpProxy", "httpsProxy", "noProxy", "caBundle"},
        {"resourceRequirements", "nodePlacement"},
    )


def _keys_of_values(values: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> set[str]:
    keys = set()
    groups = {key.rpartition(".")[0] for key in _keys_of_schema(schema)}
    for name, value in values.items():
        key = prefix + name
        if isinstance(value, dict) and any(group == key or group.startswith(f"{key}.") for group in groups):
            keys |= _keys_of_values(value, schema, f"{key}.")
        else:
            keys.add(key)
    return keys
