"""Who reaches whom on the hub: policies that are narrow, and wide enough for what the values ask for."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.client import rest

from tests.unit.deploy import chart

#: NetworkPolicyPorts of what is asked for here.
REDIS = [{"port": 6379, "protocol": "TCP"}]
FLOWER = [{"port": 5555, "protocol": "TCP"}]
#: Those that speak with the API server and may not speak with just anybody.
USE_THE_API = ("results", "optimizer")


def _policy(values: chart.Values, component: str) -> dict[str, Any]:
    found: dict[str, Any] = chart.one(chart.render(values), "NetworkPolicy", f"dynamic-scoring-{component}")["spec"]
    return found


def _ports(values: chart.Values, component: str) -> set[int]:
    egress = _policy(values | {"optimizer": {"enabled": True}}, component)["egress"]
    return {port["port"] for rule in egress for port in rule["ports"]}


AGENTS: chart.Object = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "dynamic-scoring-agent"}}}


def test_redis_admits_agents_of_the_hub_cluster_with_cluster_ip() -> None:
    (rule,) = _policy({"redis": {"exposure": {"type": "ClusterIP"}}}, "redis")["ingress"]
    assert rule["ports"] == REDIS
    assert AGENTS in rule["from"]
    assert len(rule["from"]) > 1


def test_redis_admits_processes_of_the_hub_alone_with_hub_api() -> None:
    (rule,) = _policy({}, "redis")["ingress"]
    assert rule["ports"] == REDIS
    assert AGENTS not in rule["from"]
    assert len(rule["from"]) > 1


@pytest.mark.parametrize(
    "redis",
    [
        # A tunnel of your own ends at the Service, wherever its pods are.
        {"agentUrl": "rediss://tunnel.example.com:16379/0"},
        {"exposure": {"type": "SkupperV2"}},
        {"exposure": {"type": "LoadBalancer"}},
        {"exposure": {"type": "NodePort", "host": "h"}},
    ],
)
def test_redis_is_open_when_agents_come_from_elsewhere(redis: dict[str, Any]) -> None:
    assert _policy({"redis": redis}, "redis")["ingress"] == [{"ports": REDIS}]
    assert "only agents on the hub cluster itself" not in chart.notes({"redis": redis})


@pytest.mark.parametrize(
    ("flower", "peers", "words"),
    [
        ({}, None, ""),
        ({"service": {"type": "NodePort"}}, [], "Every client that reaches its port"),
        ({"service": {"type": "LoadBalancer"}}, [], "Every client that reaches its port"),
        (
            {"ingress": {"enabled": True, "host": "flower.example.com"}},
            [{"namespaceSelector": {}}],
            "Every pod of this cluster",
        ),
        (
            {"ingress": {"enabled": True, "host": "flower.example.com"}, "service": {"type": "NodePort"}},
            [],
            "Every client that reaches its port",
        ),
    ],
)
def test_flower_lets_those_in_to_whom_it_is_shown(
    flower: dict[str, Any], peers: list[dict[str, Any]] | None, words: str
) -> None:
    values = {"flower": flower}
    wide = {"ports": FLOWER} if not peers else {"from": peers, "ports": FLOWER}
    assert _policy(values, "flower")["ingress"] == ([] if peers is None else [wide])
    notes = chart.notes(values)
    assert words in notes
    assert ("networkPolicy.flowerFrom" in notes) is (peers is not None)
    # Whoever is named is let in, and nobody else.
    narrow = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]
    named = values | {"networkPolicy": {"flowerFrom": narrow}}
    assert _policy(named, "flower")["ingress"] == [{"from": narrow, "ports": FLOWER}]
    assert "flowerFrom" not in chart.notes(named)


@pytest.mark.parametrize(
    ("proxy", "port"),
    [
        ({"httpsProxy": "http://proxy:3128"}, 3128),
        ({"httpProxy": "http://proxy.example.com:8080/"}, 8080),
        ({"httpsProxy": "http://proxy"}, 80),
        ({"httpsProxy": "http://user:123@proxy"}, 80),
        ({"httpsProxy": "http://[fd00::1]:3128"}, 3128),
        ({"httpsProxy": "https://proxy"}, None),
    ],
)
@pytest.mark.parametrize("component", USE_THE_API)
def test_a_proxy_is_reached(component: str, proxy: dict[str, str], port: int | None) -> None:
    before = _ports({}, component)
    assert _ports({"proxy": proxy}, component) == before | ({port} if port else set())
    assert _ports({"proxy": {"noProxy": ".svc"}}, component) == before
    # Those that do not use the API server have no use for it either.
    assert _ports({"proxy": proxy}, "beat") == _ports({}, "beat")


@pytest.mark.parametrize("host", ["10.96.0.1", "fd00::1"])
@pytest.mark.parametrize("component", ["hub", *USE_THE_API])
def test_the_api_server_of_the_cluster_is_reached_directly(component: str, host: str) -> None:
    proxy = {"httpsProxy": "http://proxy:3128", "noProxy": "10.9.0.0/16,example.com"}
    workloads = chart.workloads(chart.render({"proxy": proxy, "optimizer": {"enabled": True}}))
    environment = chart.told(workloads, component)
    assert environment["HTTPS_PROXY"] == proxy["httpsProxy"]
    # As the kubelet does.
    direct = environment["NO_PROXY"].replace("$(KUBERNETES_SERVICE_HOST)", host)
    bypasses: Any = rest.should_bypass_proxies
    bracketed = f"[{host}]" if ":" in host else host
    for url in (
        f"https://{bracketed}:443",
        "https://kubernetes.default.svc",
        "https://10.9.1.2",
        "https://example.com",
    ):
        assert bypasses(url, direct), url
    assert not bypasses("https://api.elsewhere.com:6443", direct)


def test_without_a_proxy_nothing_is_said_of_one() -> None:
    for values, expected in (({}, set()), ({"proxy": {"noProxy": ".svc"}}, {"NO_PROXY"})):
        for workload in chart.workloads(chart.render(values)).values():
            for container in chart.containers(workload):
                found = {name for name in chart.environment(container) if name.endswith("_PROXY")}
                assert found <= expected


def test_metrics_are_for_the_namespaces_of_a_prometheus() -> None:
    """They are plain HTTP without a login, and the exporter's port serves all scores."""
    for component in ("exporter", "hub"):
        (rule,) = _policy({}, component)["ingress"]
        (peer,) = rule["from"]
        (names,) = peer["namespaceSelector"]["matchExpressions"]
        assert (names["key"], names["operator"]) == ("kubernetes.io/metadata.name", "In")
        assert "monitoring" in names["values"]


def test_an_empty_list_of_scrapers_lets_nobody_in() -> None:
    for component in ("exporter", "hub"):
        assert _policy({}, component)["ingress"] != []
        assert _policy({"networkPolicy": {"metricsFrom": []}}, component)["ingress"] == []
    with pytest.raises(chart.RenderError, match="apiServerPorts"):
        chart.render({"networkPolicy": {"apiServerPorts": []}})


def test_only_the_port_of_an_ipv6_address_is_reached() -> None:
    redis = {"mode": "external", "usersSecret": "u", "external": {"url": "rediss://[2001:db8::10]:6390/0"}}
    rules = _policy({"redis": redis}, "beat")["egress"]
    assert [one["port"] for rule in rules for one in rule["ports"] if one["port"] not in (53, 5353)] == [6390]
