"""What is said of a cycle whose answer was valid but does not count, or not all of it.

The same text is in the history, the statuses, the JSON API, the page and `dsf explain`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from dsf.reasons import EmptyReason, RefusalReason, plain_text


class Remark(NamedTuple):
    """The most frequent reason, and a sentence with the numbers and the remedy."""

    reason: str
    message: str


def remark_of(
    refused: Mapping[str, int], results: int, *, example: str = "", series: int | None = None
) -> Remark | None:
    """What there is to say of an answer with so many `results`, refused ones included; None if all of them count.

    `refused` are numbers by RefusalReason, `example` is the name of an item that several results have, `series` the
    number of series that the scoring API was sent.
    """
    counts = Counter({reason: number for reason, number in refused.items() if number > 0})
    replaced = counts.pop(RefusalReason.DUPLICATE_DIMENSION, 0)
    texts = []
    if counts:
        texts.append(f"{counts.total()} of {results} results refused: {_listed(counts)}")
    if replaced:
        shared = f", such as {example!r}" if example else ""
        # Each format of several makes an item of a result.
        what = "of" if replaced < results else "items of"
        texts.append(
            f"{replaced} {what} {results} results replaced by a later one with the same name or labels{shared}"
        )
    if texts:
        most = counts.most_common(1)[0][0] if counts else RefusalReason.DUPLICATE_DIMENSION
        reason = next((member for member in RefusalReason if member == most), RefusalReason.OTHER)
        return Remark(reason, f"{'; '.join(texts)}; what to do: {plain_text(reason.advice)}")
    if results:
        return None
    sent = "" if series is None else f"; it was sent {series} series"
    empty = EmptyReason.NO_RESULTS
    return Remark(empty, f"the scoring API answered without results{sent}; what to do: {plain_text(empty.advice)}")


def _listed(counts: Counter[str]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{number} {reason}" for reason, number in counts.most_common())
