"""Two cells on one API server, each with its own Redis: `b` has the ClusterSet `late`, `a` all other clusters."""

from __future__ import annotations

import base64
import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from dsf import keys
from dsf.api.types import CELL_LABEL, CLUSTER_SET_LABEL, CREDENTIALS_WORK_NAME, MANIFESTWORK_NAME
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, LEASES, MANAGED_CLUSTERS, MANIFEST_WORKS
from dsf.kube.session import ApiError
from tests.integration.hub.kube.hubworld import HubWorld
from tests.support.child import Child
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import ScriptedServer, answer, hang
from tests.support.redisserver import RedisServer

RULE = [{"name": "a"}, {"name": "b", "clusterSets": ["late"]}]
#: As if `b` had all clusters, too.
NEWER = [{"name": "a", "clusterSets": ["nothing"]}, {"name": "b"}]
CLEANUP = "dynamic-scoring.open-cluster-management.io/cleanup"


class Cells(NamedTuple):
    """Neither is started."""

    a: HubWorld
    b: HubWorld

    def start(self) -> tuple[Child, Child]:
        """A hub of each."""
        return self.a.hub(), self.b.hub()


@pytest.fixture
def cells(world: HubWorld, api: ScriptedServer, control_plane: ControlPlane, tmp_path: Path) -> Iterator[Cells]:
    logs = tmp_path / "b"
    logs.mkdir()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        client = redis.Redis.from_url(server.url, decode_responses=True, socket_timeout=10)
        other = stack.enter_context(contextlib.closing(HubWorld(control_plane, client, server.url, logs)))
        stack.callback(client.close)
        other.namespace = world.namespace
        other.settings["namespace"] = world.namespace
        for name, cell in (("a", world), ("b", other)):
            cell.settings |= {"cell": name, "cells": RULE, "agent_redis_url": f"redis://{name}.test:6379/0"}
        world.setup(api.url)
        yield Cells(world, other)


def _cluster(cell: HubWorld, in_set: str = "") -> str:
    name = cell.plane.cluster()
    if in_set:
        _label(cell, name, in_set)
    return name


def _label(cell: HubWorld, name: str, in_set: str | None) -> None:
    labels = {"labels": {CLUSTER_SET_LABEL: in_set}}
    cell.session.merge(MANAGED_CLUSTERS.path("", name), {"metadata": labels})


def _delivered(cell: HubWorld, name: str) -> None:
    _tells(cell, name)
    cell.until(lambda: cell.deliver(name) and f"{name}/cpu-scorer" in cell.pairs(), 5)


def _tells(cell: HubWorld, name: str) -> None:
    """Wait until the work is what this cell says. Its label alone may be from the one before, which hands it over while
    the new one has not written yet: what was delivered then would not be the last of it."""
    cell.until(lambda: cell.told(name) == ["cpu-scorer"] and _owner(cell, name) == cell.settings["cell"], 10)
    cell.until(lambda: _url(cell, name) == cell.settings["agent_redis_url"], 10)


def _owner(cell: HubWorld, name: str) -> str:
    return str(((cell.work(name) or {}).get("metadata") or {}).get("labels", {}).get(CELL_LABEL, ""))


def _data(cell: HubWorld, name: str) -> dict[str, Any]:
    work = cell.work(name)
    assert work is not None
    data: dict[str, Any] = work["spec"]["workload"]["manifests"][0]["data"]
    return data


def _url(cell: HubWorld, name: str) -> str:
    return str(_data(cell, name)["redis-url"])


def _works(cell: HubWorld) -> dict[tuple[str, str], tuple[str, int]]:
    return {
        (item["metadata"]["namespace"], item["metadata"]["name"]): (
            item["metadata"]["uid"],
            item["metadata"]["generation"],
        )
        for item in cell.items(MANIFEST_WORKS)
    }


def _counts(cell: HubWorld) -> tuple[int, int, int]:
    found = cell.status().get("clusters") or {}
    return found.get("desired", 0), found.get("succeeding", 0), found.get("failing", 0)


