"""`dsf scores`: prints the newest scores."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dsf.cli.output import (
    DEFAULT_TABLE_LIMIT,
    Cell,
    Format,
    LimitOption,
    OutputOption,
    Renderable,
    emit,
    escape_control_characters,
    flatten,
    format_age,
    format_json,
    format_number,
    format_time_until,
    format_yaml,
    get_table_limit,
    make_console,
    make_table,
    print_omission_note,
    stack_parts,
)

if TYPE_CHECKING:
    from datetime import datetime

    from pydantic import BaseModel

    from dsf.fleet.views import ScoreItem, ScoreList, ScoreView

ClusterOption = Annotated[str | None, typer.Option("--cluster", "-c", help="Only this cluster.")]
ScorerOption = Annotated[str | None, typer.Option("--scorer", "-s", help="Only this scorer.")]
#: State of a score -> displayed name and style.
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
    limit: LimitOption = DEFAULT_TABLE_LIMIT,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the newest scores of every scorer on every cluster. Expired scores are omitted.

    Example: dsf scores --cluster worker01 --scorer sample-scorer --watch
    """
    from dsf.cli.session import open_data_source

    with open_data_source(is_watching=watching) as fleet:
        max_rows = get_table_limit(limit, output)
        if watching:
            watch(lambda: fleet.scores(cluster, scorer, limit=max_rows), output, render_scores)
            return
        score_list = fleet.scores(cluster, scorer, limit=max_rows)
        emit(score_list, output, lambda: render_scores(score_list))
        print_omission_note(len(score_list.scores), score_list.total)


def render_scores(score_list: ScoreList) -> Renderable:
    """Return a table with a line per item, followed by the rules of holds and by the scores of upstream agents."""
    rows: list[list[Cell]] = []
    rules: dict[str, str] = {}
    for score in score_list.scores:
        base: list[Cell] = [score.cluster, score.scorer, score.score_name]
        state = _format_state(score)
        valid = format_time_until(score.valid_until, score_list.at) if score.items else "-"
        tail: list[Cell] = [format_age(score.age_seconds), valid, state]
        items = [(item.name, _format_value(item, score_list.at)) for item in score.items] or [("-", "-")]
        if score.hold is not None and any(item.waiting is not None for item in score.items):
            rules[score.scorer] = f"{score.scorer}: {score.hold.rule}"
        rows += [[*base, name, value, *tail] for name, value in items]
    headers = ("CLUSTER", "SCORER", "SCORE", "ITEM", "VALUE", "AGE", "VALID FOR", "STATE")
    score_table = make_table(headers, rows, right_aligned_headers=("VALUE", "AGE", "VALID FOR"))
    upstream_scores = (score.sentence for score in score_list.upstream_scores)
    return stack_parts(score_table, *map(flatten, (*rules.values(), *upstream_scores)))


def _format_value(item: ScoreItem, now: datetime) -> str:
    return (
        format_number(item.value)
        if item.waiting is None
        else f"{item.value} ({item.waiting} held{format_hold_time(item, now)})"
    )


def format_hold_time(item: ScoreItem, now: datetime) -> str:
    """Return a text that states how long the hold has withheld a new value, and how much longer it will."""
    if item.waiting_since is None:
        return ", too near"
    hold_age, remaining_text = (
        format_age((now - item.waiting_since).total_seconds()),
        format_time_until(item.waiting_until, now),
    )
    return f" for {hold_age}, {'until the next cycle' if remaining_text == 'now' else f'{remaining_text} to go'}"


def _format_state(score: ScoreView) -> tuple[str, str]:
    word, style = _STATES[score.state]
    if score.state == "failing":
        cause = f"{score.failure.stage} {score.failure.reason}".strip() if score.failure else ""
    elif score.remark and not score.items:
        cause = score.remark.reason
    else:
        cause = score.skips.reason if score.skips and not score.items else ""
    return (f"{word}: {cause}" if cause else word), style


View = TypeVar("View", bound="BaseModel")


def watch(read: Callable[[], View], output: Format, render: Callable[[View], Renderable]) -> None:
    """Print the view each second until Ctrl-C. On a terminal, a table replaces the previous one.

    Each update is one line of JSON or one YAML document. While Redis or the API is unreachable, prints an error to
    stderr each second instead.
    """
    if output is Format.TABLE and sys.stdout.isatty():
        _watch_live(read, render)
        return
    for view in _poll_views(read):
        if isinstance(view, str):
            typer.echo(f"error: {view}", err=True)
            continue
        if output is Format.JSON:
            typer.echo(format_json(view))
        elif output is Format.YAML:
            typer.echo("---\n" + format_yaml(view), nl=False)
        else:
            make_console().print(render(view))
            typer.echo()
        sys.stdout.flush()


def _watch_live(read: Callable[[], View], render: Callable[[View], Renderable]) -> None:
    from rich.live import Live

    last_table: Renderable = ""
    with Live(console=make_console(), auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        for view in _poll_views(read):
            if isinstance(view, str):
                # Show the last table below the error, which tells users that the table is outdated.
                live.update(stack_parts((escape_control_characters(view), "red"), last_table), refresh=True)
            else:
                last_table = render(view)
                live.update(last_table, refresh=True)


def _poll_views(read: Callable[[], View]) -> Iterator[View | str]:
    """Yield the view each second, or an error text if it cannot be read."""
    import redis

    from dsf.cli.session import describe_redis_error
    from dsf.errors import ApiError, HttpError

    while True:
        try:
            yield read()
        except redis.RedisError as error:
            yield describe_redis_error(error)
        except (ApiError, HttpError) as error:
            yield flatten(str(error))
        time.sleep(1.0)
