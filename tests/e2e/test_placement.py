"""From a metric on a managed cluster to the decision of a Placement, with OCM's own placement controller."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from dsf.api.types import CONFIGMAP_NAME, SUMMARIES_KEY
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import CONFIG_MAPS, DYNAMIC_SCORERS, MANAGED_CLUSTERS
from dsf.up.stack import http_answer
from tests.e2e.managedcluster import METRIC, NAMESPACE, PROMETHEUS
from tests.e2e.world import CLUSTERS, HUB_NAMESPACE, INTERVAL, RANGE, ROOT, World
from tests.support.wait import wait_for

pytestmark = pytest.mark.xdist_group("e2e")


def eventually(world: World, condition: Callable[[], object], what: str, timeout: float = 30) -> None:
    """Wait, and show all logs when it was in vain."""
    began = time.monotonic()
    try:
        wait_for(condition, timeout, what, interval=0.05)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{world.logs()}") from None
    print(f"{what}: {time.monotonic() - began:.2f} s")


def test_the_configuration_arrives_on_each_cluster(world: World) -> None:
    for name, cluster in world.clusters.items():

        def delivered(cluster=cluster) -> list[dict[str, object]]:
            try:
                found = cluster.spoke.session.get(CONFIG_MAPS.path(NAMESPACE, CONFIGMAP_NAME))
            except ObjectNotFoundError:
                return []
            return json.loads(found["data"][SUMMARIES_KEY])

        eventually(world, delivered, f"the ConfigMap of {name}")
        (summary,) = delivered()
        assert summary["name"] == "sample-scorer"
        assert summary["scoreName"] == "sample_my_score"
        assert summary["sourceEndpoint"] == f"http://{PROMETHEUS}/api/v1/query_range"
        assert summary["scoringEndpoint"] == f"{world.scorer_url}/scoring"
        assert summary["scoringInterval"] == 2


def test_scores_are_written(world: World) -> None:
    world.measure(cluster1=80, cluster2=20)
    eventually(world, lambda: world.values("cluster1") == {"n1": 80}, "the score of cluster1")
    eventually(world, lambda: world.values("cluster2") == {"n1": 20}, "the score of cluster2")
    for cluster in CLUSTERS:
        score = world.score(cluster)
        assert score is not None
        labels = score["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "dynamic-scoring-framework"
        assert labels["dynamic-scoring.open-cluster-management.io/scorer-name"] == "sample-scorer"
        (owner,) = score["metadata"]["ownerReferences"]
        assert owner["kind"] == "ManagedCluster"
        assert owner["uid"] == world.session.get(MANAGED_CLUSTERS.path(name=cluster))["metadata"]["uid"]
        # Renewed all the time; where nothing runs for a while it is over.
        eventually(world, lambda cluster=cluster: 0 < _valid_for(world, cluster) <= 8, f"a valid score of {cluster}")
        (condition,) = score["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("AddOnPlacementScoreUpdated", "True")
        port = world.clusters[cluster].metrics_port
        eventually(
            world,
            lambda port=port: b"dynamic_score{" in (http_answer(f"http://127.0.0.1:{port}/metrics") or b""),
            f"the gauges of {cluster}",
        )
        eventually(world, lambda cluster=cluster: _exported(world, cluster), f"{cluster} in the exporter", 5)


def _valid_for(world: World, cluster: str) -> float:
    score = world.score(cluster)
    assert score is not None
    return (datetime.fromisoformat(score["status"]["validUntil"]) - datetime.now(UTC)).total_seconds()


def _exported(world: World, cluster: str) -> bool:
    page = http_answer(f"http://127.0.0.1:{world.exporter_port}/metrics") or b""
    return re.search(rf'^dynamic_score{{[^}}]*ds_cluster="{cluster}"'.encode(), page, re.MULTILINE) is not None


def test_the_commands_are_those_of_the_readme(world: World) -> None:
    text = (ROOT / "README.md").read_text()
    section, _, _ = text[text.index("## On a cluster") :].partition("\n## ")
    said = set(re.findall(r"^\$ dsf (\w+)", section, re.MULTILINE))
    # Its `dsf crds` is what the API server was given at its start.
    assert said == {"crds", "agent", *(set(world.children) - {"scorer", "placement"})}
    names = set(re.findall(r"\b(DSF_\w+)=", section))
    given = {"DSF_REDIS_URL", "DSF_BACKEND", "DSF_KUBECONFIG", "DSF_SIGNING_SECRET", "DSF_AGENT_KUBE", "DSF_CLUSTER"}
    assert names == given | {"DSF_SIGNING_KEY_FILE"}


def test_the_scorer_says_that_it_works(world: World) -> None:
    def conditions() -> dict[str, str]:
        found = world.session.get(DYNAMIC_SCORERS.path(HUB_NAMESPACE, "sample-scorer"))
        return {one["type"]: one["status"] for one in (found.get("status") or {}).get("conditions") or []}

    wanted = {"Healthy": "True", "ConfigSynced": "True", "Distributed": "True", "Scoring": "True"}
    eventually(world, lambda: wanted.items() <= conditions().items(), "all conditions")

    def row() -> list[str]:
        """Name, health, score, interval, succeeding, desired, reason."""
        return world.hub.kubectl("get", "dynamicscorers", "-n", HUB_NAMESPACE, "--no-headers").split()[:7]

    wanted_row = ["sample-scorer", "Active", "sample_my_score", "2", "2", "2", "CyclesSucceed"]
    eventually(world, lambda: row() == wanted_row, f"what kubectl get shows, {wanted_row}")


def test_a_mistake_in_a_query_is_explained(world: World) -> None:
    source = {"type": "Prometheus", "host": f"http://{PROMETHEUS}", "path": "/api/v1/query_range"}
    query = {"query": f"max by (node ({METRIC})", "range": RANGE, "step": 1}
    scorer = {
        "apiVersion": DYNAMIC_SCORERS.api_version,
        "kind": DYNAMIC_SCORERS.kind,
        "metadata": {"name": "mistaken", "namespace": HUB_NAMESPACE},
        "spec": {
            "description": "A query with a parenthesis too few",
            "configURL": f"{world.scorer_url}/config",
            "configSyncMode": "None",
            "source": source | {"params": query},
            "scoring": {"host": world.scorer_url, "params": {"name": "mistaken", "interval": INTERVAL}},
        },
    }

    def conditions() -> dict[str, dict[str, str]]:
        found = world.session.get(DYNAMIC_SCORERS.path(HUB_NAMESPACE, "mistaken"))
        return {one["type"]: one for one in (found.get("status") or {}).get("conditions") or []}

    def said() -> str:
        return (conditions().get("Scoring") or {}).get("message", "")

    world.hub.kubectl("apply", "-f", "-", stdin=json.dumps(scorer))

    def is_explained() -> bool:
        """In Prometheus' own words."""
        assert conditions()["Scoring"]["reason"] == "AllClustersFail"
        return "2 of 2 clusters fail" in said() and "parse error" in said()

    def has_event() -> bool:
        told = world.hub.kubectl("describe", "dsc", "mistaken", "-n", HUB_NAMESPACE)
        return "parse error" in told.partition("Events:")[2]

    eventually(world, lambda: said() and is_explained(), "what is wrong with the query", 2 * INTERVAL + 3)
    eventually(world, has_event, "an event that says so")
    query["query"] = f"max by (node) ({METRIC})"
    world.hub.kubectl("apply", "-f", "-", stdin=json.dumps(scorer))
    eventually(world, lambda: conditions()["Scoring"]["status"] == "True", "cycles that succeed")
    world.hub.kubectl("delete", "dsc", "mistaken", "-n", HUB_NAMESPACE, "--wait=true")


def test_a_placement_moves_to_the_better_cluster(world: World) -> None:
    world.measure(cluster1=80, cluster2=20)
    eventually(world, lambda: world.decision() == ["cluster1"], "the first decision")
    world.measure(cluster1=10, cluster2=90)
    eventually(world, lambda: world.decision() == ["cluster2"], "the move to cluster2")
    world.measure(cluster1=80, cluster2=20)
    eventually(world, lambda: world.decision() == ["cluster1"], "the move back")


def test_a_placement_leaves_a_cluster_whose_score_expired(world: World) -> None:
    world.measure(cluster1=10, cluster2=90)
    eventually(world, lambda: world.decision() == ["cluster2"], "the move to cluster2")
    world.clusters["cluster2"].stop_agent()
    eventually(world, lambda: world.score("cluster2") is None, "the removal of the expired score")
    eventually(world, lambda: world.decision() == ["cluster1"], "the move away")
    world.clusters["cluster2"].start_agent()
    eventually(world, lambda: world.decision() == ["cluster2"], "the return")
