"""Every raised reason is in `dsf.reasons`, and so on docs/reasons.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dsf
from dsf.reasons import DescribedReason, FailureReason, RejectionReason, SkipReason
from dsf.store import ticks

ROOT = Path(__file__).resolve().parents[3]
#: Exception or function -> position of its reason among the arguments, and valid reasons.
RAISED: dict[str, tuple[int, type[DescribedReason]]] = {
    "CycleError": (1, FailureReason),
    "HttpError": (0, FailureReason),
    "MessageRejectedError": (0, RejectionReason),
}


def test_reasons_of_skipped_ticks_are_those_of_beat() -> None:
    assert set(ticks.REASONS) | {SkipReason.OVERLAP, SkipReason.SHARE_FULL} == set(SkipReason)


def literals() -> Iterator[tuple[str, type[DescribedReason], str]]:
    """Yield place, kind and text of each reason that is a literal where it is raised."""
    for file in sorted(file for place in dsf.__path__ for file in Path(place).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED:
                number, kind = RAISED[node.func.id]
                argument = node.args[number] if len(node.args) > number else None
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", kind, argument.value


def test_every_reason_that_is_raised_is_listed() -> None:
    raised_reasons = list(literals())
    assert len(raised_reasons) > 40
    unlisted = [f"{place}: {text!r}" for place, kind, text in raised_reasons if text not in set(kind)]
    assert not unlisted, "add these to dsf/reasons.py"
