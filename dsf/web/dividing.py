"""The fleet divided by ClusterSet or by a label of its clusters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsf.fleet.overviews import StateCounts
from dsf.store.notices import CLUSTER_SET
from dsf.web.reading import Reading
from dsf.web.search import quoted

#: Rows of a page, and labels by which it offers to divide.
_ROWS: Final = 200
_KEYS: Final = 20


@dataclass(frozen=True)
class Part:
    """The clusters with one value of a label; `query` finds them, empty for those without the label."""

    value: str
    query: str
    clusters: int
    states: StateCounts


def divided(reading: Reading, query: Mapping[str, str]) -> dict[str, Any]:
    """What the page shows; `by` of the query is the label, by default that of the ClusterSet."""
    labels, states = reading.labels(), reading.cluster_states()
    by = query.get("by") or CLUSTER_SET
    clusters: Counter[str] = Counter()
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name in reading.cluster_names():
        value = labels.get(name, {}).get(by, "")
        clusters[value] += 1
        if name in states:
            sums[value].update(states[name].model_dump())
    parts = [Part(value, _query(by, value), number, StateCounts(**sums[value])) for value, number in clusters.items()]
    parts.sort(key=lambda one: (-one.states.failing, -(one.states.total - one.states.ok), one.value))
    known = Counter(key for own in labels.values() for key in own if key != CLUSTER_SET)
    return {
        "title": "ClusterSets" if by == CLUSTER_SET else f"Clusters by {by}",
        "by": by,
        "is_set": by == CLUSTER_SET,
        "keys": [key for key, _ in known.most_common(_KEYS)],
        "parts": parts[:_ROWS],
        "more": max(0, len(parts) - _ROWS),
    }


def _query(by: str, value: str) -> str:
    if not value:
        return ""
    return f"set:{quoted(value)}" if by == CLUSTER_SET else f"label:{quoted(f'{by}={value}')}"
