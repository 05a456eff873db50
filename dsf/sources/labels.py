"""Labels by the names that the framework uses for the parts of a score."""

from __future__ import annotations

from typing import Final

#: Label of the framework -> OpenTelemetry's attribute of the same meaning, as Prometheus' format writes it.
SHORT_NAMES: Final = {
    "node": "k8s_node_name",
    "namespace": "k8s_namespace_name",
    "pod": "k8s_pod_name",
    "container": "k8s_container_name",
}


def with_short_names(labels: dict[str, str]) -> dict[str, str]:
    """The labels, and `node`, `namespace`, `pod` and `container` where OpenTelemetry calls them otherwise."""
    for short, long in SHORT_NAMES.items():
        if long in labels:
            labels.setdefault(short, labels[long])
    return labels
