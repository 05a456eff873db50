"""docs/metrics.md names every metric that exists, with its type and labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from dsf import metrics
from dsf.scorer.metrics import Metrics

ROOT = Path(__file__).resolve().parents[3]


class Known(NamedTuple):
    """What there is to say of one metric."""

    kind: str
    labels: frozenset[str]


def documented() -> dict[str, Known]:
    """The rows of the tables. A row's type may say more after a comma or semicolon."""
    found: dict[str, Known] = {}
    for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| `"):
            continue
        name, kind, labels = cells[0].strip("` "), cells[1].split()[0], cells[2]
        assert name not in found, f"{name} stands there twice"
        # What stands after a label's `=` are values of it.
        labels = re.sub(r"= (`[a-z_]+`(, )?)+", "", labels)
        words = {word for quoted in re.findall(r"`([^`]+)`", labels) for word in quoted.split()}
        found[name] = Known(kind, frozenset(words))
    return found


def existing() -> dict[str, Known]:
    """Every metric of the framework and of the library for scoring APIs."""
    found: dict[str, Known] = {}
    for metric in vars(metrics).values():
        if isinstance(metric, metrics.Metric):
            name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
            found[name] = Known(metric.kind, frozenset(metric.labels))
    service = Metrics(CollectorRegistry())
    for collector in vars(service).values():
        name = f"{collector._name}_total" if collector._type == "counter" else collector._name
        found[name] = Known(collector._type, frozenset(collector._labelnames))
    return found


def test_every_metric_is_documented_and_no_other() -> None:
    assert set(documented()) == set(existing())


def test_type_and_labels_are_right() -> None:
    written = documented()
    for name, known in existing().items():
        assert written[name].kind == known.kind, name
        # The exporter's may have one more: of which cluster.
        assert known.labels <= written[name].labels <= known.labels | {"ds_cluster"}, name
