"""Authorization of readers and users by a real API server, and the page's view of a DynamicScorer there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import redis

from dsf.backtest import runstore
from dsf.fleet import changes
from dsf.kube.resources import DYNAMIC_SCORERS, PLACEMENTS
from dsf.kube.session import Session
from dsf.store.registry import ScorerRecord
from dsf.web.kube import make_scorer_reader
from tests.integration.exporter.fleet import CLUSTERS, SAMPLE, good_fleet
from tests.integration.web.test_acts import Visitor
from tests.support import chart
from tests.support.backtests import comparison
from tests.support.controlplane import ControlPlane
from tests.support.manifests import scorer
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

LISTED = {"apiGroups": [PLACEMENTS.group], "resources": [PLACEMENTS.plural]}
SCORERS = {"apiGroups": [DYNAMIC_SCORERS.group], "resources": [DYNAMIC_SCORERS.plural]}


def token_of(kubeconfig: Path) -> str:
    token: str = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    return token


def own_rules() -> list[dict[str, Any]]:
    """Return the rules that the chart grants the page."""
    [role] = [
        cluster_role
        for cluster_role in chart.of_kind(chart.render({"mode": "Distributed"}), "ClusterRole")
        if cluster_role["metadata"]["name"].endswith("-web")
    ]
    rules: list[dict[str, Any]] = role["rules"]
    return rules


def placement(name: str) -> dict[str, Any]:
    """Return a Placement that prefers an item of the sample's score."""
    coordinate = {"type": "AddOn", "addOn": {"resourceName": "sample-score", "scoreName": "n1"}}
    policy = {"mode": "Exact", "configurations": [{"weight": 1, "scoreCoordinate": coordinate}]}
    kind = {"apiVersion": PLACEMENTS.api_version, "kind": PLACEMENTS.kind}
    return {**kind, "metadata": {"name": name}, "spec": {"numberOfClusters": 1, "prioritizerPolicy": policy}}


def own_settings() -> dict[str, Any]:
    """Return the chart's values of the page's settings, except for its address."""
    [pod] = [
        deployment["spec"]["template"]["spec"]
        for deployment in chart.of_kind(chart.render({"mode": "Distributed"}), "Deployment")
        if deployment["metadata"]["name"].endswith("-web")
    ]
    [container] = pod["containers"]
    assert container["args"][:1] == ["hub"]
    variables = {
        variable["name"].lower().removeprefix("dsf_"): variable["value"]
        for variable in container["env"]
        if "value" in variable
    }
    return {name: value for name, value in variables.items() if name.startswith("web_") or name == "host_names"}


def test_api_server_decides_what_users_may_do(
    control_plane: ControlPlane, redis_client: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    # The fleet is due in an hour, so that nothing is late when the page is read.
    fleet = good_fleet(redis_client, due_in=3600)
    namespace = control_plane.namespace("page")
    page_account = control_plane.service_account(namespace, "page", own_rules())
    tokens = {
        "actor": token_of(control_plane.service_account(namespace, "actor", [{**SCORERS, "verbs": ["get", "update"]}])),
        "viewer": token_of(control_plane.service_account(namespace, "viewer", [{**SCORERS, "verbs": ["get"]}])),
        "reader": token_of(
            control_plane.service_account(
                namespace, "reader", [{**SCORERS, "verbs": ["get"]}, {**LISTED, "verbs": ["list"]}]
            )
        ),
        "nobody": token_of(control_plane.service_account(namespace, "nobody", [])),
    }
    settings = own_settings() | {"backend": "kube", "kubeconfig": page_account, "namespace": namespace}
    assert settings["web_auth"] == "kubernetes"
    with WebProcess(redis_url, tmp_path / "log", **settings) as page:

        def visitor(token: str) -> tuple[Visitor, int]:
            new_visitor = Visitor(page)
            return new_visitor, new_visitor.post("/login", new_visitor.get("/login"), token=token)[0]

        assert visitor("made-up")[1] == 401
        actor, status = visitor(tokens["actor"])
        assert status == 303
        wait_for(lambda: "All 2 scores" in actor.get("/"), 20)
        form = actor.get(f"/act/rescore?scorer={SAMPLE}&cluster=worker01")
        assert actor.post("/act/rescore", form)[0] == 303
        [change] = changes.read_changes(redis_client).changes
        assert (change.by, change.claimed) == (f"system:serviceaccount:{namespace}:actor", False)

        viewer, _ = visitor(tokens["viewer"])
        assert "/act/" not in viewer.get(f"/scorers/{SAMPLE}")
        assert viewer.status == 200
        viewer.get(f"/act/rescore?scorer={SAMPLE}")
        assert viewer.status == 403
        secret = viewer.get(f"/scorers/{SAMPLE}")
        assert viewer.post("/act/rescore", secret, scorer=SAMPLE)[0] == 403
        assert f"system:serviceaccount:{namespace}:viewer" in page.log
        assert len(changes.read_changes(redis_client).changes) == 1

        # The two accounts may not list Placements, so a comparison has none for them; the holder of both rights sees
        # them.
        runstore.store_run(redis_client, [SAMPLE], comparison(time.time()))
        reader, _ = visitor(tokens["reader"])
        for account, sees in ((viewer, False), (reader, True), (actor, False)):
            html = account.get(f"/scorers/{SAMPLE}/backtests")
            assert (account.status, "apps/web" in html, "3 of 9 decisions" in html) == (200, sees, sees)
            assert ("shown to those who may list them" in html) is not sees

        # A comparison started here has the Placements that prefer one of the two scores, whoever started it.
        fleet.registry.put_scorer(ScorerRecord(name="other", score_name="sample_score", interval=10, validity=300))
        for cluster in CLUSTERS:
            fleet.entry(cluster, "other")
            fleet.score(cluster, "other")
        control_plane.session().create(PLACEMENTS.path(namespace), placement("web"))
        form = actor.get(f"/act/compare?scorer={SAMPLE}")
        status, text, location = actor.post("/act/compare", form, other="other", how="now")
        assert status == 303, text
        wait_for(lambda: not runstore.read_runs(redis_client, "other")[0].is_running, 90, "the comparison")
        run = runstore.read_runs(redis_client, "other")[0]
        assert run.comparison is not None, run.problem
        assert [(placement.namespace, placement.name) for placement in run.comparison.placements] == [
            (namespace, "web")
        ]
        assert f"Placement {namespace}/web" in reader.get(location)
        assert f"{namespace}/web" not in actor.get(location)
        assert viewer.post("/act/compare", secret, scorer=SAMPLE, other="other")[0] == 403

        nobody, _ = visitor(tokens["nobody"])
        nobody.get("/")
        assert nobody.status == 403
        assert not [name for name, token in tokens.items() if token in page.log]


def test_large_scorer_is_not_kept_by_the_page(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    lists = {"ordinary": 10, "dense": 10_000, "large": 200_000}
    for name, number in lists.items():
        source = {"type": "mine.example.com", "options": {"a": [[]] * number}}
        session.create(DYNAMIC_SCORERS.path(namespace), scorer(namespace, name, source=source))
    read = make_scorer_reader(session, [namespace])
    assert [name for name in lists if read(name, namespace) is not None] == ["ordinary"]
    for name in lists:
        session.delete(DYNAMIC_SCORERS.path(namespace, name))
