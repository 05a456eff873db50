"""From a metric on a managed cluster to the decision of a Placement, with OCM's own placement controller.

Two tests use the free memory of real Node and Pod objects, and a missing metric.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import yaml

from dsf.api.types import CONFIGMAP_NAME, SUMMARIES_KEY
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import CONFIG_MAPS, DYNAMIC_SCORERS, MANAGED_CLUSTERS, PLACEMENTS
from dsf.up.httpcheck import fetch_http, make_http_check
from tests.e2e.managedcluster import METRIC, NAMESPACE, PROMETHEUS
from tests.e2e.world import CLUSTERS, DSF, HUB_NAMESPACE, INTERVAL, RANGE, ROOT, OcmFleet, chosen
from tests.support.child import run_program
from tests.support.clusterobjects import RULES, add_node, add_pod, end_pod
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

RESOURCE_USAGE = ROOT / "samples" / "resource-usage-scorer"
#: GiB that the nodes of each cluster have.
MEMORY = {"cluster1": (32, 32), "cluster2": (96, 32)}


def wait_for_fleet(world: OcmFleet, condition: Callable[[], object], expectation: str, timeout: float = 30) -> None:
    """Wait, and show all logs when it was in vain."""
    began = time.monotonic()
    try:
        wait_for(condition, timeout, expectation, interval=0.05)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{world.logs()}") from None
    print(f"{expectation}: {time.monotonic() - began:.2f} s")


def test_configuration_is_delivered_to_each_cluster(world: OcmFleet) -> None:
    for name, cluster in world.clusters.items():

        def delivered(cluster=cluster) -> list[dict[str, object]]:
            try:
                config_map = cluster.spoke.session.get(CONFIG_MAPS.path(NAMESPACE, CONFIGMAP_NAME))
            except ObjectNotFoundError:
                return []
            return json.loads(config_map["data"][SUMMARIES_KEY])

        wait_for_fleet(world, delivered, f"the ConfigMap of {name}")
        (summary,) = [summary_entry for summary_entry in delivered() if summary_entry["name"] == "sample-scorer"]
        assert summary["scoreName"] == "sample_my_score"
        assert summary["sourceEndpoint"] == f"http://{PROMETHEUS}/api/v1/query_range"
        assert summary["scoringEndpoint"] == f"{world.scorer_url}/scoring"
        assert summary["scoringInterval"] == 2


def test_scores_are_written(world: OcmFleet) -> None:
    world.measure(cluster1=80, cluster2=20)
    wait_for_fleet(world, lambda: world.values("cluster1") == {"n1": 80}, "the score of cluster1")
    wait_for_fleet(world, lambda: world.values("cluster2") == {"n1": 20}, "the score of cluster2")
    for cluster in CLUSTERS:
        # The score has expired if no cycle has ended for eight seconds.
        score = wait_for(lambda cluster=cluster: _read_score(world, cluster), 30, f"the score of {cluster}")
        assert score is not None
        labels = score["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "dynamic-scoring-framework"
        assert labels["dynamic-scoring.open-cluster-management.io/scorer-name"] == "sample-scorer"
        (owner,) = score["metadata"]["ownerReferences"]
        assert owner["kind"] == "ManagedCluster"
        assert owner["uid"] == world.session.get(MANAGED_CLUSTERS.path(name=cluster))["metadata"]["uid"]
        # Renewed by each cycle; it expires while no agent runs.
        wait_for_fleet(
            world, lambda cluster=cluster: 0 < _valid_for(world, cluster) <= 8, f"a valid score of {cluster}"
        )
        (condition,) = score["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("AddOnPlacementScoreUpdated", "True")
        port = world.clusters[cluster].metrics_port
        wait_for_fleet(
            world,
            lambda port=port: b"dynamic_score{" in (fetch_http(f"http://127.0.0.1:{port}/metrics") or b""),
            f"the gauges of {cluster}",
        )
        wait_for_fleet(world, lambda cluster=cluster: _read_exported(world, cluster), f"{cluster} in the metrics", 5)


def _read_score(world: OcmFleet, cluster: str) -> dict[str, Any] | None:
    """Return the AddOnPlacementScore with its status, which is written slightly later."""
    score = world.score(cluster)
    return score if score and score.get("status") else None


def _valid_for(world: OcmFleet, cluster: str) -> float:
    score = wait_for(lambda: _read_score(world, cluster), 30, f"the score of {cluster}")
    assert score is not None
    return (datetime.fromisoformat(score["status"]["validUntil"]) - datetime.now(UTC)).total_seconds()


def _read_exported(world: OcmFleet, cluster: str) -> bool:
    page = fetch_http(f"http://127.0.0.1:{world.web_port}/metrics") or b""
    return re.search(rf'^dynamic_score{{[^}}]*ds_cluster="{cluster}"'.encode(), page, re.MULTILINE) is not None


def test_started_commands_match_the_page_of_operations(world: OcmFleet) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    section, _, _ = text[text.index("## Run the services by hand") :].partition("\n## ")
    documented_commands = set(re.findall(r"^\$ dsf (\w+)", section, re.MULTILINE))
    # Its `dsf crds` prints the CRDs that the API server got at its start.
    assert documented_commands == {"crds", "agent", *(set(world.children) - {"scorer", "sample", "placement"})}
    names = set(re.findall(r"\b(DSF_\w+)=", section))
    explained_variables = {"DSF_REDIS_URL", "DSF_BACKEND", "DSF_KUBECONFIG", "DSF_AGENT_KUBE", "DSF_CLUSTER"}
    assert names == explained_variables | {"DSF_SIGNING_KEY_FILE"}


def test_scorer_status_reports_success(world: OcmFleet) -> None:
    def conditions() -> dict[str, str]:
        scorer = world.session.get(DYNAMIC_SCORERS.path(HUB_NAMESPACE, "sample-scorer"))
        return {
            condition["type"]: condition["status"] for condition in (scorer.get("status") or {}).get("conditions") or []
        }

    expected_conditions = {"Healthy": "True", "ConfigSynced": "True", "Distributed": "True", "Scoring": "True"}
    wait_for_fleet(world, lambda: expected_conditions.items() <= conditions().items(), "all conditions")

    def row() -> list[str]:
        """Name, health, score, interval, ready, succeeding, desired, reason."""
        printed_row = world.hub.kubectl("get", "dynamicscorers", "sample-scorer", "-n", HUB_NAMESPACE, "--no-headers")
        return printed_row.split()[:8]

    wanted_row = ["sample-scorer", "Active", "sample_my_score", "2", "True", "2", "2", "CyclesSucceed"]
    wait_for_fleet(world, lambda: row() == wanted_row, f"what kubectl get shows, {wanted_row}")


def register(world: OcmFleet, name: str, query: str, **spec: Any) -> None:
    """Run `kubectl apply` for a scorer whose score and item have its name."""
    source = {"type": "Prometheus", "host": f"http://{PROMETHEUS}", "path": "/api/v1/query_range"}
    scorer = {
        "apiVersion": DYNAMIC_SCORERS.api_version,
        "kind": DYNAMIC_SCORERS.kind,
        "metadata": {"name": name, "namespace": HUB_NAMESPACE},
        "spec": {
            "description": "Of another query",
            "configURL": f"{world.scorer_url}/config",
            "configSyncMode": "None",
            "source": source | {"params": {"query": query, "range": RANGE, "step": 1}},
            "scoring": {"host": world.scorer_url, "params": {"name": name, "interval": INTERVAL}},
            **spec,
        },
    }
    world.hub.kubectl("apply", "-f", "-", stdin=json.dumps(scorer))


def test_scoring_condition_explains_a_query_mistake(world: OcmFleet) -> None:
    def conditions() -> dict[str, dict[str, str]]:
        scorer = world.session.get(DYNAMIC_SCORERS.path(HUB_NAMESPACE, "mistaken"))
        return {condition["type"]: condition for condition in (scorer.get("status") or {}).get("conditions") or []}

    def scoring_message() -> str:
        return (conditions().get("Scoring") or {}).get("message", "")

    register(world, "mistaken", f"max by (node ({METRIC})")

    def is_explained() -> bool:
        """In Prometheus' own words."""
        assert conditions()["Scoring"]["reason"] == "AllClustersFail"
        return "2 of 2 clusters fail" in scoring_message() and "parse error" in scoring_message()

    def has_event() -> bool:
        description = world.hub.kubectl("describe", "dscorer", "mistaken", "-n", HUB_NAMESPACE)
        return "parse error" in description.partition("Events:")[2]

    wait_for_fleet(
        world, lambda: scoring_message() and is_explained(), "what is wrong with the query", 2 * INTERVAL + 3
    )
    wait_for_fleet(world, has_event, "an event that says so")
    register(world, "mistaken", f"max by (node) ({METRIC})")
    wait_for_fleet(world, lambda: conditions()["Scoring"]["status"] == "True", "cycles that succeed")
    world.hub.kubectl("delete", "dscorer", "mistaken", "-n", HUB_NAMESPACE, "--wait=true")


