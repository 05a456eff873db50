"""The two instances of the walk-through: two apps, two clusters, three MIG settings, performance and power."""

from __future__ import annotations

from typing import Any

CLUSTERS = ("cluster1", "cluster2")
#: Setting, device and amount.
POLICIES = (("disable-mig", "all", "1"), ("enable-mig-2g", "2g.24gb", "3"), ("enable-mig-3g", "3g.48gb", "2"))
PERFORMANCE = {"all": (80, 80), "3g.48gb": (60, 55), "2g.24gb": (10, 15)}
POWER = {"all": (20, 10), "3g.48gb": (30, 55), "2g.24gb": (80, 90)}


def workloads() -> list[dict[str, Any]]:
    """Return the two ManifestWorkReplicaSets."""
    return [
        {
            "apiVersion": "work.open-cluster-management.io/v1alpha1",
            "kind": "ManifestWorkReplicaSet",
            "metadata": {
                "name": f"mwrs-{app}",
                "namespace": "default",
                "labels": {"app": app, "resource-request-kind": "gpu", "resource-request-amount": "2"},
            },
            "spec": {"placementRefs": [{"name": f"{app}-placement"}]},
        }
        for app in ("app01", "app02")
    ]


def policies() -> dict[str, list[dict[str, Any]]]:
    """Return the three Policies of each cluster."""
    return {
        cluster: [
            {
                "apiVersion": "policy.open-cluster-management.io/v1",
                "kind": "Policy",
                "metadata": {
                    "name": f"policy-{setting}-{cluster}",
                    "namespace": "default",
                    "labels": {
                        "resource-supply-kind": "gpu",
                        "resource-supply-amount": amount,
                        "resource-supply-device": device,
                    },
                },
                "spec": {"disabled": False},
            }
            for setting, device, amount in POLICIES
        ]
        for cluster in CLUSTERS
    }


def scores(name: str, values: dict[str, tuple[int, int]], valid_until: str | None = None) -> list[dict[str, Any]]:
    """Return the AddOnPlacementScore of each cluster."""
    items = [
        {"name": f"{app};{device}", "value": value}
        for device, pair in values.items()
        for app, value in zip(("app01", "app02"), pair, strict=True)
    ]
    status: dict[str, Any] = {"scores": items}
    if valid_until:
        status["validUntil"] = valid_until
    return [
        {
            "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
            "kind": "AddOnPlacementScore",
            "metadata": {"name": name, "namespace": cluster},
            "status": status,
        }
        for cluster in CLUSTERS
    ]
