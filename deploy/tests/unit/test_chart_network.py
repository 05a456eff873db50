"""NetworkPolicies of the hub: narrow, and wide enough for the features of the values."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.client import rest

from tests.support import chart

#: Matches the NetworkPolicyPorts of these ports.
REDIS = [{"port": 6379, "protocol": "TCP"}]
FLOWER = [{"port": 5555, "protocol": "TCP"}]
#: Components that use the API server and have restricted egress.
USE_THE_API = ("web", "optimizer")


def _policy(values: chart.Values, component: str) -> dict[str, Any]:
    spec: dict[str, Any] = chart.find_object(chart.render(values), "NetworkPolicy", f"dynamic-scoring-{component}")[
        "spec"
    ]
    return spec


def _ports(values: chart.Values, component: str) -> set[int]:
    egress = _policy(values | {"mode": "Distributed", "optimizer": {"enabled": True}}, component)["egress"]
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
        # A custom tunnel ends at the Service, wherever its pods are.
        {"agentUrl": "rediss://tunnel.example.com:16379/0"},
        {"exposure": {"type": "SkupperV2"}},
        {"exposure": {"type": "LoadBalancer"}},
        {"exposure": {"type": "NodePort", "host": "h"}},
    ],
)
def test_redis_admits_agents_of_other_clusters(redis: dict[str, Any]) -> None:
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
def test_flower_admits_the_configured_clients(
    flower: dict[str, Any], peers: list[dict[str, Any]] | None, words: str
) -> None:
    values = {"flower": flower}
    wide = {"ports": FLOWER} if not peers else {"from": peers, "ports": FLOWER}
    assert _policy(values, "flower")["ingress"] == ([] if peers is None else [wide])
    notes = chart.notes(values)
    assert words in notes
    assert ("networkPolicy.flowerFrom" in notes) is (peers is not None)
    # Only the named peers are admitted.
    narrow = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]
    flower_values = values | {"networkPolicy": {"flowerFrom": narrow}}
    assert _policy(flower_values, "flower")["ingress"] == [{"from": narrow, "ports": FLOWER}]
    assert "flowerFrom" not in chart.notes(flower_values)


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
def test_proxy_port_is_allowed(component: str, proxy: dict[str, str], port: int | None) -> None:
    before = _ports({}, component)
    assert _ports({"proxy": proxy}, component) == before | ({port} if port else set())
    assert _ports({"proxy": {"noProxy": ".svc"}}, component) == before
    # Processes that do not use the API server do not get it either.
    assert _ports({"proxy": proxy}, "beat") == _ports({}, "beat")


@pytest.mark.parametrize("host", ["10.96.0.1", "fd00::1"])
@pytest.mark.parametrize("component", ["controller", *USE_THE_API])
def test_api_server_of_the_cluster_is_not_proxied(component: str, host: str) -> None:
    proxy = {"httpsProxy": "http://proxy:3128", "noProxy": "10.9.0.0/16,example.com"}
    workloads = chart.workloads(chart.render({"mode": "Distributed", "proxy": proxy, "optimizer": {"enabled": True}}))
    environment = chart.get_environment(workloads, component)
    assert environment["HTTPS_PROXY"] == proxy["httpsProxy"]
    # The kubelet expands the variable this way.
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


def test_pods_have_no_proxy_variables_without_a_proxy() -> None:
    for values, expected in (({}, set()), ({"proxy": {"noProxy": ".svc"}}, {"NO_PROXY"})):
        for workload in chart.workloads(chart.render(values)).values():
            for container in chart.containers(workload):
                proxy_variables = {name for name in chart.environment(container) if name.endswith("_PROXY")}
                assert proxy_variables <= expected


#: The pod of `helm test`.
TEST = {"app.kubernetes.io/component": "operator"}


def _clients(values: chart.Values, component: str) -> dict[int, list[dict[str, Any]]]:
    """Return the peers that may connect by port, without the pod of `helm test`, which always may."""
    clients: dict[int, list[dict[str, Any]]] = {}
    for rule in _policy(values, component)["ingress"]:
        (peer, *other_peers) = rule["from"]
        if TEST.items() <= peer.get("podSelector", {}).get("matchLabels", {}).items():
            continue
        for port in rule["ports"]:
            clients.setdefault(port["port"], []).extend([peer, *other_peers])
    return clients


@pytest.mark.parametrize("mode", chart.MODES)
def test_metrics_are_for_the_namespaces_of_a_prometheus(mode: str) -> None:
    """The endpoints are plain HTTP without a login."""
    for component in chart.MODES[mode]:
        clients = _clients({"mode": mode}, component)
        assert set(clients) == ({8080, 8081} if component in ("hub", "web") else {8081})
        for [peer] in clients.values():
            (names,) = peer["namespaceSelector"]["matchExpressions"]
            assert (names["key"], names["operator"]) == ("kubernetes.io/metadata.name", "In")
            assert "monitoring" in names["values"]


@pytest.mark.parametrize("mode", chart.MODES)
def test_empty_list_of_scrapers_admits_no_peer(mode: str) -> None:
    for component in chart.MODES[mode]:
        assert _clients({"mode": mode, "networkPolicy": {"metricsFrom": []}}, component) == {}
    with pytest.raises(chart.RenderError, match="apiServerPorts"):
        chart.render({"networkPolicy": {"apiServerPorts": []}})


@pytest.mark.parametrize("mode", chart.MODES)
def test_clients_of_the_page_do_not_reach_the_probes(mode: str) -> None:
    component = chart.MODES[mode][-1]
    narrow = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]
    policies = {"metricsFrom": [], "webFrom": narrow}
    assert _clients({"mode": mode, "networkPolicy": policies}, component) == {8080: narrow}
    ingress = {"trustedProxies": ["10.0.0.0/8"], "ingress": {"enabled": True, "host": "page.example.com"}}
    values = {"mode": mode, "networkPolicy": {"metricsFrom": []}, "web": ingress}
    assert _clients(values, component) == {8080: [{"namespaceSelector": {}}]}


def test_egress_to_an_ipv6_redis_allows_only_its_port() -> None:
    redis = {"mode": "external", "usersSecret": "u", "external": {"url": "rediss://[2001:db8::10]:6390/0"}}
    rules = _policy({"mode": "Distributed", "redis": redis}, "beat")["egress"]
    assert [port["port"] for rule in rules for port in rule["ports"] if port["port"] not in (53, 5353)] == [6390]