def test_placement_moves_to_the_better_cluster(world: OcmFleet) -> None:
    world.measure(cluster1=80, cluster2=20)
    wait_for_fleet(world, lambda: world.decision() == ["cluster1"], "the first decision")
    world.measure(cluster1=10, cluster2=90)
    wait_for_fleet(world, lambda: world.decision() == ["cluster2"], "the move to cluster2")
    world.measure(cluster1=80, cluster2=20)
    wait_for_fleet(world, lambda: world.decision() == ["cluster1"], "the move back")


def test_documented_predicate_on_a_score_follows_the_score(world: OcmFleet) -> None:
    page = (ROOT / "docs" / "placement.md").read_text().partition("## CEL predicates on scores")[2]
    spec = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["spec"]
    metadata = {"name": "demanding", "namespace": "apps"}
    body = {"apiVersion": PLACEMENTS.api_version, "kind": PLACEMENTS.kind, "metadata": metadata}
    world.session.create(PLACEMENTS.path("apps"), body | {"spec": {**spec, "clusterSets": ["edge"]}})
    for values, clusters in (((80, 20), ["cluster1"]), ((20, 80), ["cluster2"]), ((80, 20), ["cluster1"])):
        world.measure(cluster1=values[0], cluster2=values[1])
        wait_for_fleet(world, lambda: chosen(world.session, "demanding", "apps") == clusters, f"predicate: {clusters}")  # noqa: B023
    environment = {"DSF_KUBECONFIG": str(world.hub.kubeconfig), "PATH": "/usr/bin:/bin"}
    explanation = json.loads(
        run_program([DSF, "placement", "demanding", "-n", "apps", "-o", "json"], env=environment).stdout
    )
    assert explanation["agrees"] is None
    assert not any("OCM has not evaluated it" in note for note in explanation["notes"])


