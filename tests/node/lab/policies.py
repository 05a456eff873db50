"""Enforces a cluster's NetworkPolicies on its node with iptables: its pods share one bridge, without a network plugin.

The policies of the moment are enforced. Responses on allowed connections pass, and the node itself reaches every pod,
as Kubernetes requires for kubelet's probes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.node.lab import network
from tests.node.lab.cluster import Cluster
from tests.node.lab.command import LabError, run, succeeds

_CHAIN = "NETWORK-POLICY"
#: Between pods, and from pods to the node.
_HOOKS = ("FORWARD", "INPUT")
Object = dict[str, Any]


@contextlib.contextmanager
def enforced(cluster: Cluster) -> Iterator[int]:
    """Enforce policies while the context is open; yield the number of pods that policies select."""
    lines, pods = rules(cluster)
    _remove(cluster)
    run(*network.inside(cluster.namespace), "iptables-restore", "--noflush", stdin="\n".join(lines) + "\n")
    for hook in _HOOKS:
        run(*network.inside(cluster.namespace), "iptables", "-I", hook, "-j", _CHAIN)
    # Established connections are checked again.
    succeeds(*network.inside(cluster.namespace), "conntrack", "-F")
    try:
        yield pods
    finally:
        _remove(cluster)


def rules(cluster: Cluster) -> tuple[list[str], int]:
    """Return the input of iptables-restore, and the number of pods that it covers."""
    return _Rules(cluster).lines()


def _remove(cluster: Cluster) -> None:
    inside = network.inside(cluster.namespace)
    for hook in _HOOKS:
        while succeeds(*inside, "iptables", "-D", hook, "-j", _CHAIN):
            pass
    succeeds(*inside, "iptables", "-F", _CHAIN)


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector of Kubernetes has these labels; an empty one has all."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or []:
        value, expected_values = labels.get(expression["key"]), expression.get("values") or []
        outcomes = {
            "In": value in expected_values,
            "NotIn": value not in expected_values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not outcomes[expression["operator"]]:
            return False
    return True


class _Rules:
    """Builds the input of iptables-restore from the cluster's current state."""

    def __init__(self, cluster: Cluster) -> None:
        self._pods = [pod for pod in cluster.items("pods", "-A") if _has_own_address(pod)]
        self._policies = cluster.items("networkpolicies", "-A")
        spaces = cluster.items("namespaces")
        self._namespaces = {space["metadata"]["name"]: space["metadata"].get("labels", {}) for space in spaces}

    def lines(self) -> tuple[list[str], int]:
        """Return the lines, and the number of pods that policies select."""
        chains, jumps, rules, selected = [f":{_CHAIN} - [0:0]"], [], [], set()
        for pod in self._pods:
            address = pod["status"]["podIP"]
            for direction, pod_option, other, key in (("Ingress", "-d", "-s", "from"), ("Egress", "-s", "-d", "to")):
                specs = [spec for spec in self._specs(pod) if direction in _types(spec)]
                if not specs:
                    continue
                selected.add(address)
                chain = f"{direction[:2].upper()}-{address}"
                chains.append(f":{chain} - [0:0]")
                jumps.append(f"-A {_CHAIN} {pod_option} {address} -j {chain}")
                for rule in [rule for spec in specs for rule in spec.get(direction.lower()) or []]:
                    rules += [f"-A {chain} {match} -j RETURN" for match in self._matches(pod, rule, key, other)]
                rules.append(f"-A {chain} -j REJECT")
        established = [f"-A {_CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]
        return ["*filter", *chains, *established, *jumps, *rules, "COMMIT"], len(selected)

    def _specs(self, pod: Object) -> Iterator[Object]:
        for policy in self._policies:
            same = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
            if same and selects(policy["spec"].get("podSelector") or {}, pod["metadata"].get("labels", {})):
                yield policy["spec"]

    def _matches(self, pod: Object, rule: Object, key: str, other: str) -> Iterator[str]:
        """Yield the matches of iptables that a rule allows."""
        addresses = [""] if not rule.get(key) else [f"{other} {address}" for address in self._addresses(rule[key], pod)]
        for address in addresses:
            for port in rule.get("ports") or [None]:
                if port is None:
                    yield address
                    continue
                number = port.get("port")
                if isinstance(number, str):
                    number = _named_port(pod, number)
                protocol = port.get("protocol", "TCP").lower()
                yield f"{address} -p {protocol}" + (f" --dport {number}" if number else "")

    def _addresses(self, peers: list[Object], pod: Object) -> Iterator[str]:
        for peer in peers:
            if "ipBlock" in peer:
                if peer["ipBlock"].get("except"):
                    raise LabError(f"ipBlock.except is not known here: {peer}")
                yield peer["ipBlock"]["cidr"]
                continue
            for target_pod in self._pods:
                namespace = target_pod["metadata"]["namespace"]
                if "namespaceSelector" in peer:
                    if not selects(peer["namespaceSelector"] or {}, self._namespaces[namespace]):
                        continue
                elif namespace != pod["metadata"]["namespace"]:
                    continue
                if selects(peer.get("podSelector") or {}, target_pod["metadata"].get("labels", {})):
                    yield target_pod["status"]["podIP"]


def _has_own_address(pod: Object) -> bool:
    return (
        bool(pod["status"].get("podIP")) and not pod["spec"].get("hostNetwork") and pod["status"]["phase"] == "Running"
    )


def _types(spec: Object) -> list[str]:
    types: list[str] = spec.get("policyTypes") or (["Ingress", "Egress"] if "egress" in spec else ["Ingress"])
    return types


def _named_port(pod: Object, name: str) -> int:
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    return next(int(port["containerPort"]) for port in ports if port.get("name") == name)