def test_each_serves_its_clusters_and_the_status_is_the_sum(cells: Cells) -> None:
    a, b = cells
    one, two, three = _cluster(a), _cluster(a), _cluster(a, "late")
    cells.start()
    for cell, name in ((a, one), (a, two), (b, three)):
        _delivered(cell, name)
        assert _url(cell, name) == f"redis://{cell.settings['cell']}.test:6379/0"
    assert a.pairs() == sorted(f"{name}/cpu-scorer" for name in (one, two))
    assert b.pairs() == [f"{three}/cpu-scorer"]
    a.until(lambda: _counts(a) == (3, 0, 0))
    a.send(one, 5)
    a.send(two, 6)
    b.send(three, 7)
    a.until(lambda: _counts(a) == (3, 3, 0))
    parts = {part["name"]: part["clusters"] for part in a.status()["cells"]}
    assert {name: (part["desired"], part["succeeding"]) for name, part in parts.items()} == {"a": (2, 2), "b": (1, 1)}
    a.until(lambda: a.condition("Distributed") == ("True", "Distributed"))
    assert a.told_by("Scoring")[2] == "cell a: 2 of 2 clusters have a score; cell b: 1 of 1 clusters have a score"
    a.until(lambda: ((a.config() or {}).get("status") or {}).get("clusters") == 3)
    # Nothing goes on between them: neither takes turns with the other.
    path = f"/apis/{'dynamic-scoring.open-cluster-management.io/v1alpha1'}/namespaces/{a.namespace}"
    before = a.session.get(f"{path}/dynamicscorers/cpu-scorer")["metadata"]["resourceVersion"], _works(a)
    time.sleep(1.5)  # five health checks of each
    assert (a.session.get(f"{path}/dynamicscorers/cpu-scorer")["metadata"]["resourceVersion"], _works(a)) == before
    leases = [lease["metadata"]["name"] for lease in a.session.get(LEASES.path(a.namespace))["items"]]
    assert sorted(leases) == ["dynamic-scoring-hub", "dynamic-scoring-hub-b"]


def test_a_cell_that_is_gone_takes_its_part_of_the_status_along(cells: Cells) -> None:
    a, b = cells
    late = _cluster(a, "late")
    first, second = cells.start()
    _delivered(b, late)
    a.until(lambda: _counts(a)[0] == 1 and len(a.status()["cells"]) == 2)
    second.kill()
    first.kill()
    # What it had is taken over by a hub alone, which has one status again.
    a.hub(cell="", cells=[], agent_redis_url="")
    a.until(lambda: "cells" not in a.status() and _counts(a)[0] == 1, 20)
    a.deliver(late)
    a.until(lambda: f"{late}/cpu-scorer" in a.pairs(), 10)
    # Its agent goes back to the Redis that it was installed with.
    a.until(lambda: "redis-url" not in _data(a, late), 10)


def test_a_cluster_moves_with_its_credentials_and_its_score_stays(cells: Cells) -> None:
    a, b = cells
    moved, stays = _cluster(a), _cluster(a)
    cells.start()
    a.results()
    b.results()
    for name in (moved, stays):
        _delivered(a, name)
        a.push(name, 5)
        a.until(lambda name=name: a.score(name) == [5], 20)
    secret = _secret(a, moved)
    uids = {key: uid for key, (uid, _) in _works(a).items()}
    _label(a, moved, "late")
    _delivered(b, moved)
    assert b.schedule.due_times([f"{moved}/cpu-scorer"])[f"{moved}/cpu-scorer"] <= time.time() + 0.1
    assert _url(b, moved) == "redis://b.test:6379/0"
    # The agent goes on with the key and the password that it has.
    assert _secret(b, moved) == secret
    assert {key: uid for key, (uid, _) in _works(b).items()} == uids
    a.until(lambda: a.pairs() == [f"{stays}/cpu-scorer"])
    assert a.send(moved, 7) == "unknown_cluster"
    score = a.object(ADDON_PLACEMENT_SCORES, moved, "cpu") or {}
    assert (score["metadata"]["labels"][CELL_LABEL], score["status"]["scores"][0]["value"]) == ("a", 5)
    b.push(moved, 9)
    b.until(lambda: b.score(moved) == [9], 20)
    b.until(lambda: (b.object(ADDON_PLACEMENT_SCORES, moved, "cpu") or {})["metadata"]["labels"][CELL_LABEL] == "b")
    a.until(lambda: _counts(a) == (2, 2, 0))
    # And back: what the first one knew of the score is long past.
    _label(a, moved, None)
    _delivered(a, moved)
    b.until(lambda: b.pairs() == [])
    assert b.score(moved) == [9]
    a.push(moved, 5)
    a.until(lambda: a.score(moved) == [5], 20)


