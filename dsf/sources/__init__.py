"""Sources of time series: one function per source type, and their registry.

A new kind of source is one module with a function `fetch(summary, context) -> Payload` and one line in `registry`.
Types that not every agent needs are plug-ins, in `packages/dsf-sources`.

    registry        the table: built-in types, and those of plug-ins
    prometheus      range queries of a Prometheus, with `matrix`
    opentelemetry   a collector's Prometheus exporter, with `scrape`; or pushed to the agent
    kubernetes      free resources, with `requests`
    objects         fields of any objects of the cluster
    nothing         no source
    plugin          protocol for third-party types
    memory          state of sources between cycles: `window`; read with `selector`
    cluster         view for `kubernetes` and `objects`
"""

from dsf.sources.base import Context, Payload, Source
from dsf.sources.registry import SOURCES, source_of

__all__ = ["SOURCES", "Context", "Payload", "Source", "source_of"]
