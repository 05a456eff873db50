"""The demo's screen: a table of pairs, causes of failures, and addresses, fitted to the terminal's height.

If the terminal is too low, the footer with the addresses is shortened first, to one text. Then the table is shortened,
to five lines; failing pairs are its first rows then. Then the causes are shortened.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.text import Text

from dsf.cli.output import escape_control_characters, flatten, format_age, make_table
from dsf.text import list_names

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from dsf.demo.report import PairLine

_Lines = list[list[Segment]]


def render_table(lines: Sequence[PairLine]) -> RenderableType:
    """Return a table with one row per pair, which fits 80 columns. It has no causes of failures: see `list_causes`."""
    now = time.time()
    rows: list[list[str | tuple[str, str]]] = [
        [
            line.cluster,
            line.scorer,
            (str(line.items), "green" if line.items else "yellow"),
            "-" if line.lowest is None else str(line.lowest),
            "-" if line.highest is None else str(line.highest),
            format_age(line.age),
            "-" if line.next_run is None else f"{max(0.0, line.next_run - now):.0f}s",
            (f"{line.failing}x", "red") if line.failing else ("-", "dim"),
        ]
        for line in lines
    ]
    headers = ("CLUSTER", "SCORER", "ITEMS", "LOW", "HIGH", "AGE", "NEXT", "FAILED")
    return make_table(headers, rows, right_aligned_headers=headers[2:], truncates_cells=True)


def list_causes(lines: Sequence[PairLine]) -> list[str]:
    """Return a text for each distinct failure of a scorer, with its clusters, the cause, and the address at the end."""
    clusters_by_failure: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for line in lines:
        if line.failure:
            clusters_by_failure[line.scorer, line.failure].append(line.cluster)
    return [
        f"{scorer} on {list_names(clusters, 3)}: {_put_cause_first(failure)}"
        for (scorer, failure), clusters in clusters_by_failure.items()
    ]


def _put_cause_first(failure: str) -> str:
    """Return `fetch http_error: GET http://...: HTTP 500: x` as `fetch http_error: HTTP 500: x (GET http://...)`."""
    return re.sub(r"^([^:]*: )((?:GET|POST) \S+): (.*)$", r"\1\3 (\2)", failure, flags=re.DOTALL)


@dataclass(frozen=True)
class Screen:
    """Renders as lines that fit a terminal of at least 80 columns and 24 lines."""

    lines: Sequence[PairLine]
    #: Texts about problems other than failing cycles.
    problems: Sequence[str]
    #: Texts below the table, such as addresses, with the most important ones first.
    footer: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines from top to bottom, as Rich's protocol requires."""
        # The last line remains free for the cursor.
        remaining_height = console.size.height - 1

        def wrap_text(text: str, style: str) -> _Lines:
            return console.render_lines(
                Text(escape_control_characters(text), style=style, overflow="fold"), options, pad=False
            )

        problem_lines = [
            line for text in (*self.problems, *list_causes(self.lines)) for line in wrap_text(flatten(text), "red")
        ]
        footer_texts = [wrap_text(text, "dim") for text in self.footer]
        # The first text, and an empty line above it.
        minimum_footer_height = len(footer_texts[0]) + 1 if footer_texts else 0
        # The table has at least 5 lines: the header, 3 pairs, and the number of hidden pairs.
        visible_lines = self._render_table(
            console, options, max(remaining_height - minimum_footer_height - len(problem_lines), 5)
        )
        remaining_height -= len(visible_lines)
        visible_lines += _cut_lines(problem_lines, remaining_height - minimum_footer_height)
        remaining_height = console.size.height - 1 - len(visible_lines) - 1
        footer_lines: _Lines = []
        for text_lines in footer_texts:
            if len(footer_lines) + len(text_lines) > remaining_height:
                break
            footer_lines += text_lines
        for line in [*visible_lines, *([[Segment("")], *footer_lines] if footer_lines else [])]:
            yield from line
            yield Segment.line()

    def _render_table(self, console: Console, options: ConsoleOptions, height: int) -> _Lines:
        """Return at most `height` lines."""
        if not self.lines:
            return console.render_lines(Text("waiting for the hub"), options, pad=False)
        lines = list(self.lines)
        is_truncated = len(lines) + 1 > height
        if is_truncated:
            # Failing pairs first, each group in its previous order.
            lines = sorted(lines, key=lambda line: not line.failure)[: height - 2]
        rendered_lines = console.render_lines(render_table(lines), options, pad=False)
        if is_truncated:
            hidden_pairs = len(self.lines) - len(lines)
            rendered_lines += console.render_lines(
                Text(f"and {hidden_pairs} more; `dsf scores` shows all", style="dim"), options
            )
        return rendered_lines


def _cut_lines(lines: _Lines, height: int) -> _Lines:
    """Return at most `height` lines; the last one is a note if lines are left out."""
    if len(lines) <= height:
        return lines
    return [*lines[: max(0, height - 1)], [Segment("... `dsf status` shows everything")]] if height > 0 else []