def test_placement_leaves_a_cluster_whose_score_expired(world: OcmFleet) -> None:
    world.measure(cluster1=10, cluster2=90)
    wait_for_fleet(world, lambda: world.decision() == ["cluster2"], "the move to cluster2")
    world.clusters["cluster2"].stop_agent()
    wait_for_fleet(world, lambda: world.score("cluster2") is None, "the removal of the expired score")
    wait_for_fleet(world, lambda: world.decision() == ["cluster1"], "the move away")
    world.clusters["cluster2"].start_agent()
    wait_for_fleet(world, lambda: world.decision() == ["cluster2"], "the return")


def start_resource_usage(world: OcmFleet) -> None:
    """Nodes, and the sample as a process, with the manifests of its folder."""
    url = f"http://127.0.0.1:{free_port()}"
    options = ("--app-dir", str(RESOURCE_USAGE), "--port", url.rpartition(":")[2], "--log-level", "warning")
    world.run("sample", sys.executable, "-m", "uvicorn", *options, "app:app", SCORE_INTERVAL=INTERVAL)
    for name, sizes in MEMORY.items():
        admin = world.clusters[name].spoke.session
        admin.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        for number, size in enumerate(sizes):
            add_node(admin, f"n{number}", cpu="8", memory=f"{size}Gi")
    wait_for(make_http_check(f"{url}/healthz"), 30, world.children["sample"].tail())
    for name in ("dynamicscorer.yaml", "placement.yaml"):
        text = (RESOURCE_USAGE / "manifests" / name).read_text()
        text = text.replace("http://resource-usage-scorer.dynamic-scoring.svc:8000", url)
        world.hub.kubectl("apply", "-f", "-", stdin=text)


