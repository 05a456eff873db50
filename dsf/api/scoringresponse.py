"""Parser of a scoring API's response: accepted results with their labels, and remarks about refused results.

Every cycle runs the parser, so it checks a response in a single pass instead of by a model: 10,000 results take 20 ms.
The caller must limit the size of the body.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dsf.api.problems import quote_head
from dsf.api.types import USED_LABELS
from dsf.boundedjson import Bounds, parse, serialize_parsing
from dsf.errors import JsonBoundsError, ScoringResponseError
from dsf.reasons import EmptyReason, RefusalReason, strip_markdown
from dsf.text import replace_unprintable

#: Maximum number of results in a response. More results would not fit into an AddOnPlacementScore.
MAX_RESULTS: Final = 10_000
#: Maximum size of a decoded response in bytes: several times the size of `MAX_RESULTS` results with labels.
MAX_RESPONSE_BYTES: Final = 8 * 1024 * 1024

#: Reasons to refuse a single result, here or when its item is built (`dsf.api.score`).
REFUSALS: Final = frozenset[str](RefusalReason)

#: Limits of a document before it is parsed, because parsed objects are many times as large as their text.
_BOUNDS: Final = Bounds(MAX_RESPONSE_BYTES, 500_000, max_depth=64)
#: Maximum number of characters in all labels of a response. More would not fit into an agent's message to the hub.
MAX_LABEL_CHARACTERS: Final = 2 * 1024 * 1024

_USED: Final = frozenset(USED_LABELS)


class ScoringResult(NamedTuple):
    """One valid result: the used labels, and the unchanged score, always a finite number."""

    labels: dict[str, str]
    score: float


@dataclass(frozen=True, slots=True)
class ScoringResponse:
    """A valid response."""

    #: The valid results in the order of the response.
    results: list[ScoringResult]
    #: Numbers of refused results by reason (`dsf.reasons.RefusalReason`).
    refusal_counts: Counter[str]
    #: Only for expressions: an example of a series without a value, or the reason why there are no results.
    note: str = ""


def parse_response(body: bytes) -> ScoringResponse:
    """Parse the results in the response `body`.

    Invalid results are refused and counted; the other results are accepted. `{"results": null}` has no results.

    Raises ScoringResponseError with reason `bad_answer` if the response is not `{"results": [{...}]}`, and with reason
    `too_many_results` if it has too many results, values or characters in labels, or is nested too deeply.
    """
    with serialize_parsing(len(body)):
        return _parse(body)


def _parse(body: bytes) -> ScoringResponse:
    results: list[ScoringResult] = []
    refusal_counts: Counter[str] = Counter()
    characters = 0
    for index, element in enumerate(_parse_elements(body)):
        if type(element) is not dict:
            raise ScoringResponseError(f"results[{index}] is not an object; the answer starts with {quote_head(body)}")
        score = element.get("score")
        # The check is not isinstance: a bool is an int in Python, and integers are parsed as float below.
        if type(score) is not float:
            refusal_counts[_find_score_refusal(element)] += 1
            continue
        if not math.isfinite(score):
            refusal_counts[RefusalReason.NAN if math.isnan(score) else RefusalReason.INFINITE] += 1
            continue
        labels = _read_labels(element.get("metric"))
        if labels is None:
            refusal_counts[RefusalReason.BAD_LABELS] += 1
            continue
        characters += sum(map(len, labels.values()))
        if characters > MAX_LABEL_CHARACTERS:
            raise ScoringResponseError(
                f"the labels of the answer have more than {MAX_LABEL_CHARACTERS} characters, more than an agent may "
                f"send to the hub; it starts with {quote_head(body)}",
                "too_many_results",
            )
        results.append(ScoringResult(labels, score))
    return ScoringResponse(results, refusal_counts)


def _parse_elements(body: bytes) -> list[Any]:
    """Return the elements of `results`. Raises ScoringResponseError, as `parse_response` does."""
    try:
        # Parse integers as float: an integer of 400 digits is then infinite, and 5,000 digits parse without an error.
        document = parse(body, _BOUNDS, parse_int=float)
    except JsonBoundsError as error:
        raise ScoringResponseError(
            f"the answer is not parsed: {error}; it starts with {quote_head(body)}", "too_many_results"
        ) from None
    except ValueError as error:
        raise ScoringResponseError(f"the answer is not JSON ({error}); it starts with {quote_head(body)}") from None
    # Ellipsis marks a missing list, because null is a valid one.
    elements = document.get("results", ...) if isinstance(document, dict) else ...
    if elements is None:
        # Go encodes an empty (nil) slice as null.
        return []
    if not isinstance(elements, list):
        raise ScoringResponseError(f'the answer is not {{"results": [...]}}; it starts with {quote_head(body)}')
    if len(elements) > MAX_RESULTS:
        raise ScoringResponseError(
            f"the answer has {len(elements)} results, more than the {MAX_RESULTS} that are allowed", "too_many_results"
        )
    return elements


def _find_score_refusal(element: Mapping[str, Any]) -> str:
    """Return the reason why a result without a numeric score is refused."""
    if "score" not in element:
        return RefusalReason.MISSING_SCORE
    return RefusalReason.NULL_SCORE if element["score"] is None else RefusalReason.BAD_SCORE


def select_used_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that the framework uses."""
    return {name: clean_label_value(value) for name, value in labels.items() if name in _USED}


