"""The source type `None`: for scoring APIs that need no time series, or get them themselves."""

from __future__ import annotations

from dsf.api.summary import ScorerSummary
from dsf.sources.base import HEAD, TAIL, FetchContext, Payload

_EMPTY = Payload((HEAD, TAIL))


def fetch(summary: ScorerSummary, context: FetchContext) -> Payload:
    """An empty scoring request; no server is asked."""
    del summary, context
    return _EMPTY
