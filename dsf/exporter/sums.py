"""Sums per scorer: few series, whatever the fleet's size."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from dsf import metrics
from dsf.fleet.model import FleetModel


def model_families(model: FleetModel) -> Iterable[Metric]:
    """Clusters by state and by reason, and percentiles of age. Raises redis.RedisError."""
    states, reasons, ages = metrics.PAIRS.gauge(), metrics.REASONS.gauge(), metrics.AGE.gauge()
    for scorer in model.scorers():
        for state, number in scorer.states.model_dump().items():
            states.add_metric((scorer.name, state), number)
        for group in scorer.reasons:
            reasons.add_metric((scorer.name, group.state, group.stage, group.reason), group.clusters)
        spread = scorer.ages
        for percentile, age in (("50", spread.p50), ("90", spread.p90), ("99", spread.p99), ("100", spread.maximum)):
            if age is not None:
                ages.add_metric((scorer.name, percentile), age)
    return [states, reasons, ages]
