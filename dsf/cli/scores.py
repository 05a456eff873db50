"""`dsf scores`: the newest scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.output import Format, Output, age, emit, number, table, until, watch

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.exporter.views import ScoreList, ScoreView

ClusterOption = Annotated[str | None, typer.Option("--cluster", "-c", help="Only this cluster.")]
ScorerOption = Annotated[str | None, typer.Option("--scorer", "-s", help="Only this scorer.")]


def scores(
    cluster: ClusterOption = None,
    scorer: ScorerOption = None,
    watching: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """The newest scores of every scorer on every cluster. Expired ones are not shown as scores.

    Example: dsf scores --cluster worker01 --scorer sample-scorer --watch
    """
    from dsf.cli.session import session
    from dsf.exporter.reader import FleetReader

    with session() as opened:
        fleet = FleetReader(opened.redis)
        if watching:
            watch(lambda: fleet.scores(cluster, scorer), output, render_scores)
        found = fleet.scores(cluster, scorer)
        emit(found, output, lambda: render_scores(found))


def render_scores(found: ScoreList) -> RenderableType:
    """One line per item, with the age of the last successful cycle."""
    rows: list[list[str | tuple[str, str]]] = []
    for score in found.scores:
        base: list[str | tuple[str, str]] = [score.cluster, score.scorer, score.score_name]
        state = _state(score)
        valid = until(score.valid_until, found.at) if score.items else "-"
        tail: list[str | tuple[str, str]] = [age(score.age_seconds), valid, state]
        items = [(item.name, number(item.value)) for item in score.items] or [("-", "-")]
        rows += [[*base, name, value, *tail] for name, value in items]
    headers = ("CLUSTER", "SCORER", "SCORE", "ITEM", "VALUE", "AGE", "VALID FOR", "STATE")
    return table(headers, rows, right=("VALUE", "AGE", "VALID FOR"))


def _state(score: ScoreView) -> tuple[str, str]:
    if score.failing and score.failure:
        reason = f"{score.failure.stage} {score.failure.reason}".strip()
        return f"failing: {reason}", "red"
    if score.failing:
        return "failing", "red"
    why = f": {score.skips.reason}" if score.skips else ""
    if score.expired:
        return f"expired{why}", "red"
    if score.run_id is None:
        return f"waiting{why}", "yellow"
    return ("fresh", "green") if score.items else ("empty", "yellow")
