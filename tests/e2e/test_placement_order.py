"""`dsf placement` against OCM's own placement controller: the same clusters in the same order, on random fleets.

All fleets share one API server: each is a cluster set of some of its clusters, with its own Placement.
"""

from __future__ import annotations

import contextlib
import json
import random
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from dsf.api.meta import format_rfc3339
from dsf.backtest.recording import Question, Record
from dsf.kube.lists import list_objects
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    MANAGED_CLUSTER_SETS,
    MANAGED_CLUSTERS,
    PLACEMENTS,
    Resource,
)
from dsf.kube.session import Session
from dsf.placements.explanation import PlacementView, WhatIf, explain
from dsf.placements.kinds import MANAGED_CLUSTER_SET_BINDINGS, PLACEMENT_DECISIONS
from dsf.placements.reader import PlacementReader, parse_scheduler_response
from dsf.placements.replay import RecordedScores, Replay
from dsf.placements.scheduling import (
    SchedulerResult,
    SchedulingDecision,
    Situation,
    count_decisions,
    decide_placement,
    list_decided_clusters,
)
from tests.support.browser import TIMEOUT, Tab, browser
from tests.support.child import Child
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_fixtures import programs_needed
from tests.support.redisserver import free_port
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

__all__ = ["browser"]
expect.set_options(timeout=TIMEOUT)

FLEETS = 200
CLUSTERS = 40
SEED = 20
NAMESPACE = "fleets"
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_OLD = format_rfc3339(datetime.now(UTC) - timedelta(hours=1))
_LATER = format_rfc3339(datetime.now(UTC) + timedelta(days=1))


class Bench:
    """The hub with its objects, and a connection to the controller's own scheduler."""

    def __init__(self, plane: ControlPlane, session: Session, port: int) -> None:
        self.plane = plane
        self.session = session
        context = ssl.create_default_context()
        # The controller creates a self-signed certificate.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.controller = HTTPSConnection("127.0.0.1", port, context=context, timeout=300)

    @property
    def reader(self) -> PlacementReader:
        """Return a new reader without cached objects."""
        return PlacementReader(self.session)

    def put(self, resource: Resource, namespace: str, name: str, **parts: Any) -> None:
        """Create an object, then its status if given."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}} | parts
        body["metadata"] = {"name": name} | parts.get("metadata", {})
        created = self.session.create(resource.path(namespace), body)
        if "status" in parts:
            created["status"] = parts["status"]
            self.session.replace(resource.path(namespace, name, "status"), created)

    def ask(self, name: str) -> SchedulerResult:
        """Query the controller's scheduler for its current result for a Placement."""
        path = f"/debug/placements/{NAMESPACE}/{name}"
        self.controller.request("GET", path, headers={"Authorization": "Bearer admin-token"})
        response = self.controller.getresponse()
        text = response.read()
        assert response.status == 200, text
        return parse_scheduler_response(text)

    def situations(self) -> dict[str, Situation]:
        """Return the situations of all Placements from a single read of all objects."""
        first = self.reader.read_situation(NAMESPACE, "fleet-000")
        decisions = list_objects(self.session, PLACEMENT_DECISIONS)
        sets = {
            cluster_set["metadata"]["name"]: cluster_set
            for cluster_set in list_objects(self.session, MANAGED_CLUSTER_SETS)
        }
        scores = {
            (score["metadata"]["namespace"], score["metadata"]["name"]): score
            for score in list_objects(self.session, ADDON_PLACEMENT_SCORES)
        }
        label = "cluster.open-cluster-management.io/placement"
        all_counts = count_decisions(decisions)
        situations = {}
        for placement in list_objects(self.session, PLACEMENTS, NAMESPACE):
            name = placement["metadata"]["name"]
            placement_decisions = [decision for decision in decisions if decision["metadata"]["labels"][label] == name]
            situations[name] = Situation(
                placement=placement,
                decided=frozenset(
                    cluster for decision in placement_decisions for cluster in list_decided_clusters(decision)
                ),
                other_decision_counts=all_counts - count_decisions(placement_decisions),
                clusters=first.clusters,
                cluster_sets={key: cluster_set for key, cluster_set in sets.items() if key.startswith("fleet-")},
                scores=scores,
                now=datetime.now(UTC),
            )
        return situations


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with programs_needed():
        program = find("placement") / "placement"
        plane = ControlPlane()
    with plane, contextlib.ExitStack() as stack:
        port = free_port()
        command = [str(program), "controller", f"--kubeconfig={plane.kubeconfig}", "--namespace=default"]
        command += ["--disable-leader-election", f"--listen=127.0.0.1:{port}"]
        test_bench = Bench(plane, plane.session(), port)
        stack.enter_context(contextlib.closing(test_bench.controller))
        populate(test_bench, random.Random(SEED))
        # Start last, so that the controller sees every object.
        child = Child(command, tmp_path_factory.mktemp("placement") / "log")
        stack.callback(child.kill)
        yield test_bench


