"""`dsf scores`: the newest scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.output import (
    TABLE_PAIRS,
    Format,
    Limit,
    Output,
    age,
    emit,
    number,
    say_rest,
    table,
    table_limit,
    until,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.fleet.views import ScoreList, ScoreView

ClusterOption = Annotated[str | None, typer.Option("--cluster", "-c", help="Only this cluster.")]
ScorerOption = Annotated[str | None, typer.Option("--scorer", "-s", help="Only this scorer.")]


#: State of a score -> style.
_STATES = {
    "failing": ("failing", "red"),
    "expired": ("expired", "red"),
    "skipped": ("skipped", "yellow"),
    "never": ("waiting", "yellow"),
    "paused": ("paused", "yellow"),
    "empty": ("empty", "yellow"),
    "ok": ("fresh", "green"),
}


def scores(
    cluster: ClusterOption = None,
    scorer: ScorerOption = None,
    watching: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    limit: Limit = TABLE_PAIRS,
    output: Output = Format.TABLE,
) -> None:
    """Show the newest scores of every scorer on every cluster. Expired scores are omitted.

    Example: dsf scores --cluster worker01 --scorer sample-scorer --watch
    """
    from dsf.cli.session import looking

    with looking() as fleet:
        most = table_limit(limit, output)
        if watching:
            from dsf.cli.watching import watch

            watch(lambda: fleet.scores(cluster, scorer, limit=most), output, render_scores)
        listed = fleet.scores(cluster, scorer, limit=most)
        emit(listed, output, lambda: render_scores(listed))
        say_rest(len(listed.scores), listed.total)


def render_scores(listed: ScoreList) -> RenderableType:
    """One line per item, with the age of the last successful cycle."""
    rows: list[list[str | tuple[str, str]]] = []
    for score in listed.scores:
        base: list[str | tuple[str, str]] = [score.cluster, score.scorer, score.score_name]
        state = _state(score)
        valid = until(score.valid_until, listed.at) if score.items else "-"
        tail: list[str | tuple[str, str]] = [age(score.age_seconds), valid, state]
        items = [(item.name, number(item.value)) for item in score.items] or [("-", "-")]
        rows += [[*base, name, value, *tail] for name, value in items]
    headers = ("CLUSTER", "SCORER", "SCORE", "ITEM", "VALUE", "AGE", "VALID FOR", "STATE")
    return table(headers, rows, right=("VALUE", "AGE", "VALID FOR"))


def _state(score: ScoreView) -> tuple[str, str]:
    word, style = _STATES[score.state]
    if score.state == "failing":
        why = f"{score.failure.stage} {score.failure.reason}".strip() if score.failure else ""
    elif score.remark and not score.items:
        why = score.remark.reason
    else:
        why = score.skips.reason if score.skips and not score.items else ""
    return (f"{word}: {why}" if why else word), style
