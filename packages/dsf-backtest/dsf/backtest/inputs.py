"""The scorers whose scores a composite combines."""

from __future__ import annotations

from collections.abc import Callable

from dsf.api.summary import ScorerSummary
from dsf.backtest.errors import BacktestError
from dsf.backtest.run import check_sources
from dsf.errors import DsfError


def find_inputs(composite: ScorerSummary, find: Callable[[str], ScorerSummary]) -> tuple[ScorerSummary, ...]:
    """Return the scorers that a composite reads, directly or through other scorers, each after its own inputs.

    `find` returns a scorer by its name, or raises DsfError. Raises BacktestError for a circle, and for an input that is
    missing or has no past.
    """
    inputs: dict[str, ScorerSummary] = {}

    def add_inputs(summary: ScorerSummary, path: tuple[str, ...]) -> None:
        for score in summary.scores or ():
            if score.scorer in path:
                circle = " -> ".join((*path[path.index(score.scorer) :], score.scorer))
                raise BacktestError(f"scorer {composite.name!r}: spec.source.scores: a circle: {circle}")
            if score.scorer in inputs:
                continue
            try:
                scorer = find(score.scorer)
                check_sources(scorer)
            except DsfError as error:
                text = f"scorer {summary.name!r} combines the score of {score.scorer!r}, which cannot be backtested"
                raise BacktestError(f"{text}: {error}") from None
            add_inputs(scorer, (*path, score.scorer))
            inputs[score.scorer] = scorer

    add_inputs(composite, (composite.name,))
    return tuple(inputs.values())