def clean_label_value(value: str) -> str:
    """Return a label's value with blanks in place of unprintable characters."""
    # An escape in JSON can be a lone surrogate, which UTF-8 cannot encode.
    return value if value.isprintable() else replace_unprintable(value.encode("utf-8", "replace").decode())


def _read_labels(metric: Any) -> dict[str, str] | None:
    """Return the used labels of a result, empty if it has no labels; None if the value of any label is not a string."""
    if metric is None:
        return {}
    if type(metric) is not dict:
        return None
    labels = {}
    for name, value in metric.items():
        if type(value) is not str:
            return None
        if name in _USED:
            labels[name] = clean_label_value(value)
    return labels


def truncate_label(value: str, limit: int = 256) -> str:
    """Return the longest prefix of `value` with at most `limit` bytes of UTF-8, without partial characters."""
    return value.encode("utf-8", "replace")[:limit].decode(errors="ignore")


def make_gauge_label_values(cluster: str, score_name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the label values of a `dynamic_score` in `dsf.metrics`; absent values are empty, long values truncated."""
    return (
        truncate_label(cluster),
        *(truncate_label(labels.get(name, "")) for name in USED_LABELS),
        truncate_label(score_name),
    )


class Remark(NamedTuple):
    """A remark on a valid response that has no results, or of which some results were refused or replaced.

    The text is the same in the history, the statuses, the JSON API, the page and `dsf explain`.
    """

    #: The most frequent reason.
    reason: str
    #: Sentence with the numbers of results, and the remedy.
    message: str


def make_remark(
    refusal_counts: Mapping[str, int],
    result_count: int,
    *,
    example: str = "",
    series_count: int | None = None,
    note: str = "",
) -> Remark | None:
    """Return the remark on a response; None if it has results, and all of them are accepted.

    `refusal_counts` are the numbers of refused results by RefusalReason. `result_count` is the number of all results,
    including refused ones. `example` is the name of an item that several results have. `series_count` is the number of
    series in the scoring request. `note` is the note in an expression's response.
    """
    counts = Counter({reason: number for reason, number in refusal_counts.items() if number > 0})
    replaced_count = counts.pop(RefusalReason.DUPLICATE_DIMENSION, 0)
    texts = []
    if counts:
        texts.append(f"{counts.total()} of {result_count} results refused: {_list_names(counts)}{note and f': {note}'}")
    if replaced_count:
        example_text = f", such as {example!r}" if example else ""
        # With several formats, a result has several items.
        counted_objects = "" if replaced_count < result_count else " items"
        texts.append(
            f"{replaced_count}{counted_objects} of {result_count} results replaced by a later one with the same "
            f"name or labels{example_text}"
        )
    if texts:
        most_frequent = counts.most_common(1)[0][0] if counts else RefusalReason.DUPLICATE_DIMENSION
        reason = next((member for member in RefusalReason if member == most_frequent), RefusalReason.OTHER)
        return Remark(reason, f"{'; '.join(texts)}; what to do: {strip_markdown(reason.advice)}")
    if result_count:
        return None
    input_text = "" if series_count is None else f"; it was sent {series_count} series"
    empty_reason = EmptyReason.NO_RESULTS
    problem = note or f"the scoring API answered without results{input_text}"
    return Remark(empty_reason, f"{problem}; what to do: {strip_markdown(empty_reason.advice)}")


def _list_names(counts: Counter[str]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{number} {reason}" for reason, number in counts.most_common())
