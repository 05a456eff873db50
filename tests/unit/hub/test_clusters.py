"""Entries that wait for the delivery to their agent."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis

from dsf.api.types import CELL_LABEL
from dsf.backends.protocol import Backend, Kind, ObjectKey
from dsf.cells import Cell, Cells
from dsf.hub.clusters import ClusterReconciler
from dsf.hub.credentials import AgentCredentials
from dsf.hub.desiredstate import DesiredState
from dsf.hub.registrar import Registrar
from dsf.hub.summaries import Plan, make_plan
from dsf.kube.session import ForbiddenError
from dsf.store.entries import Entry, Override, effective
from tests.unit.hub.builders import NOW, cluster, config, scorer


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
        credentials=nothing,
        agent_namespace="agent",
        on_distributed=lambda names: None,
    )


def test_an_entry_that_waits_runs_for_no_override() -> None:
    entry = Entry(cluster="c", scorer="s", score_name="s", interval=30)
    place = Place(entry.model_copy(update={"suspended": True, "runnable": False}))
    wanted = {"s": entry}
    assert _reconciler(place)._hold("c", wanted, has_arrived=False)
    assert effective(wanted["s"], {"*/s": Override(paused=False)}, 0.0).paused
    # The next look does not take it for one that runs already.
    place.entries = wanted
    again = {"s": entry}
    assert _reconciler(place)._hold("c", again, has_arrived=False)
    assert again == wanted
    assert _reconciler(place)._hold("c", arrived := {"s": entry}, has_arrived=True) is None
    assert arrived == {"s": entry}


def _working(
    plan: Plan, cells: Cells, registrar: Mock, backend: Mock, counted: list[frozenset[str]]
) -> ClusterReconciler:
    """One whose credentials are always in place."""
    credentials = Mock(spec=AgentCredentials)
    credentials.ensure.return_value = None
    desired = Mock(spec=DesiredState)
    desired.update.return_value = plan
    desired.cells = cells
    return ClusterReconciler(
        backend, registrar, desired, credentials=credentials, agent_namespace="agent", on_distributed=counted.append
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
    backend.apply.side_effect = ForbiddenError("too large", 403)
    reconcile = _working(plan, Cells(), registrar, backend, [])
    with pytest.raises(ForbiddenError):
        reconcile(ObjectKey(Kind.CLUSTER, "", "c"))
    assert reconcile.problem(["c"]) == ("c: too large", True)
    [(name, written)] = [call.args for call in registrar.put_entries.call_args_list]
    assert name == "c"
    assert {found.scorer: (found.interval, found.suspended) for found in written.values()} == {
        "slower": (60, False),
        "pausing": (30, True),
    }


def test_a_cluster_that_another_cell_took_before_its_delivery_leaves_the_counts_at_once() -> None:
    plan = make_plan([scorer("cpu")], config(), [cluster("c")], NOW)
    owner = "a"
    backend = Mock(spec=Backend)
    backend.get.side_effect = lambda *_: {
        "metadata": {"labels": {CELL_LABEL: owner}},
        "spec": {"workload": {"manifests": []}},
    }
    registrar = Mock(spec=Registrar, notices=Mock())
    registrar.present.return_value = {}
    counted: list[frozenset[str]] = []
    cells = Cells("a", (Cell(name="a"), Cell(name="b")))
    reconcile = _working(plan, cells, registrar, backend, counted)
    reconcile(ObjectKey(Kind.CLUSTER, "", "c"))
    assert reconcile.kept(["c"]) == ["c"]
    assert reconcile.distributed("cpu") == 0
    counted.clear()
    owner = "b"
    reconcile(ObjectKey(Kind.CLUSTER, "", "c"))
    assert reconcile.kept(["c"]) == []
    assert counted == [{"cpu"}]
