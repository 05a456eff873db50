"""The clusters of a plan on a hub with thousands."""

from __future__ import annotations

from unittest.mock import Mock

from dsf.optimizer.backend import ManifestClient
from dsf.optimizer.clusters import Clusters
from dsf.optimizer.selector import PlacementSelector


class _Name(str):
    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        _Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_clusters_are_not_compared_pairwise() -> None:
    names = [_Name(f"cluster-{number}") for number in range(300)]
    backend = Mock(spec=ManifestClient)
    backend.list_objects.return_value = [{"metadata": {"name": str(name)}} for name in names]
    backend.fetch_objects.return_value = {}
    clusters = Clusters(backend, Mock(spec=PlacementSelector, labels=None), names)
    assert clusters.list_missing(map(str, names)) == []
    assert _Name.compared < 10 * len(names)
