"""Options of pods, images and extra objects are applied to every process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import chart

#: Sections of the values file with options of pods; each is a process on the hub.
PROCESSES = ("hub", *chart.SERVICES, "flower", "optimizer", "redis")
SELECTOR = {"matchLabels": {"zone": "a"}}


def _options(name: str) -> chart.Values:
    """Return every option of a process's pods, with a value that names the process."""
    return {
        "nodeSelector": {"pool": name},
        "tolerations": [{"key": name, "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": SELECTOR},
        ],
        "podLabels": {"example.com/process": name},
        "podAnnotations": {"example.com/process": name},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": name}},
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    }


def _workload(objects: list[chart.Object], name: str) -> chart.Object:
    return chart.workloads(objects)[f"dynamic-scoring-{name}"]


@pytest.mark.parametrize("mode", chart.MODES)
def test_options_of_a_process_reach_its_pods_alone(mode: str) -> None:
    values: chart.Values = {"mode": mode, "optimizer": {"enabled": True}}
    processes = (*chart.MODES[mode], "flower", "optimizer", "redis")
    for name in processes:
        values[name] = values.get(name, {}) | _options(name)
    objects = chart.render(values)
    for name in processes:
        workload = _workload(objects, name)
        spec, metadata = chart.pod(workload), workload["spec"]["template"]["metadata"]
        for option in ("nodeSelector", "tolerations", "affinity"):
            assert spec[option] == _options(name)[option]
        chart_constraint, added_constraint = spec["topologySpreadConstraints"]
        assert chart_constraint["labelSelector"] == workload["spec"]["selector"]
        assert added_constraint["labelSelector"] == SELECTOR
        assert metadata["labels"]["example.com/process"] == name
        assert metadata["annotations"]["example.com/process"] == name
        assert {"name": "extra", "emptyDir": {}} in spec["volumes"]
        assert {"name": "extra", "mountPath": "/extra"} in chart.containers(workload)[-1]["volumeMounts"]
        account = chart.find_object(objects, "ServiceAccount", f"dynamic-scoring-{name}")
        assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": name}


def test_options_of_all_pods_are_the_default_of_each_process() -> None:
    options = _options("all")
    names = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "podLabels", "podAnnotations")
    values = {name: options[name] for name in names}
    values |= {"mode": "Distributed", "beat": {"nodeSelector": {"pool": "beat"}, "podLabels": {"a": "b"}}}
    objects = chart.render(values)
    for name in set(PROCESSES) - {"hub", "optimizer"}:
        workload = _workload(objects, name)
        assert chart.pod(workload)["nodeSelector"] == {"pool": "beat" if name == "beat" else "all"}
        assert chart.pod(workload)["tolerations"] == options["tolerations"]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert labels["example.com/process"] == "all"
        assert labels.get("a") == ("b" if name == "beat" else None)


def test_pod_labels_cannot_replace_those_that_select_the_pods() -> None:
    label = "app.kubernetes.io/component"
    workload = _workload(chart.render({"hub": {"podLabels": {label: "mine"}}}), "hub")
    assert workload["spec"]["template"]["metadata"]["labels"][label] == "hub"


def test_pull_secrets_are_names_or_references_as_in_a_pod() -> None:
    secrets = ["first", {"name": "second"}]
    values = {
        "imagePullSecrets": secrets,
        "global": {"imagePullSecrets": [{"name": "third"}, "first"]},
        "spokeSetting": {"agent": {"imagePullSecrets": secrets}},
    }
    objects = chart.render(values)
    expected = [{"name": name} for name in ("third", "first", "second")]
    for name, workload in chart.workloads(objects).items():
        if name != "dynamic-scoring-agent":
            assert chart.pod(workload)["imagePullSecrets"] == expected
    account = chart.find_object(chart.agent_objects(objects), "ServiceAccount")
    assert account["imagePullSecrets"] == [{"name": "first"}, {"name": "second"}]


@pytest.mark.parametrize("registry", ["mirror.example.com:5000", "mirror.example.com/team/"])
def test_global_registry_is_that_of_every_image(registry: str) -> None:
    prefix = registry.rstrip("/")
    objects = chart.render({"global": {"imageRegistry": registry}})
    assert _images(objects) == {
        image.replace("ghcr.io/", f"{prefix}/").replace("docker.io/", f"{prefix}/") for image in _images(chart.render())
    }
    values = {
        "global": {"imageRegistry": registry, "other": {"of": "a chart beside this one"}},
        "hubSetting": {"resourceController": {"image": {"name": "team/hub", "digest": f"sha256:{'0' * 64}"}}},
        "spokeSetting": {"agent": {"image": {"name": "localhost/agent", "tag": "v2"}}},
    }
    images = _images(chart.render(values))
    assert f"{prefix}/team/hub@sha256:{'0' * 64}" in images
    assert f"{prefix}/agent:v2" in images


def _images(objects: list[chart.Object]) -> set[str]:
    """Yield every image in the objects, including hooks and the agent."""
    return set(re.findall(r'"image": "([^"]*)"', json.dumps(objects)))


