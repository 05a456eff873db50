"""Groups of the fleet by ClusterSet or by a cluster label."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsf.fleet.rowgroups import summed
from dsf.fleet.views import StateCounts
from dsf.store.notices import CLUSTER_SET
from dsf.web import search
from dsf.web.pagedata import Reading
from dsf.web.pages import Query, Sources
from dsf.web.search import clusters_with_labels

#: Most rows of a page, of some 45 elements each.
_ROWS: Final = 90
#: Most ClusterSets, and labels with values, in the filters of the first page.
_CHOICES: Final = 40


@dataclass(frozen=True)
class LabelGroup:
    """The clusters with one value of a label; it is empty for those without the label."""

    value: str
    clusters: int
    states: StateCounts


@dataclass(frozen=True)
class ClusterSelection:
    """The selected clusters; `clusters` is None for all of them."""

    set: str = ""
    label: str = ""
    clusters: list[str] | None = None
    #: The available choices, most clusters first.
    sets: Sequence[str] = ()
    labels: Sequence[str] = ()

    @property
    def query(self) -> dict[str, str]:
        """The selection as the query of a page."""
        return {name: text for name, text in (("set", self.set), ("label", self.label)) if text}


def select_clusters(reading: Reading, query: Mapping[str, str]) -> ClusterSelection:
    """Return the clusters in ClusterSet `set` and with label `label` (KEY=VALUE) of the query.

    `*` in them is any text.
    """
    labels = reading.model.labels()
    frequent_labels = [
        label
        for label, _ in Counter(
            label for cluster_labels in labels.values() for label in cluster_labels.items()
        ).most_common()
    ]
    texts = {name: " ".join(query.get(name, "").replace('"', "").split()) for name in ("set", "label")}
    search_query = search.parse(" ".join(f'{name}:"{text}"' for name, text in texts.items() if text))
    return ClusterSelection(
        **texts,
        clusters=clusters_with_labels(labels, search_query, reading.cluster_names()) if search_query else None,
        sets=[value for key, value in frequent_labels if key == CLUSTER_SET][:_CHOICES],
        labels=[f"{key}={value}" for key, value in frequent_labels if key != CLUSTER_SET][:_CHOICES],
    )


def group_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    """Data of the page; `by` of the query is the label, by default that of the ClusterSet."""
    reading = sources.reading
    labels, states = reading.model.labels(), reading.model.cluster_states()
    by = query.get("by") or CLUSTER_SET
    members: defaultdict[str, list[str]] = defaultdict(list)
    for name in reading.cluster_names():
        members[labels.get(name, {}).get(by, "")].append(name)
    parts = [
        LabelGroup(value, len(names), summed(states[name] for name in names if name in states))
        for value, names in members.items()
    ]
    parts.sort(key=lambda part: (-part.states.failing, -(part.states.total - part.states.ok), part.value))
    start = int(cursor) if (cursor := query.get("cursor", "")).isdecimal() and len(cursor) < 8 else 0
    key_counts = Counter(key for cluster_labels in labels.values() for key in cluster_labels if key != CLUSTER_SET)
    return {
        "title": "ClusterSets" if by == CLUSTER_SET else f"Clusters by {by}",
        "by": by,
        "is_set": by == CLUSTER_SET,
        "keys": [key for key, _ in key_counts.most_common(20)],
        "parts": parts[start : start + _ROWS],
        "total": len(parts),
        "following": start + _ROWS if start + _ROWS < len(parts) else None,
    }
