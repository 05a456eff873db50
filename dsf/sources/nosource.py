"""The source type `None`, for scoring APIs that need no time series or fetch them themselves."""

from __future__ import annotations

from dsf.api.summary import ScorerSummary
from dsf.sources.base import HEAD, TAIL, FetchContext, Payload

_EMPTY = Payload((HEAD, TAIL))


def fetch(summary: ScorerSummary, context: FetchContext) -> Payload:
    """Return an empty scoring request, without querying a server."""
    del summary, context
    return _EMPTY