def test_a_cluster_that_moves_forth_and_back_at_once_is_served_by_one(cells: Cells) -> None:
    a, b = cells
    moved = _cluster(a)
    cells.start()
    _delivered(a, moved)
    for in_set, owner, other in (("late", b, a), (None, a, b)):
        for _ in range(5):
            _label(a, moved, None if in_set else "late")
            _label(a, moved, in_set)
        _delivered(owner, moved)
        other.until(lambda other=other: other.pairs() == [])
        other.until(lambda other=other: other.client.exists(keys.CLUSTERS) == 0)
        assert _url(owner, moved) == f"redis://{owner.settings['cell']}.test:6379/0"


def test_cells_that_read_different_rules_do_not_take_turns(cells: Cells) -> None:
    a, b = cells
    name = _cluster(a)
    old, before_it = cells.start()
    _delivered(a, name)
    # The one that gains is started anew first, the one that loses later.
    gaining = b.hub(cells=NEWER)
    before_it.signal(signal.SIGTERM)
    b.until(lambda: _owner(b, name) == "b", 30)
    a.until(lambda: a.pairs() == [], 10)
    _delivered(b, name)
    assert b.pairs() == [f"{name}/cpu-scorer"]
    # Each cluster counts once although both lists have it. A check of the scoring API may make another version of the
    # work, which OCM delivers like all others.
    a.until(
        lambda: b.deliver(name) and _counts(a)[0] == 1 and a.condition("Distributed") == ("True", "Distributed"), 10
    )
    a.until(lambda: (a.config() or {})["status"]["clusters"] == 1, 10)
    before = _works(a)
    time.sleep(2)  # a fight would have hundreds of rounds
    assert (_works(a), a.pairs()) == (before, [])
    old.signal(signal.SIGTERM)
    assert old.wait() == 0
    a.hub(cells=NEWER)
    a.until(lambda: {part["name"]: part["clusters"]["desired"] for part in a.status()["cells"]} == {"a": 0, "b": 1})
    assert (_works(a), a.pairs(), b.pairs()) == (before, [], [f"{name}/cpu-scorer"])
    assert gaining.is_running


@pytest.fixture
def refused(cells: Cells) -> Iterator[str]:
    """A new cluster whose ManifestWork with the configuration is refused by a policy; its credentials are not."""
    a = cells.a
    name = _cluster(a)
    kind = "admissionregistration.k8s.io/v1"
    objects = [
        {
            "apiVersion": kind,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": [
                        {
                            "apiGroups": ["work.open-cluster-management.io"],
                            "apiVersions": ["*"],
                            "operations": ["CREATE", "UPDATE"],
                            "resources": ["manifestworks"],
                        }
                    ]
                },
                "validations": [
                    {
                        "expression": f"object.metadata.namespace != '{name}' || "
                        f"object.metadata.name != '{MANIFESTWORK_NAME}'",
                        "message": "refused by a policy",
                    }
                ],
            },
        },
        {
            "apiVersion": kind,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]
    a.apply(*objects)
    work = {
        "apiVersion": MANIFEST_WORKS.api_version,
        "kind": MANIFEST_WORKS.kind,
        "metadata": {"name": MANIFESTWORK_NAME, "namespace": name},
        "spec": {"workload": {"manifests": []}},
    }

    def is_refused() -> bool:
        try:
            a.session.request("POST", MANIFEST_WORKS.path(name), query={"dryRun": "All"}, body=work)
        except ApiError as error:
            return "refused by a policy" in str(error)
        return False

    try:
        a.until(is_refused, 30)
        yield name
    finally:
        for one in reversed(objects):
            a.plane.kubectl("delete", str(one["kind"]), name)


