"""Sources of time series: one function per source type, and their registry.

A new kind of source is one module with a function `fetch(summary, context) -> Payload` and one line in `registry`.
OpenTelemetry, Kubernetes and Object are plug-ins, in `packages/dsf-sources`.

    registry        the table: built-in types, and those of plug-ins
    prometheus      range queries of a Prometheus, whose series are cut out of the answer
    nothing         no source
    plugin          protocol for third-party types
    memory          state of sources between cycles: `window`
    history         the same for a source that knows only the present
"""

from dsf.sources.base import Context, Payload, Source
from dsf.sources.registry import SOURCES, source_of

__all__ = ["SOURCES", "Context", "Payload", "Source", "source_of"]
