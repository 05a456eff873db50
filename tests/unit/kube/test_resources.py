"""REST paths of kinds."""

from __future__ import annotations

import pytest

from dsf.kube.resources import CONFIG_MAPS, DYNAMIC_SCORERS, MANAGED_CLUSTERS, Resource

GROUP = "/apis/dynamic-scoring.open-cluster-management.io/v1alpha1"


@pytest.mark.parametrize(
    ("resource", "parts", "path"),
    [
        (CONFIG_MAPS, (), "/api/v1/configmaps"),
        (CONFIG_MAPS, ("ns", "a"), "/api/v1/namespaces/ns/configmaps/a"),
        (DYNAMIC_SCORERS, (), f"{GROUP}/dynamicscorers"),
        (DYNAMIC_SCORERS, ("ns",), f"{GROUP}/namespaces/ns/dynamicscorers"),
        (DYNAMIC_SCORERS, ("ns", "a", "status"), f"{GROUP}/namespaces/ns/dynamicscorers/a/status"),
        (MANAGED_CLUSTERS, ("", "c1"), "/apis/cluster.open-cluster-management.io/v1/managedclusters/c1"),
        (CONFIG_MAPS, ("../x", "a/b"), "/api/v1/namespaces/..%2Fx/configmaps/a%2Fb"),
    ],
)
def test_paths(resource: Resource, parts: tuple[str, ...], path: str) -> None:
    assert resource.path(*parts) == path


def test_names_for_people() -> None:
    assert str(CONFIG_MAPS) == "configmaps"
    assert str(DYNAMIC_SCORERS) == "dynamicscorers.dynamic-scoring.open-cluster-management.io"
    assert (CONFIG_MAPS.api_version, MANAGED_CLUSTERS.api_version) == ("v1", "cluster.open-cluster-management.io/v1")
