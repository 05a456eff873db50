"""The clusters as docs/quickstart.md leaves them, and helpers of the tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

from tests.integration.docs import pages
from tests.node.lab import clusters, folders, kind, network, standins
from tests.node.lab.cluster import Cluster
from tests.node.lab.command import LabError, run, say
from tests.node.reader import Reader
from tests.node.watch import Watch
from tests.support.wait import wait_for

HUB_NAMESPACE, AGENT_NAMESPACE = "open-cluster-management", "dynamic-scoring"
HUB_IMAGE = "ghcr.io/open-cluster-management-io/dynamic-scoring-framework:0.1.0"
AGENT_IMAGE = "ghcr.io/open-cluster-management-io/dynamic-scoring-agent:0.1.0"
RELEASE = "dynamic-scoring-framework"
PAGE = pages.ROOT / "docs" / "quickstart.md"
MANAGED = ("cluster1", "cluster2")
#: Commands after which a reader waits for the first score, and after which everything is removed.
_REGISTERS = re.compile(r"sample-scorer/manifests/dynamicscorer\.yaml")
_REMOVES = re.compile(r"^kind delete ")
#: Files that the page fetches from other projects, and their local copies.
_FETCHED = {
    r"^helm repo add \S+ \S+$": "true",
    r"\bprometheus-community/": f"{folders.RUN}/prometheus-community/",
}
#: Seconds within which the page's last command must be followed by a score.
FIRST_SCORE = 60.0


class InstalledQuickstart:
    """The installed quickstart, a context manager: runs the page's commands at the start, its last one at the end."""

    def __init__(self) -> None:
        make_cluster = kind.KindCluster if kind.is_selected() else clusters.cluster
        self.hub, *managed_clusters = (make_cluster(name) for name in clusters.NAMES)
        self.managed = {managed_cluster.name: managed_cluster for managed_cluster in managed_clusters}
        #: Seconds from the scorer's registration to the last cluster's first score.
        self.first_score = 0.0
        self._watches: list[Watch] = []
        if kind.is_selected():
            self.reader = Reader(pages.ROOT, os.environ, before=[], replaced={})
        else:
            network.make_lan()
            standins.add_chart_repository()
            before = standins.shell()
            self.reader = Reader(pages.ROOT, standins.environment(), before=before, replaced=_FETCHED)
        self._commands = pages.commands(PAGE)

    def __enter__(self) -> InstalledQuickstart:
        try:
            self._follow_the_page()
        except BaseException:
            self.reader.close()
            raise
        return self

    def _follow_the_page(self) -> None:
        for command in self._commands:
            if _REMOVES.match(command.text):
                break
            result = self.reader.type(command)
            say(str(result) if result.code else f"quickstart line {result.line}: {result.seconds:.1f} s")
            if _REGISTERS.search(command.text):
                self._wait_for_first_score()

    def command(self, text: str) -> str:
        """Return the page's first command with these words."""
        return next(command.text for command in self._commands if text in command.text)

    def type(self, text: str) -> str:
        """Type a command in the page's shell and return its output. Raises AssertionError when it fails."""
        result = self.reader.type(pages.Command("typed", 0, text))
        assert result.code == 0, str(result)
        return result.output

    def remove(self) -> None:
        """Type the page's last command."""
        self.reader.type(next(command for command in self._commands if _REMOVES.match(command.text)))

    def __exit__(self, *_: object) -> None:
        try:
            self.judge()
        finally:
            self.reader.close()

    def _wait_for_first_score(self) -> None:
        started = time.monotonic()
        for name in MANAGED:
            wait_for(lambda name=name: self.score(name), FIRST_SCORE, f"a score of {name}", interval=0.5)
        self.first_score = time.monotonic() - started
        say(f"first scores after {self.first_score:.1f} s")

    # --- asking ----------------------------------------------------------------------------------------------------

    def score(self, cluster: str, name: str = "sample-my-score") -> dict[str, int]:
        """Items of a score; empty if it is not there."""
        score_objects = self.hub.items("addonplacementscores", "-n", cluster, f"--field-selector=metadata.name={name}")
        scores = [item for score_object in score_objects for item in score_object.get("status", {}).get("scores", [])]
        return {item["name"]: item["value"] for item in scores}

    def dsf(self, *arguments: str) -> str:
        """`dsf` in the page's test pod on the hub."""
        return self.hub.kubectl("-n", HUB_NAMESPACE, "exec", "dynamic-scoring-test", "--", "dsf", *arguments)

    def history(self, cluster: str, scorer: str = "sample-scorer") -> dict[str, Any]:
        """Return the last cycles of a pair and its books, as `dsf history` has them."""
        history: dict[str, Any] = json.loads(self.dsf("history", scorer, "--cluster", cluster, "--output", "json"))
        return history

    @contextlib.contextmanager
    def watch(self) -> Iterator[Watch]:
        """Each of its windows may cost each pair of the sample scorer one cycle, and no result."""
        self._watches.append(Watch(self.history, MANAGED))
        yield self._watches[-1]

    def judge(self) -> None:
        """Judge all windows. Lost cycles are known a minute later, and others run meanwhile."""
        while self._watches:
            self._watches.pop(0).judge()

    def rescore(self, scorer: str = "sample-scorer") -> None:
        """Run a cycle on every cluster now, and wait for a successful one."""

        def succeeds() -> bool:
            try:
                self.dsf("rescore", scorer, "--wait", "--timeout", "20")
            except LabError as error:
                raise AssertionError(str(error)) from None
            return True

        wait_for(succeeds, 90, "a cycle on every cluster", interval=1)

    def helm(self, verb: str, *options: str) -> str:
        """Run `helm VERB RELEASE ...` and return its output. Raises AssertionError when it fails."""
        return self.type(
            " ".join(("helm", verb, RELEASE, *options, f"--kube-context kind-hub --namespace {HUB_NAMESPACE}"))
        )

    def revision(self) -> int:
        """Return the revision of the release, for a rollback."""
        return int(json.loads(self.helm("status", "--output json"))["version"])

    def settle(self) -> None:
        """Wait until every pod of the framework is ready and a cycle succeeds everywhere."""
        self.wait_ready(self.hub, HUB_NAMESPACE, timeout=180)
        for cluster in self.managed.values():
            self.wait_ready(cluster, AGENT_NAMESPACE, timeout=180)
        self.rescore()

    def pods(self, cluster: Cluster, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Pods that are not on their way out, and not meant to end."""
        selection = ("-l", selector) if selector else ()
        pods = cluster.items("pods", "-n", namespace, *selection)
        lasting = [pod for pod in pods if pod["spec"].get("restartPolicy") == "Always"]
        return [pod for pod in lasting if "deletionTimestamp" not in pod["metadata"]]

    def all_ready(self, cluster: Cluster, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the pods. Raises AssertionError while there are none or one is not ready."""
        pods = self.pods(cluster, namespace, selector)
        assert pods, f"no pods of {selector}"
        for pod in pods:
            conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}
            assert conditions.get("Ready") == "True", f"{pod['metadata']['name']}: {pod['status']}"
        return pods

    def wait_ready(
        self, cluster: Cluster, namespace: str, selector: str = "", timeout: float = 90
    ) -> list[dict[str, Any]]:
        """Return the pods, as soon as all of them are ready: an agent is not while its connection is a new one."""
        return wait_for(
            lambda: self.all_ready(cluster, namespace, selector), timeout, f"{selector} ready", interval=0.5
        )

    def on_the_lan(self, *command: str) -> str:
        """Run a command on the network of the nodes and return its output."""
        return run(*([] if kind.is_selected() else network.inside(network.LAN)), *command)


def restarts(pod: dict[str, Any]) -> dict[str, int]:
    """How often each container of a pod was started again."""
    statuses = pod["status"].get("containerStatuses", [])
    return {f"{pod['metadata']['name']}/{status['name']}": status["restartCount"] for status in statuses}
