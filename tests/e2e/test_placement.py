"""From a metric on a managed cluster to the decision of a Placement, with OCM's own placement controller."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from dsf.api.types import CONFIGMAP_NAME, SUMMARIES_KEY
from dsf.demo.stack import http_answer
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import CONFIG_MAPS, DYNAMIC_SCORERS, MANAGED_CLUSTERS
from tests.e2e.managedcluster import NAMESPACE, PROMETHEUS
from tests.e2e.world import CLUSTERS, HUB_NAMESPACE, World
from tests.support.wait import wait_for

pytestmark = [pytest.mark.xdist_group("e2e"), pytest.mark.timeout(180)]


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
        valid_until = datetime.fromisoformat(score["status"]["validUntil"])
        assert 0 < (valid_until - datetime.now(UTC)).total_seconds() <= 8
        (condition,) = score["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("AddOnPlacementScoreUpdated", "True")
        page = http_answer(f"http://127.0.0.1:{world.clusters[cluster].metrics_port}/metrics") or b""
        assert b"dynamic_score{" in page


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
