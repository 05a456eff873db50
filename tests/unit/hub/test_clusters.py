"""Entries that wait for the delivery to their agent."""

from __future__ import annotations

from typing import Any, cast

from dsf.backends.protocol import Backend
from dsf.hub.clusters import ClusterReconciler
from dsf.hub.registrar import Registrar
from dsf.store.entries import Entry, Override, effective


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
