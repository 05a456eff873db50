"""Where time series come from: one function per source type, and the table that names them.

A new kind of source is one module with a function `fetch(summary, context) -> Payload` and one line here.
"""

from typing import Final

from dsf.api.types import SourceType
from dsf.sources import nothing, prometheus
from dsf.sources.base import Context, Payload, Source

#: Source type of a summary -> the function that asks it. A type that is not here cannot be run by this agent.
SOURCES: Final[dict[str, Source]] = {
    SourceType.Prometheus: prometheus.fetch,
    SourceType.None_: nothing.fetch,
}

__all__ = ["SOURCES", "Context", "Payload", "Source"]
