"""Entries that wait for the delivery to their agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis

from dsf.api.types import MANIFESTWORK_NAME
from dsf.backends.protocol import Backend, Kind, Manifest, ObjectKey
from dsf.errors import ObjectNotFoundError
from dsf.hub.clusters import ClusterReconciler
from dsf.hub.credentials import AgentCredentials
from dsf.hub.departures import DepartedClusters, Departures
from dsf.hub.desiredstate import DesiredState
from dsf.hub.outage import Outage
from dsf.hub.registrar import Registrar
from dsf.hub.summaries import FleetPlan, make_plan
from dsf.kube.session import ForbiddenError
from dsf.settings import Settings
from dsf.store.entries import Entry, ScheduleOverride, effective
from tests.unit.hub.builders import NOW, cluster, config, scorer
from tests.unit.hub.objects import Objects


class Place:
    """A registrar with these entries."""

    def __init__(self, *entries: Entry) -> None:
        self.entries = {entry.scorer: entry for entry in entries}

    def present(self, cluster: str) -> dict[str, Entry]:
        return self.entries


def _reconciler(place: Place) -> ClusterReconciler:
    nothing = cast("Any", None)
    return ClusterReconciler(
        cast("Backend", nothing),
        cast("Registrar", place),
        nothing,
        nothing,
        agent_namespace="agent",
        on_distributed=lambda names: None,
    )


def test_an_entry_that_waits_runs_for_no_override() -> None:
    entry = Entry(cluster="c", scorer="s", score_name="s", interval=30)
    place = Place(entry.stopped())
    wanted = {"s": entry}
    assert _reconciler(place)._hold("c", wanted, has_arrived=False)
    assert effective(wanted["s"], {"*/s": ScheduleOverride(paused=False)}, 0.0).paused
    # The next look does not take it for one that runs already.
    place.entries = wanted
    again = {"s": entry}
    assert _reconciler(place)._hold("c", again, has_arrived=False)
    assert again == wanted
    assert _reconciler(place)._hold("c", arrived := {"s": entry}, has_arrived=True) is None
    assert arrived == {"s": entry}


def _departed() -> DepartedClusters:
    credentials = Mock(spec=AgentCredentials)
    credentials.ensure.return_value = None
    return DepartedClusters(Mock(spec=Backend), Mock(spec=Registrar), credentials, Departures(0.0))


def _working(plan: FleetPlan, registrar: Mock, backend: Mock, counted: list[frozenset[str]]) -> ClusterReconciler:
    """One whose credentials are always in place."""
    desired = Mock(spec=DesiredState)
    desired.plan = plan
    desired.lower_limit.return_value = False
    return ClusterReconciler(
        backend,
        registrar,
        desired,
        _departed(),
        agent_namespace="agent",
        on_distributed=counted.append,
    )


@pytest.mark.parametrize("trouble", [None, redis.ConnectionError("away")])
def test_an_agent_that_cannot_be_told_is_paused_and_paced_all_the_same(trouble: Exception | None) -> None:
    scorers = [
        scorer("same", interval=30),
        scorer("slower", interval=60),
        scorer("pausing", execution={"suspend": True}),
        scorer("beginning"),
        scorer("new"),
    ]
    plan = make_plan(scorers, config(), [cluster("c")], NOW)
    present = {name: Entry(cluster="c", scorer=name, score_name=name, interval=30) for name in ("slower", "pausing")}
    present["beginning"] = Entry(cluster="c", scorer="beginning", score_name="beginning", interval=30, suspended=True)
    registrar = Mock(spec=Registrar)
    registrar.present.return_value = present
    registrar.put_entries.side_effect = trouble
    backend = Mock(spec=Backend)
    backend.get.return_value = None
    backend.apply.side_effect = ForbiddenError("denied", 403)
    reconcile = _working(plan, registrar, backend, [])
    with pytest.raises(ForbiddenError):
        reconcile(ObjectKey(Kind.CLUSTER, "", "c"))
    assert reconcile.problem(["c"]) == ("c: denied", True)
    [(name, written)] = [call.args for call in registrar.put_entries.call_args_list]
    assert name == "c"
    assert {found.scorer: (found.interval, found.suspended) for found in written.values()} == {
        "slower": (60, False),
        "pausing": (30, True),
    }


class Api(Objects):
    """An API server whose webhook limits the manifests of a ManifestWork, as OCM's."""

    limit = 500 * 1024
    refusals = 0

    def apply(self, manifest: Manifest) -> None:
        size = sum(len(json.dumps(one, separators=(",", ":"))) for one in manifest["spec"]["workload"]["manifests"])
        if size > self.limit:
            self.refusals += 1
            raise ForbiddenError(f"the size of manifests is {size} bytes which exceeds the {self.limit} limit", 403)
        self.put(manifest)

    def scorers(self) -> list[str]:
        """Names of the scorers that the agent is told of."""
        [work] = self.list(Kind.WORK)
        config_map = work["spec"]["workload"]["manifests"][0]
        return [one["name"] for one in json.loads(config_map["data"]["summaries"])]