@pytest.mark.parametrize("tag", ["latest", "v0.1.0", "main", "sha-0123456"])
def test_tags_of_the_upstream_project_without_a_name_are_ignored_with_a_note(tag: str) -> None:
    values = {
        "hubSetting": {"resourceController": {"image": {"tag": tag}}},
        "spokeSetting": {"agent": {"image": {"tag": tag}}},
    }
    assert _images(chart.render(values)) == _images(chart.render())
    notes = chart.notes(values)
    for key in ("hubSetting.resourceController.image.tag", "spokeSetting.agent.image.tag"):
        assert f"NOTE: {key} is ignored" in notes


@pytest.mark.parametrize(
    "image", [{"tag": "0.1.1"}, {"tag": "0.2.0-rc.1"}, {"name": "registry.example.com/dsf", "tag": "latest"}]
)
def test_tags_of_releases_and_custom_images_are_used(image: dict[str, str]) -> None:
    values = {"hubSetting": {"resourceController": {"image": image}}}
    name = image.get("name", "ghcr.io/open-cluster-management-io/dynamic-scoring-framework")
    assert f"{name}:{image['tag']}" in _images(chart.render(values))
    assert "is ignored" not in chart.notes(values)


def test_namespace_is_that_of_the_release_unless_a_value_sets_it() -> None:
    for values, expected in (({}, "scoring"), ({"hubSetting": {"namespace": "other"}}, "other")):
        objects = chart.render(values, namespace="scoring")
        assert {o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"]} == {expected}
        text = json.dumps([*objects, chart.agent_objects(objects)]).replace(chart.ADDON_GROUP, "")
        assert "open-cluster-management" not in re.sub(r"[\w.-]*open-cluster-management[.-]io[\w./-]*", "", text)


def test_extra_objects_are_manifests_or_templates_of_them() -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-extra"}}
    text = 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: text, namespace: "{{ .Release.Namespace }}"}\n'
    objects = chart.render({"extraObjects": [manifest, text]})
    assert chart.find_object(objects, "ConfigMap", f"{chart.RELEASE}-extra")
    assert chart.find_object(objects, "ConfigMap", "text")["metadata"]["namespace"] == chart.NAMESPACE


#: Every value that is free text, as a number that YAML would read.
NUMBERS: chart.Values = {
    "hubSetting": {"namespace": "1", "resourceController": {"image": {"name": "2", "tag": "3"}}},
    "spokeSetting": {
        "namespace": "4",
        "agent": {
            "imagePullSecrets": ["5"],
            "pullSecret": "6",
            "tokenSecrets": ["7"],
            "priorityClassName": "8",
            "nodeSelector": {"a": "9"},
            "podAnnotations": {"a": "10"},
            "extraEnv": [{"name": "A", "value": "11"}],
            "sources": {"otlp": {"enabled": True, "tokenSecret": "12"}},
            "serviceMonitor": {"enabled": True, "labels": {"a": "13"}},
        },
    },
    "addon": {"clusterSet": "14", "customizedVariables": [{"name": "A", "value": "15"}]},
    "signing": {"existingSecret": "16"},
    "web": {
        "trustedProxies": ["10.0.0.0/8"],
        "operators": ["17"],
        "ingress": {"enabled": True, "host": "18", "className": "19", "tlsSecret": "20", "annotations": {"a": "21"}},
    },
    "flower": {
        "existingSecret": "22",
        "ingress": {"enabled": True, "host": "23", "className": "24", "tlsSecret": "25"},
    },
    "redis": {
        "usersSecret": "26",
        "persistence": {"storageClass": "27", "size": "8589934592"},
        "tls": {"source": "certManager", "certManager": {"issuerName": "28"}},
    },
    "monitoring": {"serviceMonitor": {"enabled": True, "labels": {"a": "29"}}},
    "imagePullSecrets": ["30"],
    "nodeSelector": {"a": "31"},
    "priorityClassName": "32",
    "podLabels": {"a": "33"},
    "podAnnotations": {"a": "34"},
    "commonLabels": {"b": "35"},
}

#: The only fields of the rendered objects that are numbers.
_NUMERIC = re.compile(
    r"(replicas|port|[a-z]+Port|[a-z]+Seconds|[a-z]+Threshold|weight|max(Surge|Unavailable)|revisionHistoryLimit|"
    r"runAs(User|Group)|fsGroup|backoffLimit|generation)$"
)


@pytest.mark.parametrize("base", ["", "external"])
def test_values_that_look_like_numbers_stay_texts(base: str) -> None:
    values = json.loads(json.dumps(NUMBERS))
    if base:
        values["redis"] = {
            "mode": "external",
            "usersSecret": "1",
            "external": {
                "url": "sentinel://a:26379/0",
                "caSecret": "2",
                "sentinel": {"master": "3", "username": "4", "passwordSecret": "5"},
            },
        }
    objects = chart.render(values, release="1234", namespace="5678")
    # The CRDs have no values in them but labels.
    leaves = _iterate_scalars([o if o["kind"] != "CustomResourceDefinition" else o["metadata"] for o in objects])
    numbers = {path for path, value in leaves if isinstance(value, int | float) and not isinstance(value, bool)}
    assert {path for path in numbers if not _NUMERIC.search(path)} == set()
    assert chart.of_kind(objects, "Deployment")[0]["metadata"]["namespace"] == "1"


def _iterate_scalars(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every scalar of a document with its path, without indices of lists."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _iterate_scalars(part, f"{path}.{name}")
    elif isinstance(value, list):
        for part in value:
            yield from _iterate_scalars(part, path)
    else:
        yield path, value
