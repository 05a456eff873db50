"""Groups of the fleet by ClusterSet or by a cluster label."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsf.fleet.rowgroups import sum_states
from dsf.fleet.views import StateCounts
from dsf.store.notices import CLUSTER_SET
from dsf.web.pagedata import PageDataReader
from dsf.web.pages import Query, Sources
from dsf.web.search import parse_query, select_labelled_clusters

#: Maximum rows of a page: about 4,050 elements, with 45 a row. A page has at most 5,000 elements in all.
_MAX_ROWS: Final = 90
#: Maximum ClusterSets, and maximum labels with values, in the filters of the first page.
_MAX_CHOICES: Final = 40
#: Maximum label keys that the page offers for grouping.
_MAX_LABEL_KEYS: Final = 20


@dataclass(frozen=True)
class LabelGroup:
    """The clusters with one value of a label: their number, and the states of their pairs.

    `value` is empty for the clusters without the label.
    """

    value: str
    clusters: int
    states: StateCounts


@dataclass(frozen=True)
class ClusterSelection:
    """The ClusterSet and label that the viewer selected, and the clusters that have both.

    `clusters` is None if neither is selected.
    """

    set: str = ""
    label: str = ""
    clusters: list[str] | None = None
    #: The ClusterSets and labels (`key=value`) to choose from, those with the most clusters first.
    sets: Sequence[str] = ()
    labels: Sequence[str] = ()

    @property
    def query(self) -> dict[str, str]:
        """Return the selection as query parameters of a page."""
        return {name: text for name, text in (("set", self.set), ("label", self.label)) if text}


def select_clusters(reading: PageDataReader, query: Mapping[str, str]) -> ClusterSelection:
    """Return the clusters in the ClusterSet `set` and with the label `label` (KEY=VALUE) of the query.

    `*` in a parameter stands for any text.
    """
    labels = reading.fleet_queries.labels()
    frequent_labels = [
        label
        for label, _ in Counter(
            label for cluster_labels in labels.values() for label in cluster_labels.items()
        ).most_common()
    ]
    texts = {name: " ".join(query.get(name, "").replace('"', "").split()) for name in ("set", "label")}
    search_query = parse_query(" ".join(f'{name}:"{text}"' for name, text in texts.items() if text))
    return ClusterSelection(
        **texts,
        clusters=select_labelled_clusters(labels, search_query, reading.list_cluster_names()) if search_query else None,
        sets=[value for key, value in frequent_labels if key == CLUSTER_SET][:_MAX_CHOICES],
        labels=[f"{key}={value}" for key, value in frequent_labels if key != CLUSTER_SET][:_MAX_CHOICES],
    )


def build_group_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    """Return the data of the page that groups clusters by a label.

    The parameter `by` of the query is the label's key. The default is the label of the ClusterSet.
    """
    reading = sources.reading
    labels, states = reading.fleet_queries.labels(), reading.fleet_queries.cluster_states()
    label_key = query.get("by") or CLUSTER_SET
    members: defaultdict[str, list[str]] = defaultdict(list)
    for name in reading.list_cluster_names():
        members[labels.get(name, {}).get(label_key, "")].append(name)
    groups = [
        LabelGroup(value, len(clusters), sum_states(states[name] for name in clusters if name in states))
        for value, clusters in members.items()
    ]
    groups.sort(key=lambda group: (-group.states.failing, -(group.states.total - group.states.ok), group.value))
    start = int(cursor) if (cursor := query.get("cursor", "")).isdecimal() and len(cursor) < 8 else 0
    key_counts = Counter(key for cluster_labels in labels.values() for key in cluster_labels if key != CLUSTER_SET)
    return {
        "title": "ClusterSets" if label_key == CLUSTER_SET else f"Clusters by {label_key}",
        "by": label_key,
        "is_set": label_key == CLUSTER_SET,
        "keys": [key for key, _ in key_counts.most_common(_MAX_LABEL_KEYS)],
        "parts": groups[start : start + _MAX_ROWS],
        "total": len(groups),
        "following": start + _MAX_ROWS if start + _MAX_ROWS < len(groups) else None,
    }
