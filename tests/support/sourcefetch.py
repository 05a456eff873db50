"""Helpers for the tests of sources."""

from __future__ import annotations

import json
import time
from typing import Any

from dsf.api.summary import ScorerSummary
from dsf.http.access import PLAIN, Access
from dsf.sources import FetchContext, find_source
from dsf.sources.base import get_source_type
from dsf.sources.memory import SourceMemory
from dsf.sources.window import WindowBudget


def summary(kind: str, query: str = "", *, name: str = "s", **values: Any) -> ScorerSummary:
    """Return a scorer with a source of this type."""
    fields = {"scoring_interval": 30, "source_query": query, **values}
    return ScorerSummary(name=name, score_name=name, source_type=kind, **fields)


def memory(*summaries: ScorerSummary, series: int = 1000, samples: int = 10_000) -> SourceMemory:
    """Return the source memory of an agent with these scorers."""
    summaries_by_name = {summary.name: summary for summary in summaries}
    return SourceMemory(WindowBudget(series, samples), lambda: summaries_by_name)


def ask(
    summary: ScorerSummary,
    source_memory: SourceMemory | None = None,
    *,
    now: float | None = None,
    access: Access = PLAIN,
    seconds: float = 10,
    max_bytes: int = 1_000_000,
) -> list[dict[str, Any]]:
    """Return the series that a scoring API would receive. Raises HttpError."""
    context = FetchContext(
        time.monotonic() + seconds, max_bytes, time.time() if now is None else now, access, source_memory
    )
    payload = find_source(get_source_type(summary))(summary, context)
    document = json.loads(b"".join(payload.pieces))
    assert list(document) == ["data"]
    assert len(document["data"]) == payload.series
    data: list[dict[str, Any]] = document["data"]
    return data
