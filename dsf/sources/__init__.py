"""Sources of time series: one function per source type, and their registry.

A new kind of source is one module with a function `fetch(summary, context) -> Payload` and one line in `registry`.
OpenTelemetry, Kubernetes and Object are plug-ins, in `packages/dsf-sources`.

    base             input and output types of a source
    registry         the table of source types: built-in ones, and those of plug-ins
    prometheus       range queries of a Prometheus, whose series are cut out of the response
    nosource         the source type `None`, without series
    plugin           protocol for third-party types
    responsestorage  responses in memory or files, until their scoring request is complete
    memory           state of sources between cycles
    window           recent samples, for sources without history
"""

from dsf.sources.base import FetchContext, Payload, Source
from dsf.sources.registry import SOURCES, find_source

__all__ = ["SOURCES", "FetchContext", "Payload", "Source", "find_source"]
