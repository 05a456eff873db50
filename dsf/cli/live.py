"""The demo's screen: a line per pair that moves, the addresses, and what to try next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dsf.cli.output import age, clean, console, table
from dsf.cli.up import TICK

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.demo.fleet import Fleet
    from dsf.demo.report import Line, Report

#: Seconds between two looks at Redis.
_REFRESH = 1.0
#: Characters of a failure's message on the screen; `dsf status` has all of it.
_MESSAGE = 70


def render_table(lines: list[Line]) -> RenderableType:
    """One line per pair."""
    now = time.time()
    rows: list[list[str | tuple[str, str]]] = []
    for line in lines:
        next_run = "-" if line.next_run is None else f"{max(0.0, line.next_run - now):.0f}s"
        failure = (_short(line.failure), "red") if line.failing else ("-", "dim")
        items = (str(line.items), "green" if line.items else "yellow")
        rows.append(
            [
                line.cluster,
                line.scorer,
                items,
                _value(line.lowest),
                _value(line.highest),
                age(line.age),
                next_run,
                failure,
            ]
        )
    headers = ("CLUSTER", "SCORER", "ITEMS", "LOWEST", "HIGHEST", "AGE", "NEXT RUN", "LAST FAILURE")
    return table(headers, rows, right=("ITEMS", "LOWEST", "HIGHEST", "AGE", "NEXT RUN"))


def addresses(fleet: Fleet) -> list[str]:
    """Where to look, and what to type."""
    stack = fleet.stack
    places = {
        "Flower": f"{stack.flower_url}/tasks",
        "exporter": f"{stack.exporter_url}/metrics  {stack.exporter_url}/api/v1/scores",
        **{f"Prometheus of {cluster.name}": cluster.prometheus_url for cluster in fleet.clusters},
        "manifests": f"{fleet.manifests}  (edit one: the demo follows; written objects are in _out)",
        "logs": str(fleet.logs),
        "Redis": f"{stack.redis_address}  (with its password in {fleet.env_file})",
    }
    width = max(len(name) for name in places)
    return [
        *(f"{name:<{width}}  {place}" for name, place in places.items()),
        "",
        "In another terminal, after `source .venv/bin/activate`:",
        "  dsf status",
        "  dsf rescore sample-scorer --cluster worker01 --wait",
        "  dsf schedule set sample-scorer --interval 5",
        "Both node exporters look at this machine, so both clusters have nearly the same scores.",
        "Ctrl-C ends everything.",
    ]


def on_terminal(report: Report, footer: list[str], tick: Callable[[], None]) -> None:
    """Show the table in place until Ctrl-C."""
    import redis
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    shown: RenderableType = Text("waiting for the hub")
    tail = Text("\n" + "\n".join(footer), style="dim")
    with Live(console=console(), auto_refresh=False, vertical_overflow="visible") as screen:
        refresh = 0.0
        while True:
            tick()
            if time.monotonic() >= refresh:
                refresh = time.monotonic() + _REFRESH
                trouble = Text("")
                try:
                    shown = render_table(report.lines())
                    problems = report.problems()
                    trouble = Text("\n".join(f"{clean(problem)}" for problem in problems), style="red")
                except redis.RedisError as error:
                    trouble = Text(f"Redis is away: {clean(str(error))}", style="red")
                screen.update(Group(shown, trouble, tail), refresh=True)
            time.sleep(TICK)


def as_lines(report: Report, footer: list[str], tick: Callable[[], None]) -> None:
    """Print a line for each pair whenever what it shows has changed, until Ctrl-C."""
    import redis

    out = console()
    out.print("\n".join(footer))
    shown: dict[tuple[str, str], str] = {}
    refresh = 0.0
    while True:
        tick()
        if time.monotonic() >= refresh:
            refresh = time.monotonic() + _REFRESH
            try:
                lines = report.lines()
            except redis.RedisError:
                # The supervisor says when Redis ends.
                lines = []
            for line in lines:
                text = _sentence(line)
                if shown.get((line.cluster, line.scorer)) != text:
                    shown[line.cluster, line.scorer] = text
                    out.print(clean(text))
            out.file.flush()
        time.sleep(TICK)


def _sentence(line: Line) -> str:
    start = f"{line.cluster} {line.scorer}: "
    if line.failing:
        return start + f"{line.failing} failed in a row, {line.failure}"
    if line.age is None:
        return start + "waiting for the first cycle"
    if not line.items:
        return start + "no results"
    return start + f"{line.items} items, {line.lowest} to {line.highest}"


def _value(value: int | None) -> str:
    return "-" if value is None else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _MESSAGE else text[: _MESSAGE - 1] + "…"
