"""An external Redis with a replica and three Sentinels, as pods on the hub, set up as deploy/redis/README.md
describes.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any

from tests.node.lab.certificates import Authority
from tests.node.lab.cluster import Cluster
from tests.node.lab.command import LabError
from tests.node.lab.folders import ROOT
from tests.node.world import HUB_IMAGE, HUB_NAMESPACE
from tests.support.wait import wait_for

REDIS = "docker.io/library/redis:7.4.6-bookworm"
#: Pods by name, each with the port of the hub's node at which agents and the others reach it.
SERVERS = {"redis-0": 30390, "redis-1": 30391}
SENTINELS = {f"sentinel-{number}": 30360 + number for number in range(3)}
_ROLES = ("hub", "flower", "operator", "sentinel", "replica")
_CONFINED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
_POD = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


class SentinelPods:
    """The five pods, their Services and the Secrets that the chart's `external-sentinel.yaml` names."""

    def __init__(self, hub: Cluster) -> None:
        self.hub = hub
        self.passwords = {role: secrets.token_hex(24) for role in _ROLES}
        self.sentinels, self.clients = secrets.token_hex(24), secrets.token_hex(24)
        authority = Authority(hub.run / "redis-pki")
        authority.sign("redis", "/CN=redis", f"IP:{hub.address},IP:127.0.0.1")
        self.authority = authority

    @property
    def url(self) -> str:
        """`sentinel://host:port;sentinel://host:port;.../0`."""
        return ";".join(f"sentinel://{self.hub.address}:{port}" for port in SENTINELS.values()) + "/0"

    def start(self) -> None:
        """Apply everything and wait until the Sentinels agree."""
        self._secret("redis-users", self.passwords)
        self._secret("redis-ca", {"ca.crt": self.authority.path("ca.crt").read_text()})
        self._secret("redis-sentinel", {"password": self.clients})
        files = {"tls.crt": "redis.crt", "tls.key": "redis.key", "ca.crt": "ca.crt"}
        self._secret("redis-tls", {name: self.authority.path(file).read_text() for name, file in files.items()})
        configuration = {name: self._server(name, port) for name, port in SERVERS.items()}
        configuration |= {name: self._sentinel(port) for name, port in SENTINELS.items()}
        self._secret("redis-configuration", configuration)
        for name, port in (SERVERS | SENTINELS).items():
            self.hub.apply(_service(name, port), self._pod(name))
        wait_for(lambda: self.master() == SERVERS["redis-0"], 120, "Sentinels that agree", interval=1)

    def master(self) -> int:
        """Return the port of the primary by the Sentinels. Raises AssertionError unless all running ones agree."""
        ports = set()
        for name in SENTINELS:
            try:
                address = self.ask(name, "sentinel", "get-master-addr-by-name", "hub").split()
                state = self.ask(name, "sentinel", "master", "hub").split("\n")
            except LabError as error:
                raise AssertionError(str(error)) from None
            master_state = dict(zip(state[::2], state[1::2], strict=False))
            assert (master_state["num-other-sentinels"], master_state["num-slaves"]) == ("2", "1"), master_state
            ports.add(int(address[1]))
        assert len(ports) == 1, ports
        return ports.pop()

    def kill(self, name: str) -> None:
        """SIGKILL to its process; kubelet starts it again."""
        self.hub.kubectl("-n", HUB_NAMESPACE, "exec", name, "--", "sh", "-c", "kill -9 -1 || true")

    def remove(self) -> None:
        """Remove all of it."""
        mark = ("-l", "test=sentinel")
        self.hub.kubectl("-n", HUB_NAMESPACE, "delete", "pods,services,secrets", *mark, "--grace-period=1", timeout=180)

    def ask(self, name: str, *arguments: str) -> str:
        """Run an administrator's command on a Sentinel and return the reply."""
        client = ("redis-cli", "--tls", "--insecure", "--no-auth-warning", "-p", "26379", "-a", self.sentinels)
        return self.hub.kubectl("-n", HUB_NAMESPACE, "exec", name, "-c", "redis", "--", *client, *arguments)

    def _secret(self, name: str, texts: dict[str, str]) -> None:
        data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        self.hub.apply({"apiVersion": "v1", "kind": "Secret", **_named(name), "data": data})

    def _server(self, name: str, port: int) -> str:
        text = (ROOT / "deploy" / "redis" / "redis.conf").read_text()
        text += f"tls-replication yes\nreplica-announce-ip {self.hub.address}\nreplica-announce-port {port}\n"
        text += f"masteruser dsf-replica\nmasterauth {self.passwords['replica']}\n"
        if name != "redis-0":
            text += f"replicaof {self.hub.address} {SERVERS['redis-0']}\n"
        return text

    def _sentinel(self, port: int) -> str:
        example = ROOT / "deploy" / "redis" / "sentinel.conf.example"
        text = example.read_text()
        for example_text, replacement in {
            "announce-port 26379": f"announce-port {port}",
            "sentinel-0.example.com": self.hub.address,
            "redis-0.example.com 6379": f"{self.hub.address} {SERVERS['redis-0']}",
            "change-me-sentinels-0000": self.sentinels,
            hashlib.sha256(b"change-me-sentinel-clients").hexdigest(): hashlib.sha256(
                self.clients.encode()
            ).hexdigest(),
            "change-me-sentinel-00000": self.passwords["sentinel"],
        }.items():
            assert text.count(example_text) == 1, f"{example_text!r} is not once in {example.name}"
            text = text.replace(example_text, replacement)
        return text

    def _pod(self, name: str) -> dict[str, Any]:
        mounts = [
            {"name": "data", "mountPath": "/data"},
            {"name": "tls", "mountPath": "/etc/redis-tls", "readOnly": True},
            {"name": "configuration", "mountPath": "/etc/redis", "readOnly": True},
        ]
        users = {
            "name": "prepare",
            "image": HUB_IMAGE,
            "command": ["python", "-m", "dsf.redisacl"],
            "args": ["--passwords", "/etc/dsf/users", "--file", "/data/users.acl"],
            "securityContext": _CONFINED,
            "volumeMounts": [mounts[0], {"name": "users", "mountPath": "/etc/dsf/users", "readOnly": True}],
        }
        # A Sentinel rewrites its configuration, so it starts from a copy, unless it already has one.
        copy = {
            "name": "prepare",
            "image": REDIS,
            "command": ["sh", "-c", f"test -e /data/sentinel.conf || cp /etc/redis/{name} /data/sentinel.conf"],
            "securityContext": _CONFINED,
            "volumeMounts": mounts,
        }
        server = ["redis-server", f"/etc/redis/{name}"]
        sentinel = ["redis-server", "/data/sentinel.conf", "--sentinel"]
        container = {
            "name": "redis",
            "image": REDIS,
            "command": server if name in SERVERS else sentinel,
            "securityContext": _CONFINED,
            "volumeMounts": mounts,
        }
        volumes = [
            {"name": "data", "emptyDir": {}},
            *({"name": part, "secret": {"secretName": f"redis-{part}"}} for part in ("tls", "configuration", "users")),
        ]
        spec = {
            "automountServiceAccountToken": False,
            "securityContext": _POD,
            "initContainers": [users if name in SERVERS else copy],
            "containers": [container],
            "volumes": volumes,
        }
        return {"apiVersion": "v1", "kind": "Pod", **_named(name), "spec": spec}


def _named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": HUB_NAMESPACE, "labels": {"test": "sentinel", "pod": name}}}


def _service(name: str, port: int) -> dict[str, Any]:
    service_port = {"port": 6379 if name in SERVERS else 26379, "nodePort": port}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        **_named(name),
        "spec": {"type": "NodePort", "selector": {"pod": name}, "ports": [service_port]},
    }
