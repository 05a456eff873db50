"""Live output of the demo: a screen on a terminal, else a line for each change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dsf.cli.output import escape_control_characters, make_console
from dsf.up.command import TICK

if TYPE_CHECKING:
    from dsf.demo.fleet import Fleet
    from dsf.demo.report import DemoReport, PairLine

#: Returns the programs that failed permanently, with the reasons.
Failures = Callable[[], dict[str, str]]

#: Seconds between two reads of Redis.
_REFRESH_SECONDS = 1.0


def list_addresses(fleet: Fleet) -> list[str]:
    """Return commands and addresses. The most useful ones come first, because a small screen does not fit all."""
    stack = fleet.stack
    addresses = {
        "metrics": f"{stack.web_url}/metrics",
        "Flower": f"{stack.flower_url}/tasks",
        "manifests": f"{fleet.manifests}  (the demo picks up edits; written objects are in _out)",
        **{f"Prometheus of {cluster.name}": cluster.prometheus_url for cluster in fleet.clusters},
        "logs": str(fleet.logs),
        "Redis": f"{stack.redis_address}  (its password: source {fleet.env_file})",
    }
    width = max(len(name) for name in addresses)
    return [
        f"Look at the scores: {stack.web_url}",
        "Ctrl-C ends everything. In another terminal, after `source .venv/bin/activate`:",
        "  dsf status",
        "  dsf rescore sample-scorer --cluster worker01 --wait",
        "  dsf schedule set sample-scorer --interval 5",
        *(f"{name:<{width}}  {address}" for name, address in addresses.items()),
        "Both node exporters measure this machine, so both clusters have nearly the same scores.",
    ]


def show_on_terminal(report: DemoReport, footer: list[str], tick: Callable[[], None], failures: Failures) -> None:
    """Show the screen in place until Ctrl-C. `failures` returns the permanently failed programs."""
    import redis
    from rich.live import Live

    from dsf.demo.screen import Screen

    out = make_console()
    lines: list[PairLine] = []
    size = out.size
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        refresh = 0.0
        while True:
            tick()
            if time.monotonic() >= refresh:
                refresh = time.monotonic() + _REFRESH_SECONDS
                problems = [f"{name} {why}" for name, why in failures().items()]
                try:
                    lines = report.read_lines()
                    problems += report.read_problems()
                except redis.RedisError as error:
                    problems.append(f"Redis is away: {error}")
                if out.size != size:
                    # The terminal has re-wrapped the old lines, parts of which would remain.
                    size = out.size
                    out.clear()
                live.update(Screen(lines, problems, footer), refresh=True)
            time.sleep(TICK)


def print_lines(report: DemoReport, footer: list[str], tick: Callable[[], None]) -> None:
    """Print a line for each pair whenever it changes, until Ctrl-C."""
    import redis

    out = make_console()
    out.print("\n".join(footer))
    printed_texts: dict[tuple[str, str], str] = {}
    refresh = 0.0
    while True:
        tick()
        if time.monotonic() >= refresh:
            refresh = time.monotonic() + _REFRESH_SECONDS
            try:
                lines = report.read_lines()
            except redis.RedisError:
                # The supervisor reports that Redis ended.
                lines = []
            for line in lines:
                text = _describe_line(line)
                if printed_texts.get((line.cluster, line.scorer)) != text:
                    printed_texts[line.cluster, line.scorer] = text
                    out.print(escape_control_characters(text))
            out.file.flush()
        time.sleep(TICK)


def _describe_line(line: PairLine) -> str:
    start = f"{line.cluster} {line.scorer}: "
    if line.failing:
        return start + f"{line.failing} failed in a row, {line.failure}"
    if line.failure:
        return start + f"runs nowhere: {line.failure}"
    if line.age is None:
        return start + "waiting for the first cycle"
    if not line.items:
        return start + "no results"
    if line.items == 1:
        return start + f"1 item: {line.lowest}"
    return start + f"{line.items} items, {line.lowest} to {line.highest}"
