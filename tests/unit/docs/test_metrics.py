"""docs/metrics.md names exactly the existing metrics, with their types and labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from dsf import metrics
from dsf.scorer.metrics import Metrics

ROOT = Path(__file__).resolve().parents[3]


class Known(NamedTuple):
    """Type and labels of one metric."""

    kind: str
    labels: frozenset[str]


def documented() -> dict[str, Known]:
    """Return the rows of the tables. Text after a comma or semicolon of a type is ignored."""
    documented_rows: dict[str, Known] = {}
    for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| `"):
            continue
        name, kind, labels = cells[0].strip("` "), cells[1].split()[0], cells[2]
        assert name not in documented_rows, f"{name} is listed twice"
        # Texts after a label's `=` are its values.
        labels = re.sub(r"= (`[a-z_]+`(, )?)+", "", labels)
        words = {word for quoted in re.findall(r"`([^`]+)`", labels) for word in quoted.split()}
        documented_rows[name] = Known(kind, frozenset(words))
    return documented_rows


def existing() -> dict[str, Known]:
    """Return every metric of the framework and of the library for scoring APIs."""
    existing_metrics: dict[str, Known] = {}
    for metric in vars(metrics).values():
        if isinstance(metric, metrics.Metric):
            name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
            existing_metrics[name] = Known(metric.kind, frozenset(metric.labels))
    service = Metrics(CollectorRegistry())
    for collector in vars(service).values():
        name = f"{collector._name}_total" if collector._type == "counter" else collector._name
        existing_metrics[name] = Known(collector._type, frozenset(collector._labelnames))
    return existing_metrics


def test_every_metric_is_documented_and_no_other() -> None:
    assert set(documented()) == set(existing())


def test_type_and_labels_are_right() -> None:
    documented_metrics = documented()
    for name, metric in existing().items():
        assert documented_metrics[name].kind == metric.kind, name
        # Metrics of the exporter may have the cluster as a further label.
        assert metric.labels <= documented_metrics[name].labels <= metric.labels | {"ds_cluster"}, name