def test_free_memory_of_nodes_steers_a_placement(world: OcmFleet) -> None:
    start_resource_usage(world)

    def shows_missing_right() -> bool:
        """In the scorer's status: the agent may not read nodes."""
        obj = world.session.get(DYNAMIC_SCORERS.path(HUB_NAMESPACE, "resource-usage-scorer"))
        failures = (obj.get("status") or {}).get("failures") or []
        assert {failure["reason"] for failure in failures} <= {"unauthorized"}
        return any("ClusterRole with get, list and watch of nodes" in failure["message"] for failure in failures)

    wait_for_fleet(world, shows_missing_right, "what is missing")
    for cluster in world.clusters.values():
        cluster.plane.set_rules(NAMESPACE, "agent", RULES)
    for name in CLUSTERS:
        wait_for_fleet(world, lambda name=name: world.values(name, "resource-usage-score"), f"the scores of {name}")
    assert world.values("cluster1", "resource-usage-score") == {
        "cpuNodeAvailable": -84,
        "cpuClusterAvailable": -68,
        "cpuAvailable": -68,
        "memNodeAvailable": -93,
        "memClusterAvailable": -87,
        "memAvailable": -87,
        "gpuNodeAvailable": -100,
        "gpuClusterAvailable": -100,
        "tpuNodeAvailable": -100,
        "tpuClusterAvailable": -100,
    }
    pods = world.clusters["cluster2"].spoke.session
    wait_for_fleet(world, lambda: chosen(world.session, "most-memory") == ["cluster2"], "128 GiB are more than 64")
    add_pod(pods, "default", "large", "n0", memory="90Gi")
    wait_for_fleet(world, lambda: chosen(world.session, "most-memory") == ["cluster1"], "64 GiB are more than 38")
    end_pod(pods, "default", "large")
    wait_for_fleet(world, lambda: chosen(world.session, "most-memory") == ["cluster2"], "the pod has ended")


def test_missing_score_beats_a_negative_score_unless_when_empty_gives_a_value(world: OcmFleet) -> None:
    world.measure(cluster1=-20, cluster2=20)
    # Only cluster1 has such a series, and its score is negative.
    query = f"max by (node) ({METRIC} < 0)"
    register(world, "headroom", query)
    world.kubectl_apply("headroom.yaml")
    wait_for_fleet(world, lambda: world.values("cluster1", "headroom") == {"headroom": -20}, "cluster1's score")
    wait_for_fleet(world, lambda: world.values("cluster2", "headroom") == {}, "cluster2's valid, empty score")
    wait_for_fleet(
        world, lambda: chosen(world.session, "headroom", "apps") == ["cluster2"], "the trap: none counts as 0"
    )
    register(world, "headroom", query, execution={"whenEmpty": {"behavior": "Value", "value": -100}})
    wait_for_fleet(world, lambda: world.values("cluster2", "headroom") == {"headroom": -100}, "the low score")
    wait_for_fleet(world, lambda: chosen(world.session, "headroom", "apps") == ["cluster1"], "the way out of the trap")
    world.hub.kubectl("delete", "dscorer", "headroom", "-n", HUB_NAMESPACE, "--wait=true")
