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
from dsf.hub.clusters import ClusterReconciler, DepartedClusters, Departures
from dsf.hub.credentials import AgentCredentials
from dsf.hub.desiredstate import DesiredState
from dsf.hub.plan import FleetPlan, make_plan
from dsf.hub.registrar import Registrar
from dsf.kube.session import ForbiddenError
from dsf.process.outage import Outage
from dsf.settings import Settings
from dsf.store.entries import Entry, ScheduleOverride, apply_overrides
from tests.unit.hub.builders import NOW, cluster, config, scorer
from tests.unit.hub.objects import Objects


class StoppedEntries:
    """A registrar that returns these entries."""

    def __init__(self, *entries: Entry) -> None:
        self.entries = {entry.scorer: entry for entry in entries}

    def get_entries(self, cluster: str) -> dict[str, Entry]:
        return self.entries


def _reconciler(entries: StoppedEntries) -> ClusterReconciler:
    nothing = cast("Any", None)
    return ClusterReconciler(
        cast("Backend", nothing),
        cast("Registrar", entries),
        nothing,
        nothing,
        agent_namespace="agent",
        on_distributed=lambda names: None,
    )


def test_waiting_entry_ignores_an_override_that_resumes_it() -> None:
    entry = Entry(cluster="c", scorer="s", score_name="s", interval=30)
    store = StoppedEntries(entry.make_stopped())
    waiting_entries = {"s": entry}
    assert _reconciler(store)._delay_undelivered("c", waiting_entries, has_arrived=False)
    assert apply_overrides(waiting_entries["s"], {"*/s": ScheduleOverride(paused=False)}, 0.0).paused
    # The next reconciliation does not treat it as a running entry.
    store.entries = waiting_entries
    again = {"s": entry}
    assert _reconciler(store)._delay_undelivered("c", again, has_arrived=False)
    assert again == waiting_entries
    assert _reconciler(store)._delay_undelivered("c", arrived := {"s": entry}, has_arrived=True) is None
    assert arrived == {"s": entry}


def _make_departed() -> DepartedClusters:
    credentials = Mock(spec=AgentCredentials)
    credentials.ensure.return_value = None
    return DepartedClusters(Mock(spec=Backend), Mock(spec=Registrar), credentials, Departures(0.0))


def _make_reconciler_with_credentials(
    plan: FleetPlan, registrar: Mock, backend: Mock, counted: list[frozenset[str]]
) -> ClusterReconciler:
    """Return a reconciler whose credentials always exist."""
    desired = Mock(spec=DesiredState)
    desired.plan = plan
    desired.lower_limit.return_value = False
    return ClusterReconciler(
        backend,
        registrar,
        desired,
        _make_departed(),
        agent_namespace="agent",
        on_distributed=counted.append,
    )


@pytest.mark.parametrize("trouble", [None, redis.ConnectionError("away")])
def test_undeliverable_agent_still_gets_pauses_and_longer_intervals(trouble: Exception | None) -> None:
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
    registrar.get_entries.return_value = present
    registrar.put_entries.side_effect = trouble
    backend = Mock(spec=Backend)
    backend.get.return_value = None
    backend.apply.side_effect = ForbiddenError("denied", 403)
    reconciler = _make_reconciler_with_credentials(plan, registrar, backend, [])
    with pytest.raises(ForbiddenError):
        reconciler.reconcile(ObjectKey(Kind.CLUSTER, "", "c"))
    assert reconciler.find_problem(["c"]) == ("c: denied", True)
    [(name, put_entries)] = [call.args for call in registrar.put_entries.call_args_list]
    assert name == "c"
    assert {entry.scorer: (entry.interval, entry.suspended) for entry in put_entries.values()} == {
        "slower": (60, False),
        "pausing": (30, True),
    }


