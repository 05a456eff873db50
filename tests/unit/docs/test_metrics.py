"""docs/metrics.md names exactly the existing metrics, with their types and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


def list_documented() -> dict[str, Known]:
    """Return the rows of the tables of metrics. Text after a comma or semicolon of a type is ignored."""
    documented_rows: dict[str, Known] = {}
    for cells in rows_of_tables("metric"):
        name, kind, labels = cells[0].strip("` "), cells[1].split()[0], cells[2]
        assert name not in documented_rows, f"{name} is listed twice"
        # Texts after a label's `=` are its values.
        labels = re.sub(r"= (`[a-z_]+`(, )?)+", "", labels)
        words = {word for quoted in re.findall(r"`([^`]+)`", labels) for word in quoted.split()}
        documented_rows[name] = Known(kind, frozenset(words))
    return documented_rows


def rows_of_tables(first_column: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables whose first column has this title."""
    title = ""
    for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            title = ""
        elif not title:
            title = cells[0]
        elif title == first_column and line.startswith("| `"):
            yield cells


def list_existing() -> dict[str, Known]:
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
    assert set(list_documented()) == set(list_existing())


def test_type_and_labels_are_right() -> None:
    documented_metrics = list_documented()
    for name, metric in list_existing().items():
        assert documented_metrics[name].kind == metric.kind, name
        # Metrics of the exporter may have the cluster as a further label.
        assert metric.labels <= documented_metrics[name].labels <= metric.labels | {"ds_cluster"}, name


#: Upstream's metrics with its label for the score, which its dashboards select.
WITH_SCORE_NAME = {f"dynamic_scoring_{name}_total" for name in ("requests", "fetch_seconds", "perform_seconds",
                                                                "send_seconds")}  # fmt: skip


def test_one_label_names_the_score_and_one_the_cluster() -> None:
    metrics_by_label: dict[str, set[str]] = {}
    for name, metric in list_existing().items():
        for label in metric.labels:
            metrics_by_label.setdefault(label, set()).add(name)
    assert metrics_by_label["score_name"] == WITH_SCORE_NAME
    about_score_or_cluster = {label for label in metrics_by_label if re.search(r"scor|cluster", label)}
    assert about_score_or_cluster == {"ds_score_name", "score_name", "ds_cluster"}
    documented_labels = [label for cells in rows_of_tables("label") for label in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(documented_labels) == sorted(metrics_by_label)