def test_cells_do_not_take_turns_with_a_cluster_whose_work_is_refused(cells: Cells, refused: str) -> None:
    a, b = cells
    started = a.hub(), b.hub(cells=NEWER)
    for cell, process in zip(cells, started, strict=True):
        cell.until(lambda process=process: "hub controller started" in process.log.read_text(), 30)

    def credentials() -> str:
        """Also another label is another version."""
        found = a.object(MANIFEST_WORKS, refused, CREDENTIALS_WORK_NAME)
        return str(found["metadata"]["resourceVersion"]) if found is not None else ""

    a.until(credentials, 30)
    # One may have taken it before the other knew.
    time.sleep(2)
    before = credentials()
    time.sleep(3)  # a fight has a hundred rounds a second
    assert credentials() == before


def test_the_configuration_goes_when_every_cell_has_cleaned_up(cells: Cells) -> None:
    a, b = cells
    early, late = _cluster(a), _cluster(a, "late")
    _, second = cells.start()
    _delivered(a, early)
    _delivered(b, late)
    a.until(lambda: sorted((a.config() or {})["metadata"]["finalizers"]) == [f"{CLEANUP}-a", f"{CLEANUP}-b"])
    second.kill()
    # One of a time without cells is the first cell's to take off.
    path = a.config_path
    a.session.merge(path, {"metadata": {"finalizers": [f"{CLEANUP}-a", f"{CLEANUP}-b", CLEANUP]}})
    a.session.delete(path)
    a.until(lambda: (a.config() or {})["metadata"]["finalizers"] == [f"{CLEANUP}-b"], 20)
    assert a.pairs() == []
    assert a.work(early) is None
    assert a.told(late) == ["cpu-scorer"]
    b.hub()
    a.until(lambda: a.config() is None, 40)
    assert (b.pairs(), b.work(late)) == ([], None)


def _secret(cell: HubWorld, cluster: str) -> dict[str, Any]:
    work = cell.object(MANIFEST_WORKS, cluster, CREDENTIALS_WORK_NAME)
    assert work is not None
    [secret] = work["spec"]["workload"]["manifests"]
    return {name: base64.b64decode(value) for name, value in secret["data"].items()}


def test_a_cluster_that_is_not_accepted_any_more_loses_what_its_own_cell_made(cells: Cells) -> None:
    a, b = cells
    early, late = _cluster(a), _cluster(a, "late")
    cells.start()
    _delivered(a, early)
    _delivered(b, late)
    a.session.merge(MANAGED_CLUSTERS.path("", late), {"spec": {"hubAcceptsClient": False}})
    b.until(lambda: b.work(late) is None and b.pairs() == [])
    b.until(lambda: b.object(MANIFEST_WORKS, late, CREDENTIALS_WORK_NAME) is None)
    assert a.pairs() == [f"{early}/cpu-scorer"]
    assert a.told(early) == ["cpu-scorer"]


def test_a_hub_that_becomes_the_first_cell_takes_nothing_from_its_clusters(cells: Cells, api: ScriptedServer) -> None:
    a, _ = cells
    name = _cluster(a)
    alone = a.hub(cell="", cells=[], agent_redis_url="")
    a.until(lambda: a.told(name) == ["cpu-scorer"], 20)
    a.deliver(name)
    a.until(lambda: a.pairs() == [f"{name}/cpu-scorer"], 10)
    a.until(lambda: a.condition("Healthy") == ("True", "HealthCheckPassed"), 10)
    since = _since(a, "Healthy")
    before = _works(a)
    # An upgrade starts the new one first, which waits for its turn.
    a.hub()
    time.sleep(3)
    assert (_works(a), _owner(a, name)) == (before, "")
    # What the hub found is what the cell knows until its own first check has ended.
    api.script(hang, path="/healthz")
    alone.signal(signal.SIGTERM)
    assert alone.wait() == 0
    told: list[object] = []
    a.until(lambda: told.append(a.told(name)) or _owner(a, name) == "a", 30)
    for _ in range(20):
        told.append(a.told(name))
        time.sleep(0.1)
    assert {str(one) for one in told} == {"['cpu-scorer']"}
    assert [entry.suspended for entry in a.schedule.entries()] == [False]
    api.script(answer("ok"), path="/healthz")
    a.until(lambda: [part["name"] for part in a.status().get("cells", ())] == ["a"], 20)
    assert _since(a, "Healthy") == since


def _since(cell: HubWorld, kind: str) -> str:
    return next(str(one["lastTransitionTime"]) for one in cell.status()["conditions"] if one["type"] == kind)
