"""Where time series come from: one function per source type, and the table that names them.

A new kind of source is one module with a function `fetch(summary, context) -> Payload` and one line here.

    prometheus      range queries of a Prometheus, with `matrix`
    opentelemetry   a collector's Prometheus exporter, with `scrape`; or pushed to the agent, with `otlp`
    kubernetes      what is left of the cluster, with `requests`
    nothing         no source
    held            what sources keep between cycles: `window`; read with `selector`
    cluster         what `kubernetes` looks at
"""

from typing import Final

from dsf.api.types import SourceType
from dsf.sources import kubernetes, nothing, opentelemetry, prometheus
from dsf.sources.base import Context, Payload, Source

#: Source type of a summary -> the function that asks it. A type that is not here cannot be run by this agent.
SOURCES: Final[dict[str, Source]] = {
    SourceType.Prometheus: prometheus.fetch,
    SourceType.OpenTelemetry: opentelemetry.fetch,
    SourceType.Kubernetes: kubernetes.fetch,
    SourceType.None_: nothing.fetch,
}

__all__ = ["SOURCES", "Context", "Payload", "Source"]
