"""Label values of the gauge `dynamic_score`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsf.api.types import USED_LABELS

#: Label names of `dynamic_score`, in the order in which `gauge_labels` returns their values.
GAUGE_LABELS: Final = ("ds_cluster", *(f"ds_{label}" for label in USED_LABELS), "ds_score_name")


def cut_label(value: str, limit: int = 256) -> str:
    """The longest prefix of `value` with at most `limit` bytes of UTF-8, cut between two characters."""
    if value.isascii():
        return value[:limit]
    data = clean_text(value).encode()
    return data[:limit].decode(errors="ignore")


def clean_text(value: str) -> str:
    """`value` with lone surrogates replaced by `?`.

    JSON can contain a lone surrogate (`"\\ud800"`), which UTF-8, as required by Kubernetes, Prometheus and Redis,
    cannot encode.
    """
    if value.isascii():
        return value
    return value.encode("utf-8", "replace").decode()


def gauge_labels(cluster: str, score_name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The label values of one gauge in the order of `GAUGE_LABELS`; absent labels are empty, long ones are cut."""
    return (cut_label(cluster), *(cut_label(labels.get(name, "")) for name in USED_LABELS), cut_label(score_name))
