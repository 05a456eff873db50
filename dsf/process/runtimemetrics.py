"""Metrics of the process itself: CPU, memory, Python's garbage collector, and versions."""

from __future__ import annotations

import platform
from importlib import metadata

from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector

from dsf import metrics


def add_runtime_metrics(registry: CollectorRegistry) -> None:
    """Register `process_*`, `python_*` and `dynamic_scoring_build_info`."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    info = Gauge(metrics.BUILD_INFO.name, metrics.BUILD_INFO.help, metrics.BUILD_INFO.labels, registry=registry)
    info.labels(
        metadata.version("dynamic-scoring-framework"), metadata.version("celery"), platform.python_version()
    ).set(1)
