"""Networks: a bridge in its own namespace, a namespace for each node, and no external network."""

from __future__ import annotations

from pathlib import Path

from tests.node.lab.command import run, succeeds

#: Namespace with the bridge. From there all nodes are reachable, as from the machine with kind.
LAN = "dsf-lan"
PREFIX = "10.201.0"
SERVICES = "10.96.0.0/16"
DNS = "10.96.0.10"


def inside(namespace: str) -> list[str]:
    """Return the command prefix that runs a program in that network; an empty name is the machine's own."""
    return ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []


def make(namespace: str) -> None:
    """A network namespace with a loopback."""
    if not Path("/run/netns", namespace).exists():
        run("ip", "netns", "add", namespace)
    run("ip", "-n", namespace, "link", "set", "lo", "up")


def make_lan() -> None:
    """The bridge that all nodes are on."""
    make(LAN)
    if succeeds("ip", "-n", LAN, "link", "show", "br0"):
        return
    run("ip", "-n", LAN, "link", "add", "br0", "type", "bridge")
    run("ip", "-n", LAN, "addr", "add", f"{PREFIX}.1/24", "dev", "br0")
    run("ip", "-n", LAN, "link", "set", "br0", "up")


def join(namespace: str, address: str) -> None:
    """Put a node with this address on the bridge. Service addresses are routable there, for kube-proxy to catch."""
    make_lan()
    make(namespace)
    if succeeds("ip", "-n", namespace, "link", "show", "eth0"):
        return
    port = _port(address)
    run("ip", "link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", port, "netns", LAN)
    run("ip", "-n", LAN, "link", "set", port, "master", "br0", "up")
    run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    run("ip", "-n", namespace, "link", "set", "eth0", "up")
    run("ip", "-n", namespace, "route", "add", SERVICES, "dev", "eth0")
    for setting in ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables"):
        run(*inside(namespace), "sysctl", "-q", "-w", f"{setting}=1")


def route(namespace: str, pods: str, address: str) -> None:
    """Route a range of pods to the node with this address, as network plugins do."""
    run("ip", "-n", namespace, "route", "replace", pods, "via", address)


def unplug(address: str) -> None:
    """Cut a node off the bridge, without a word to anybody who talks to it."""
    run("ip", "-n", LAN, "link", "set", _port(address), "down")


def _port(address: str) -> str:
    # A name of an interface has at most 15 characters.
    return f"p{address.rpartition('.')[2]}"


def remove(namespace: str) -> None:
    """Remove the network with all its interfaces."""
    if Path("/run/netns", namespace).exists():
        run("ip", "netns", "del", namespace)