class Api(Objects):
    """An API server whose webhook limits the manifests of a ManifestWork, as OCM's."""

    limit = 500 * 1024
    refusals = 0

    def apply(self, manifest: Manifest) -> None:
        size = sum(
            len(json.dumps(item_manifest, separators=(",", ":")))
            for item_manifest in manifest["spec"]["workload"]["manifests"]
        )
        if size > self.limit:
            self.refusals += 1
            raise ForbiddenError(f"the size of manifests is {size} bytes which exceeds the {self.limit} limit", 403)
        self.put(manifest)

    def scorers(self) -> list[str]:
        """Return the names of the scorers in the agent's summaries."""
        [work] = self.list(Kind.WORK)
        config_map = work["spec"]["workload"]["manifests"][0]
        return [summary["name"] for summary in json.loads(config_map["data"]["summaries"])]


def test_many_large_scorers_of_a_tenant_leave_other_deliveries_working(
    settings_factory: Callable[..., Settings],
) -> None:
    query = {"type": "Prometheus", "host": "http://p.test", "params": {"query": "x" * 14_500, "range": 60, "step": 15}}
    tenant = [
        scorer(f"large-{number:03}", metadata={"namespace": "tenant"}, created="2025-01-01T00:00:00Z", source=query)
        for number in range(110)
    ]
    other_scorers = [scorer("of-hub"), scorer("of-other", metadata={"namespace": "other"})]
    objects = (cluster("c"), config(), *tenant, *other_scorers)
    api = Api(*(custom_object.to_manifest() for custom_object in objects))
    settings = settings_factory(namespace="hub", addon_mode=False, scorer_namespaces=["tenant", "other"])
    desired = DesiredState(api.backend, settings, Outage("Redis"), lambda key: None, lambda differences, changed: None)
    registrar = Mock(spec=Registrar, notices=Mock())
    registrar.get_entries.return_value = {}
    reconciler = ClusterReconciler(
        api.backend,
        registrar,
        desired,
        _make_departed(),
        agent_namespace="agent",
        on_distributed=lambda names: None,
    )
    key = ObjectKey(Kind.CLUSTER, "", "c")
    desired.update()
    reconciler.reconcile(key)
    # The hub learns the limit once; only scorers of the tenant are excluded.
    assert api.refusals == 1
    first = api.scorers()
    assert first[-2:] == ["of-hub", "of-other"]
    assert len(first) == 2 + 33
    left_out = desired.plan.list_scorers_without_room()
    assert [excluded.name for excluded in left_out] == [f"large-{number:03}" for number in range(33, 110)]
    assert left_out[0].obstacles["c"].message.startswith("no room: a cluster's ManifestWork holds 500 KiB for all")
    assert reconciler.find_problem(["c"]) == ("", False)

    # A new scorer of another namespace gets the room that a removal frees.
    api.delete(Kind.SCORER, "tenant", "large-000")
    api.put(scorer("late").to_manifest())
    desired.update()
    reconciler.reconcile(key)
    assert api.refusals == 1
    assert "large-000" not in api.scorers()
    assert "late" in api.scorers()
    assert api.events == []


def test_missing_work_that_cannot_be_written_counts_as_not_delivered() -> None:
    """Behave like a namespace that is being deleted: the ManifestWork is gone and creations fail."""
    plan = make_plan([scorer("s")], config(), [cluster("c")], NOW)
    registrar = Mock(spec=Registrar, notices=Mock())
    registrar.get_entries.return_value = {}
    objects = Objects()
    backend = Mock(wraps=objects)
    reconciler = _make_reconciler_with_credentials(plan, registrar, backend, [])
    key = ObjectKey(Kind.CLUSTER, "", "c")
    reconciler.reconcile(key)
    work = objects.get(Kind.WORK, "c", MANIFESTWORK_NAME) or {}
    applied = {"type": "Applied", "status": "True", "observedGeneration": 1}
    objects.put({**work, "status": {"conditions": [applied]}})
    reconciler.reconcile(key)
    assert reconciler.count_distributed("s") == 1
    objects.take(Kind.WORK)
    backend.apply.side_effect = ObjectNotFoundError("403: namespace c is being terminated")
    with pytest.raises(ObjectNotFoundError):
        reconciler.reconcile(key)
    assert reconciler.count_distributed("s") == 0
    assert reconciler.find_problem(["c"]) == ("c: 403: namespace c is being terminated", False)