def populate(bench: Bench, rng: random.Random) -> None:
    """Create clusters, their scores, and fleets of some of them."""
    bench.session.create(_NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
    # Make all random choices in one fixed order, because the objects are then created in parallel.
    clusters = [_cluster(f"c{number:02}", rng) for number in range(CLUSTERS)]
    members = {f"fleet-{number:03}": rng.sample(range(CLUSTERS), rng.randint(4, 12)) for number in range(FLEETS)}
    for name, numbers in members.items():
        for number in numbers:
            clusters[number]["metadata"]["labels"][f"in-{name}"] = ""
    placements = [_placement(name, number, rng) for number, name in enumerate(members)]
    scores = [(f"c{number:02}", score) for number in range(CLUSTERS) for score in _scores(rng)]
    with ThreadPoolExecutor(8) as threads:

        def make(*calls: tuple[Any, ...]) -> None:
            for future in [threads.submit(bench.put, *call[:3], **call[3]) for call in calls]:
                future.result()

        make(*((_NAMESPACES, "", f"c{number:02}", {}) for number in range(CLUSTERS)))
        make(*((MANAGED_CLUSTERS, "", f"c{number:02}", cluster) for number, cluster in enumerate(clusters)))
        make(
            *(
                (ADDON_PLACEMENT_SCORES, cluster, score["name"], {"status": score["status"]})
                for cluster, score in scores
            )
        )
        make(
            *(
                (
                    MANAGED_CLUSTER_SETS,
                    "",
                    name,
                    {
                        "spec": {
                            "clusterSelector": {
                                "selectorType": "LabelSelector",
                                "labelSelector": {"matchExpressions": [{"key": f"in-{name}", "operator": "Exists"}]},
                            }
                        }
                    },
                )
                for name in members
            )
        )
        make(*((MANAGED_CLUSTER_SET_BINDINGS, NAMESPACE, name, {"spec": {"clusterSet": name}}) for name in members))
        make(*((PLACEMENTS, NAMESPACE, placement["name"], {"spec": placement["spec"]}) for placement in placements))


def _cluster(name: str, rng: random.Random) -> dict[str, Any]:
    effects = ("NoSelect", "NoSelectIfNew", "PreferNoSelect")
    taints = [
        {"key": f"t{number}", "value": rng.choice(("", "a")), "effect": rng.choice(effects), "timeAdded": _OLD}
        for number in range(rng.choice((0, 0, 0, 1, 2)))
    ]
    cpu = rng.choice(("4", "8", "1500m", "12", "96", "7910m"))
    amounts = {"cpu": cpu, "memory": rng.choice(("16Gi", "64Gi", "8000Mi", "1024Ki", "32G"))}
    status: dict[str, Any] = {"version": {}, "conditions": []}
    if rng.random() < 0.85:
        status |= {"allocatable": amounts, "capacity": amounts}
    status["clusterClaims"] = [{"name": "region", "value": rng.choice(("eu", "us"))}]
    return {
        "metadata": {"labels": {"tier": rng.choice(("gold", "tin")), "zone": rng.choice("abc")}},
        "spec": {"hubAcceptsClient": True, "taints": taints},
        "status": status,
    }


def _scores(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the AddOnPlacementScores of one cluster: fresh, without an end, and expired ones; some are missing."""
    for name, valid_until in (("fresh", _LATER), ("endless", None), ("old", _OLD)):
        if rng.random() < 0.85:
            items = [
                # Few different values, so that ties are broken by name.
                {"name": f"s{number}", "value": rng.choice((-100, -3, 0, 7, 50, 50, rng.randint(-100, 100)))}
                for number in range(8)
                if rng.random() < 0.8
            ]
            yield {"name": name, "status": {"scores": items} | ({"validUntil": valid_until} if valid_until else {})}


def _placement(name: str, number: int, rng: random.Random) -> dict[str, Any]:
    def addon() -> dict[str, Any]:
        score = {"resourceName": rng.choice(("fresh", "endless", "old", "absent")), "scoreName": f"s{number % 8}"}
        weight = rng.choice((-10, -1, 1, 1, 2, 3, 10))
        return {"weight": weight, "scoreCoordinate": {"type": "AddOn", "addOn": score}}

    def builtin() -> dict[str, Any]:
        kind = rng.choice(("Steady", "Balance", "ResourceAllocatableCPU", "ResourceAllocatableMemory"))
        # With negative free resources, OCM removes and adds the Placement's cluster forever.
        weights = (0, 1, 2) if kind == "Steady" else (0, 1, 2, -1)
        return {"weight": rng.choice(weights), "scoreCoordinate": {"type": "BuiltIn", "builtIn": kind}}

    configurations = [addon() for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    configurations += [builtin() for _ in range(rng.choice((0, 0, 1, 2)))]
    spec: dict[str, Any] = {
        "clusterSets": [name],
        "prioritizerPolicy": {
            "mode": rng.choice(("Exact", "Exact", "Additive")),
            "configurations": configurations,
        },
    }
    if rng.random() < 0.8:
        spec["numberOfClusters"] = rng.randint(0, 5)
    if rng.random() < 0.4:
        spec["predicates"] = [_predicate(rng) for _ in range(rng.choice((1, 2)))]
    if rng.random() < 0.5:
        spec["tolerations"] = [_toleration(rng) for _ in range(rng.choice((1, 2)))]
    return {"name": name, "spec": spec}


def _predicate(rng: random.Random) -> dict[str, Any]:
    expressions = [
        {"key": "zone", "operator": "NotIn", "values": ["a", "x"]},
        {"key": "absent", "operator": "DoesNotExist"},
        {"key": "tier", "operator": "Exists"},
        {"key": "absent", "operator": "NotIn", "values": ["x"]},
    ]
    selector: dict[str, Any] = {"labelSelector": {"matchExpressions": [rng.choice(expressions)]}}
    if rng.random() < 0.5:
        selector["labelSelector"]["matchLabels"] = {"tier": rng.choice(("gold", "tin"))}
    if rng.random() < 0.5:
        selector["claimSelector"] = {"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]}]}
    return {"requiredClusterSelector": selector}


def _toleration(rng: random.Random) -> dict[str, Any]:
    toleration: dict[str, Any] = {"operator": rng.choice(("Exists", "Equal"))}
    if toleration["operator"] == "Equal" or rng.random() < 0.5:
        toleration["key"] = rng.choice(("t0", "t1"))
    if toleration["operator"] == "Equal":
        toleration["value"] = rng.choice(("", "a"))
    if rng.random() < 0.4:
        toleration["effect"] = rng.choice(("NoSelect", "NoSelectIfNew"))
    if rng.random() < 0.4:
        # The taint is an hour old.
        toleration["tolerationSeconds"] = rng.choice((60, 86400))
    return toleration


def _depends_on_others(situation: Situation) -> bool:
    """True if other Placements' decisions affect this one. OCM does not schedule it again when they change."""
    return any(prioritizer.name == "Balance" for prioritizer in decide_placement(situation).prioritizers)


def _describe_difference(situation: Situation, outcome: SchedulingDecision) -> str:
    return f"{situation.placement['metadata']['name']}: {sorted(situation.decided)} is not {outcome.chosen}"


def test_placement_schedule_matches_the_decisions_of_ocm(bench: Bench) -> None:
    """OCM and `decide_placement` choose the same clusters, except where Balance makes it depend on scheduling order."""
    situations: dict[str, Situation] = {}

    def check_decisions() -> bool:
        situations.clear()
        situations.update(bench.situations())
        assert len(situations) == FLEETS
        scheduled_situations = [
            situation
            for situation in situations.values()
            if (situation.placement.get("status") or {}).get("conditions")
        ]
        assert len(scheduled_situations) == FLEETS, f"OCM has scheduled {len(scheduled_situations)} Placements"
        differences = [
            _describe_difference(situation, outcome)
            for situation in situations.values()
            if not _depends_on_others(situation)
            and set((outcome := decide_placement(situation)).chosen) != situation.decided
        ]
        assert not differences, "\n".join(differences)
        return True

    wait_for(check_decisions, 20, "OCM's decisions are those that are computed", interval=2.0)
    compared = [situation for situation in situations.values() if not _depends_on_others(situation)]
    assert len(compared) >= 120
    # Enough of the compared Placements decide something.
    assert sum(bool(situation.decided) for situation in compared) > 80
    assert sum(0 < len(situation.decided) < len(decide_placement(situation).order) for situation in compared) > 40


def test_replay_of_published_scores_matches_the_decisions_of_ocm(bench: Bench) -> None:
    """Replay at least 50 fleets as `dsf compare` does: a backtest sample at `at` replaces the published scores."""
    at = int(time.time())
    scores_by_resource = {resource: _read_published(bench, resource, at) for resource in ("fresh", "endless")}

    def check_replay() -> int:
        fleets: set[str] = set()
        moved = 0
        for name, situation in bench.situations().items():
            for resource, scores in scores_by_resource.items():
                if _depends_on_others(situation) or all(
                    prioritizer.resource != resource for prioritizer in decide_placement(situation).prioritizers
                ):
                    continue
                unscored = replace(
                    situation, scores={key: score for key, score in situation.scores.items() if key[1] != resource}
                )
                replayed_clusters = set(Replay(unscored, scores, frozenset({resource}), frozenset()).decide(at))
                assert replayed_clusters == situation.decided, (
                    f"{name}, {resource}: {sorted(replayed_clusters)} is not {sorted(situation.decided)}"
                )
                fleets.add(name)
                moved += set(decide_placement(unscored).chosen) != situation.decided
        assert len(fleets) >= 50
        return moved

    # More than 5 decisions depend on these scores.
    assert wait_for(check_replay, 20, "OCM's decisions are those of the replay", interval=1.0) > 5


def _read_published(bench: Bench, resource: str, at: int) -> RecordedScores:
    """Return the AddOnPlacementScores of this name as a backtest sample at `at`."""
    score_objects = [
        score_object
        for score_object in list_objects(bench.session, ADDON_PLACEMENT_SCORES, name=resource)
        if score_object.get("status")
    ]
    records = [
        Record(
            cluster=score_object["metadata"]["namespace"],
            at=at,
            outcome="ok",
            items={item["name"]: item["value"] for item in score_object["status"].get("scores") or ()},
        )
        for score_object in score_objects
    ]
    scores = RecordedScores({record.cluster: _make_backtest_question(record.cluster) for record in records})
    scores.add_records(records)
    return scores


def _make_backtest_question(cluster: str) -> Question:
    return Question(
        cluster=cluster,
        scorer="fresh",
        score_name="fresh",
        every=60,
        validity=600,
        sources=(),
        scoring_endpoint="",
        formats=(),
    )


def test_prioritizer_values_and_order_match_the_scheduler_of_ocm(bench: Bench) -> None:
    """Compare all 200 Placements, including those with Balance, with the current results of OCM's scheduler."""

    situations: dict[str, Situation] = {}

    def check_scheduler() -> bool:
        # Read again at each attempt, because the controller's view of the hub may be some milliseconds older than ours.
        situations.update(bench.situations())
        for name in sorted(situations):
            compare(explain(situations[name]), bench.ask(name))
        return True

    def compare(view: PlacementView, response: SchedulerResult) -> None:
        explained = explain(situations[view.name], scheduler_result=response)
        assert [(row.cluster, row.total) for row in view.ranking] == [
            (row.cluster, row.total) for row in explained.ranking
        ]
        outside = {exclusion.cluster for exclusion in view.left_out if exclusion.stage == "cluster set"}
        assert response.passed - outside == {row.cluster for row in view.ranking}
        for index, prioritizer in enumerate(view.prioritizers):
            # ResourceAllocatable* are normalised over the candidates, and OCM's response covers all fleets.
            if not prioritizer.name.startswith("Resource"):
                scores = response.scores[prioritizer.name, prioritizer.weight]
                computed = {row.cluster: row.cells[index].value for row in view.ranking}
                assert computed == {name: scores[name] for name in computed}, f"{view.name}: {prioritizer.name}"

    wait_for(check_scheduler, 10, "OCM's scheduler has the computed values", interval=1.0)
    assert len(situations) >= FLEETS
    assert sum(len(decide_placement(situation).order) for situation in situations.values()) > 400


def test_placement_prediction_matches_the_later_decision_of_ocm(bench: Bench) -> None:
    """Change a score as in the what-if; OCM then decides as predicted."""
    name = "what-if"
    members = ["c00", "c01", "c02"]
    for cluster in members:
        # Remove the random taints.
        change = {"metadata": {"labels": {"whatif": "yes"}}, "spec": {"taints": []}}
        bench.session.merge(MANAGED_CLUSTERS.path(name=cluster), change)
        value = {"c00": 10, "c01": 20, "c02": 30}[cluster]
        status = {"scores": [{"name": "x", "value": value}], "validUntil": _LATER}
        bench.put(ADDON_PLACEMENT_SCORES, cluster, name, status=status)
    selector = {"selectorType": "LabelSelector", "labelSelector": {"matchLabels": {"whatif": "yes"}}}
    bench.session.create(_NAMESPACES.path(), {"metadata": {"name": name}})
    bench.put(MANAGED_CLUSTER_SETS, "", name, spec={"clusterSelector": selector})
    bench.put(MANAGED_CLUSTER_SET_BINDINGS, name, name, spec={"clusterSet": name})
    score = {"type": "AddOn", "addOn": {"resourceName": name, "scoreName": "x"}}
    policy = {"mode": "Exact", "configurations": [{"weight": 1, "scoreCoordinate": score}]}
    bench.put(PLACEMENTS, name, name, spec={"numberOfClusters": 1, "prioritizerPolicy": policy})

    def has(*clusters: str) -> PlacementView:
        view = bench.reader.explain(name, name)
        assert (view.decided, view.chosen) == (list(clusters), list(clusters))
        return view

    view = wait_for(lambda: has("c02"), 30, "the first decision")
    assert [(row.cluster, row.margin) for row in view.ranking] == [("c02", 9), ("c01", -10), ("c00", -20)]
    # Equal sums are ordered by name.
    for cluster, value, enters in (("c01", 30, ["c01"]), ("c00", 29, []), ("c00", 30, ["c00"])):
        changes = [WhatIf(cluster=cluster, resource=name, score="x", value=value)]
        changed = bench.reader.explain(name, name, changes).what_if
        assert changed is not None
        assert changed.enters == enters
        assert changed.leaves == (["c02"] if enters else [])
    path = ADDON_PLACEMENT_SCORES.path("c00", name)
    score_object = bench.session.get(path)
    score_object["status"]["scores"] = [{"name": "x", "value": 30}]
    bench.session.replace(f"{path}/status", score_object)
    wait_for(lambda: has("c00"), 30, "the predicted decision")
    # Predict the deletion of its score: a missing score counts 0.
    removal = WhatIf(cluster="c00", resource=name, score="x", value=None)
    changed = bench.reader.explain(name, name, [removal]).what_if
    assert changed is not None
    assert changed.enters == ["c02"]
    bench.session.delete(path)
    view = wait_for(lambda: has("c02"), 30, "the decision without the deleted score")
    assert next(row for row in view.ranking if row.cluster == "c00").cells[0].standing == "missing"


def test_placement_command_prints_the_ranking(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from dsf.cli.main import app

    monkeypatch.setenv("DSF_KUBECONFIG", str(bench.plane.kubeconfig))
    runner = CliRunner()
    view = bench.reader.explain(NAMESPACE, "fleet-001")
    result = runner.invoke(app, ["placement", "fleet-001", "-o", "json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [row["cluster"] for row in printed["ranking"]] == [row.cluster for row in view.ranking]
    assert printed["source"] == "computed"
    table = runner.invoke(app, ["placement", "fleet-001", "-n", NAMESPACE])
    assert "RANK" in table.stdout
    assert "OCM's rules, computed here" in table.stdout
    assert "fleet-001" in runner.invoke(app, ["placement"]).stdout
    unknown = runner.invoke(app, ["placement", "nothing-of-this-name"])
    assert (unknown.exit_code, "no namespace has a Placement" in unknown.stderr) == (1, True)
    invalid_usage = runner.invoke(app, ["placement", "fleet-001", "--what-if", "nonsense"])
    assert invalid_usage.exit_code == 2


def _find_winning_what_if(bench: Bench) -> tuple[PlacementView, WhatIf]:
    """Return a Placement and a score with which another cluster would be selected."""
    for number in range(FLEETS):
        name = f"fleet-{number:03}"
        view = bench.reader.explain(NAMESPACE, name)
        addon = next(
            (prioritizer for prioritizer in view.prioritizers if prioritizer.resource and prioritizer.weight > 0), None
        )
        if addon is None or not view.decided or view.decided != view.chosen:
            continue
        for cluster in (row.cluster for row in view.ranking if not row.decided):
            question = WhatIf(cluster=cluster, resource=addon.resource, score=addon.score, value=100)
            changed = bench.reader.explain(NAMESPACE, name, [question]).what_if
            if changed is not None and changed.enters == [cluster]:
                return view, question
    raise AssertionError("no Placement has such a score")


def test_placement_page_shows_the_ranking_and_answers_what_if_questions(
    bench: Bench, browser: Browser, redis_url: str, tmp_path: Path
) -> None:
    wait_for(
        lambda: all(situation.placement.get("status") for situation in bench.situations().values()),
        20,
        "OCM's decisions",
    )
    view, question = _find_winning_what_if(bench)
    settings = {"backend": "kube", "kubeconfig": bench.plane.kubeconfig, "namespace": NAMESPACE}
    with WebProcess(redis_url, tmp_path / "log", **settings) as web_process, Tab(browser, web_process.url) as tab:
        tab.open("/placements").get_by_role("link", name=view.name, exact=True).click()
        page = tab.page
        expect(page.locator("h1")).to_contain_text(f"{view.name} has {len(view.decided)} cluster")
        rows = page.locator("#answer tbody tr")
        assert rows.locator("th").all_inner_texts() == [row.cluster for row in view.ranking]
        selected_clusters = [row.locator("th").inner_text() for row in rows.filter(has_text="has it").all()]
        assert set(selected_clusters) == set(view.decided)
        assert tab.violations("dark", "light") == []
        # Each change sends a request, and the responses to the first ones arrive last.
        held_routes: list[Route] = []
        page.route("**/*value=0*", lambda route: held_routes.append(route))
        page.locator("#if-cluster").select_option(question.cluster)
        page.locator("#if-score").select_option(f"{question.resource}/{question.score}")
        page.locator("#if-value").press("End")
        page.locator("#if-value").blur()
        expect(page.locator("#answer [role=status]")).to_contain_text(f"{question.cluster} would come in")
        assert held_routes
        for route in held_routes:
            with page.expect_response(route.request.url) as late:
                route.continue_()
            late.value.finished()
        page.evaluate("new Promise((done) => setTimeout(done))")
        expect(page.locator("#answer [role=status]")).to_contain_text(f"{question.cluster} would come in")
        tab.picture("placement")
        assert tab.wrong == []
        assert tab.foreign_requests == []
        # Without a response the page itself reports the reason, and removes the previous response.
        page.route(
            "**/*value=*", lambda route: route.fulfill(status=503, content_type="text/html", body="<h1>Not now</h1>")
        )
        page.locator("#if-value").press("Home")
        expect(page.locator("h1")).to_have_text("Not now")
