"""Sources of time series: one function per source type, and their registry.

A new kind of source is one module with a function `fetch(summary, context) -> Payload` and one line in `registry`.
Kubernetes, Object and pushed metrics are plug-ins, in `packages/dsf-sources`.

    registry        the table: built-in types, and those of plug-ins
    prometheus      range queries of a Prometheus, whose series are cut out of the answer
    opentelemetry   a collector's Prometheus exporter, in Prometheus' text format; or pushed to the agent
    nothing         no source
    plugin          protocol for third-party types
    memory          state of sources between cycles: `window`; read with `selector`
    history         the same for a source that knows only the present
"""

from dsf.sources.base import Context, Payload, Source
from dsf.sources.registry import SOURCES, source_of

__all__ = ["SOURCES", "Context", "Payload", "Source", "source_of"]