def test_many_large_scorers_of_a_tenant_leave_other_deliveries_working(
    settings_factory: Callable[..., Settings],
) -> None:
    query = {"type": "Prometheus", "host": "http://p.test", "params": {"query": "x" * 14_500, "range": 60, "step": 15}}
    tenant = [
        scorer(f"large-{number:03}", metadata={"namespace": "tenant"}, created="2025-01-01T00:00:00Z", source=query)
        for number in range(110)
    ]
    others = [scorer("of-hub"), scorer("of-other", metadata={"namespace": "other"})]
    objects = (cluster("c"), config(), *tenant, *others)
    api = Api(*(one.to_manifest() for one in objects))
    settings = settings_factory(namespace="hub", addon_mode=False, scorer_namespaces=["tenant", "other"])
    desired = DesiredState(api.backend, settings, Outage("Redis"), lambda key: None, lambda news, changed: None)
    registrar = Mock(spec=Registrar, notices=Mock())
    registrar.present.return_value = {}
    reconcile = ClusterReconciler(
        api.backend,
        registrar,
        desired,
        _departed(),
        agent_namespace="agent",
        on_distributed=lambda names: None,
    )
    key = ObjectKey(Kind.CLUSTER, "", "c")
    desired.update()
    reconcile(key)
    # The limit is learned once, and what is left out is the tenant's.
    assert api.refusals == 1
    first = api.scorers()
    assert first[-2:] == ["of-hub", "of-other"]
    assert len(first) == 2 + 33
    left_out = desired.plan.without_room()
    assert [one.name for one in left_out] == [f"large-{number:03}" for number in range(33, 110)]
    assert left_out[0].obstacles["c"].message.startswith("no room: a cluster's ManifestWork holds 500 KiB for all")
    assert reconcile.problem(["c"]) == ("", False)

    # A removal makes room, and a new scorer of others gets it.
    api.delete(Kind.SCORER, "tenant", "large-000")
    api.put(scorer("late").to_manifest())
    desired.update()
    reconcile(key)
    assert api.refusals == 1
    assert "large-000" not in api.scorers()
    assert "late" in api.scorers()
    assert api.events == []


def test_missing_work_that_cannot_be_written_counts_as_not_delivered() -> None:
    """As in a namespace that is being deleted: the ManifestWork is gone and none is accepted."""
    plan = make_plan([scorer("s")], config(), [cluster("c")], NOW)
    registrar = Mock(spec=Registrar, notices=Mock())
    registrar.present.return_value = {}
    objects = Objects()
    backend = Mock(wraps=objects)
    reconcile = _working(plan, registrar, backend, [])
    key = ObjectKey(Kind.CLUSTER, "", "c")
    reconcile(key)
    work = objects.get(Kind.WORK, "c", MANIFESTWORK_NAME) or {}
    applied = {"type": "Applied", "status": "True", "observedGeneration": 1}
    objects.put({**work, "status": {"conditions": [applied]}})
    reconcile(key)
    assert reconcile.distributed("s") == 1
    objects.take(Kind.WORK)
    backend.apply.side_effect = ObjectNotFoundError("403: namespace c is being terminated")
    with pytest.raises(ObjectNotFoundError):
        reconcile(key)
    assert reconcile.distributed("s") == 0
    assert reconcile.problem(["c"]) == ("c: 403: namespace c is being terminated", False)
