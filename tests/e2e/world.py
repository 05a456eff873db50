"""A hub and two managed clusters, as near to production as one machine allows."""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, Resource
from dsf.kube.session import Session
from dsf.settings import ENV_PREFIX
from dsf.up.httpcheck import make_http_check
from tests.e2e.managedcluster import METRIC, PROMETHEUS, ManagedCluster
from tests.support import forked
from tests.support.child import Child
from tests.support.controlplane import ControlPlane, find
from tests.support.redisserver import RedisServer, free_port
from tests.support.wait import wait_for

ROOT = Path(__file__).resolve().parents[2]
#: The command, installed beside the Python that runs the tests.
DSF = str(Path(sys.executable).with_name("dsf"))
MANIFESTS = Path(__file__).with_name("manifests")
HUB_NAMESPACE = "open-cluster-management"
CLUSTERS = ("cluster1", "cluster2")
#: Seconds between two cycles, and the range of each query.
INTERVAL, RANGE = 2, 2
SCORE = "sample-my-score"
DECISIONS = Resource("cluster.open-cluster-management.io", "v1beta1", "placementdecisions", "PlacementDecision")


def chosen(hub: Session, placement: str, namespace: str = "default") -> list[str]:
    """Return the clusters that OCM decided on for a Placement."""
    query = {"labelSelector": f"cluster.open-cluster-management.io/placement={placement}"}
    items = hub.request("GET", DECISIONS.path(namespace), query=query)["items"]
    return [decision["clusterName"] for item in items for decision in (item.get("status") or {}).get("decisions") or []]


def _ours(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"dsf.{module}")


class OcmFleet:
    """All processes. Used as a context manager; raises ControlPlaneMissingError from its constructor."""

    def __init__(self, folder: Path, *, interval: int = INTERVAL) -> None:
        """`interval` of the scorer in seconds."""
        self._interval = interval
        # The work agents are started later.
        self._placement = find("placement", "work") / "placement"
        self.hub = ControlPlane()
        self._planes = {name: ControlPlane(crds=False) for name in CLUSTERS}
        self.redis = RedisServer(aof=True)
        self.clusters: dict[str, ManagedCluster] = {}
        self.children: dict[str, Child] = {}
        self.scorer_url = f"http://127.0.0.1:{free_port()}"
        self.web_port = free_port()
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._session: Session | None = None

    def __enter__(self) -> OcmFleet:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.redis)
            stack.enter_context(self.hub)
            stack.callback(self._kill)
            self.run("scorer", *self._scorer_command(), **self._scorer_environment())
            self._session = self.hub.session()
            self.kubectl_apply("clusters.yaml")
            self._start_clusters(stack)
            self._start_hub()
            for cluster in self.clusters.values():
                cluster.start_agent()
            self.run(
                "placement",
                str(self._placement),
                "controller",
                f"--kubeconfig={self.hub.kubeconfig}",
                "--namespace=default",
                "--disable-leader-election",
                f"--listen=127.0.0.1:{free_port()}",
            )
            wait_for(make_http_check(f"{self.scorer_url}/healthz"), 30, self.children["scorer"].tail())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, name: str, *command: str, **values: object) -> None:
        """Start a process; values with small names are settings of ours, others are environment variables."""
        environment = {
            (ENV_PREFIX + variable.upper() if variable.islower() else variable): str(value)
            for variable, value in values.items()
        }
        environment["PYTHONUNBUFFERED"] = "1"
        self.children[name] = forked.child(command, self._folder / f"{name}.log", environment)

    @property
    def session(self) -> Session:
        """The hub's API server, as admin."""
        assert self._session is not None
        return self._session

    def kubectl_apply(self, name: str) -> None:
        """`kubectl apply` one of the manifests."""
        text = (MANIFESTS / name).read_text().replace("SCORER_URL", self.scorer_url)
        self.hub.kubectl("apply", "-f", "-", stdin=text)

    def measure(self, **values: float) -> None:
        """Let the metric have these values, by cluster."""
        for cluster, value in values.items():
            self.clusters[cluster].measure(value)

    def score(self, cluster: str, name: str = SCORE) -> dict[str, Any] | None:
        """Return the cluster's AddOnPlacementScore."""
        try:
            return self.session.get(ADDON_PLACEMENT_SCORES.path(cluster, name))
        except ObjectNotFoundError:
            return None

    def values(self, cluster: str, name: str = SCORE) -> dict[str, int] | None:
        """Return the values of the score object, or None if it does not exist."""
        score = self.score(cluster, name)
        items = ((score or {}).get("status") or {}).get("scores") or []
        return None if score is None else {item["name"]: item["value"] for item in items}

    def decision(self) -> list[str]:
        """Return the clusters that the Placement `best` chose."""
        return chosen(self.session, "best", "apps")

    def logs(self) -> str:
        """Return the ends of all logs, for messages."""
        tails = {name: child.tail() for name, child in self.children.items()}
        tails |= {name: cluster.tail() for name, cluster in self.clusters.items()}
        tails |= {f"work agent of {name}": cluster.work_agent.tail() for name, cluster in self.clusters.items()}
        return "\n".join(f"--- {name}\n{tail[-1500:]}" for name, tail in tails.items())

    def _start_clusters(self, stack: contextlib.ExitStack) -> None:
        for name, plane in self._planes.items():
            folder = self._folder / name
            self.clusters[name] = ManagedCluster(name, folder, plane, self.hub, self.redis.url)
        # Side by side: most of it is waiting for their API servers. The threads stay: the kernel ends a child process
        # with the thread that started it.
        threads = stack.enter_context(ThreadPoolExecutor(len(self.clusters)))
        began = [threads.submit(stack.enter_context, cluster) for cluster in self.clusters.values()]
        for start in began:
            start.result()

    def _start_hub(self) -> None:
        common = {"redis_url": self.redis.url, "backend": "kube", "kubeconfig": self.hub.kubeconfig}
        where = {"listen_host": "127.0.0.1", "listen_port": self.web_port, "probe_port": 0}
        self.run("hub", *_ours("hub"), namespace=HUB_NAMESPACE, health_interval=1, **where, **common)

    def _scorer_command(self) -> tuple[str, ...]:
        port = self.scorer_url.rpartition(":")[2]
        app = str(ROOT / "samples" / "sample-scorer")
        options = ("--app-dir", app, "--host", "127.0.0.1", "--port", port, "--log-level", "warning")
        return (sys.executable, "-m", "uvicorn", *options, "app:app")

    def _scorer_environment(self) -> dict[str, object]:
        return {
            "SOURCE_HOST": f"http://{PROMETHEUS}",
            "SOURCE_QUERY": f"max by (node) ({METRIC})",
            "SOURCE_RANGE": RANGE,
            "SOURCE_STEP": 1,
            "SCORE_INTERVAL": self._interval,
        }

    def _kill(self) -> None:
        for child in self.children.values():
            child.kill()
