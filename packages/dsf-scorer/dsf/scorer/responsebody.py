"""Builds the response's body from the results of a scoring function."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dsf.scorer.result import Score, Skipped


@dataclass(frozen=True, slots=True)
class EncodedScores:
    """The scores of a response, encoded."""

    body: bytes
    #: Number of results.
    results: int
    #: Number of missing results, by reason: nan, infinite, and the reasons of skipped series.
    refusal_counts: Counter[str]


def encode(function_results: object, max_results: int) -> EncodedScores:
    """Return `{"results": [...]}` without scores that are NaN or infinite, because JSON has no such numbers.

    `"dropped"` counts missing results by reason. It is present only if there are any. Raises TypeError for anything but
    scores, ValueError for more than `max_results`, and whatever a generator raises.
    """
    if not isinstance(function_results, Iterable):
        msg = f"the scoring function returned {function_results!r}; it must return or yield Score objects"
        raise TypeError(msg)
    results: list[dict[str, Any]] = []
    refusal_counts: Counter[str] = Counter()
    for result in function_results:
        if isinstance(result, Score):
            if result.is_finite:
                results.append({"metric": result.labels, "score": result.value})
            else:
                refusal_counts["nan" if math.isnan(result.value) else "infinite"] += 1
        elif isinstance(result, Skipped):
            refusal_counts[result.reason] += 1
        else:
            msg = (
                f"the scoring function gave {result!r}, which is no Score; "
                "use series.score(value) or Score(value, labels)"
            )
            raise TypeError(msg)
        if len(results) > max_results:
            msg = f"the scoring function gave more than {max_results} scores, more than the framework takes"
            raise ValueError(msg)
    document = {"results": results} | ({"dropped": refusal_counts} if refusal_counts else {})
    body = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return EncodedScores(body.encode("ascii"), len(results), refusal_counts)
