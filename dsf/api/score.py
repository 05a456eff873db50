"""Builds AddOnPlacementScores for OCM's scheduler: items and objects.

OCM accepts integers from -100 to 100 and unique names, and refuses the whole object for one invalid item.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dsf.api.dimension import DimensionFormat
from dsf.api.meta import Condition, rfc3339, set_condition
from dsf.api.naming import label_value, sanitize_resource_name
from dsf.api.types import (
    CLUSTER_API_VERSION,
    CLUSTER_KIND,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    SCORE_API_VERSION,
    SCORE_CONDITION,
    SCORE_KIND,
    SCORER_NAME_LABEL,
)
from dsf.errors import ScoreObjectTooLargeError
from dsf.reasons import RefusalReason

#: The range of values that OCM accepts.
MIN_VALUE: Final = -100
MAX_VALUE: Final = 100

#: Most bytes of one object. etcd refuses a request of 1.5 MiB.
MAX_OBJECT_BYTES: Final = 1_000_000
# Upper bound of an object's bytes without its items.
_OBJECT_BYTES: Final = 4_000
# `{"name":,"value":-100},` and, as the API server stores the owner of each list item in managedFields,
# `"k:{\"name\":}":{".":{},"f:name":{},"f:value":{}},` with the name once more.
_ITEM_BYTES: Final = 23 + 51

Item = tuple[str, int]


@dataclass(frozen=True)
class ScoreItems:
    """The items of a set of results."""

    #: Name and value, in order of first occurrence.
    items: tuple[Item, ...]
    #: Number of items with a value outside of -100..100.
    clamped: int
    #: Number of duplicate names, and one that several results have by the same format.
    duplicates: int
    duplicate: str
    #: Refused results by reason: empty_dimension, nan, infinite.
    refused: Counter[str]


def to_score_value(score: float) -> tuple[int, bool]:
    """`score` rounded down, then clamped to -100..100, and whether it was clamped.

    Raises ValueError for NaN and infinity, for which any value would be misleading.
    """
    if not math.isfinite(score):
        raise ValueError(f"{score} is not a score")
    value = math.floor(score)
    if value < MIN_VALUE:
        return MIN_VALUE, True
    if value > MAX_VALUE:
        return MAX_VALUE, True
    return value, False


def build_items(
    results: Iterable[tuple[Mapping[str, str], float]],
    fmt: str,
    cluster: str,
    score_name: str,
    *,
    more: Sequence[str] = (),
    max_bytes: int = MAX_OBJECT_BYTES,
) -> ScoreItems:
    """The items of `results`: named by the dimension format `fmt`, then by each of `more`.

    Of two results with the same name by one format, the later one counts; names of an earlier format take precedence. A
    result without a name by any format is refused (empty_dimension). Raises ScoreObjectTooLargeError when the items
    exceed one object.
    """
    refused: Counter[str] = Counter()
    finite: list[tuple[Mapping[str, str], float]] = []
    for result in results:
        if math.isfinite(result[1]):
            finite.append(result)
        else:
            refused[RefusalReason.NAN if math.isnan(result[1]) else RefusalReason.INFINITE] += 1
    latest: dict[str, float] = {}
    accepted = 0
    duplicate = ""
    nameless: Sequence[int] = range(len(finite))
    for one_format in (fmt, *more):
        render = DimensionFormat(one_format, cluster, score_name).render
        names = [render(labels) for labels, _ in finite]
        own = dict(zip(names, [score for _, score in finite], strict=True))
        own.pop("", None)
        nameable = len(names) - names.count("")
        accepted += nameable
        if nameable > len(own) and not duplicate:
            duplicate = next(name for name, number in Counter(names).items() if name and number > 1)
        nameless = [number for number in nameless if not names[number]]
        for name, score in own.items() if latest else ():
            latest.setdefault(name, score)
        latest = latest or own
    if nameless:
        refused[RefusalReason.EMPTY_DIMENSION] += len(nameless)
    _check_size(latest, max_bytes)
    values = [(name, to_score_value(score)) for name, score in latest.items()]
    return ScoreItems(
        items=tuple((name, value) for name, (value, _) in values),
        clamped=sum(clamped for _, (_, clamped) in values),
        duplicates=accepted - len(latest),
        duplicate=duplicate,
        refused=refused,
    )


def object_bytes(names: Collection[str]) -> int:
    """Estimated bytes of an AddOnPlacementScore with these item names in etcd."""
    quoted = json.dumps([*names], ensure_ascii=False)
    # In managedFields a name is JSON within JSON, so escapes are escaped twice.
    escaped_again = quoted.count('"') + quoted.count("\\")
    return _OBJECT_BYTES + 2 * len(quoted.encode("utf-8", "replace")) + escaped_again + _ITEM_BYTES * len(names)


def _check_size(names: Collection[str], max_bytes: int) -> None:
    # A character has at most 20 bytes: six for a control character, counted twice, and a backslash.
    if _OBJECT_BYTES + 20 * len("".join(names)) + 2 * _ITEM_BYTES * len(names) <= max_bytes:
        # For any escapes of its names, and without encoding them once more for each result.
        return
    size = object_bytes(names)
    if size > max_bytes:
        raise ScoreObjectTooLargeError(
            f"{len(names)} score items make an AddOnPlacementScore of {size} bytes, more than the {max_bytes} that one "
            "object may have; use a scoreDimensionFormat with fewer or shorter names"
        )


def score_body(cluster: str, scorer_name: str, score_name: str, *, owner_uid: str = "") -> dict[str, Any]:
    """The object without its status. With the `owner_uid` of the ManagedCluster it is deleted with the cluster."""
    metadata: dict[str, Any] = {
        "name": sanitize_resource_name(score_name),
        "namespace": cluster,
        "labels": {MANAGED_BY_LABEL: MANAGED_BY, SCORER_NAME_LABEL: label_value(scorer_name)},
    }
    if owner_uid:
        metadata["ownerReferences"] = [
            {"apiVersion": CLUSTER_API_VERSION, "kind": CLUSTER_KIND, "name": cluster, "uid": owner_uid}
        ]
    return {"apiVersion": SCORE_API_VERSION, "kind": SCORE_KIND, "metadata": metadata}


def score_status(
    items: Iterable[Item], *, valid_until: datetime, now: datetime, previous: Iterable[Condition] = ()
) -> dict[str, Any]:
    """The status: items, their expiry, and a condition. `previous` are the existing conditions."""
    scores = [{"name": name, "value": value} for name, value in items]
    updated = Condition(
        type=SCORE_CONDITION,
        status="True",
        reason=SCORE_CONDITION,
        message=f"{len(scores)} score items are up to date",
        last_transition_time=now,
    )
    return {
        "conditions": [condition.to_manifest() for condition in set_condition(previous, updated)],
        "scores": scores,
        "validUntil": rfc3339(valid_until),
    }
