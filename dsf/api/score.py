"""Scores for OCM's scheduler: names and values of items, AddOnPlacementScores, and their validity.

OCM accepts integers from -100 to 100 and unique names, and rejects the whole object for one invalid item. The item
names are rendered by `spec.scoreDimensionFormat` from the labels of a result. The validity of a score is multiplied by
the fleet's factor once, when the score is stored, so that all readers see the same expiry.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dsf.api.meta import Condition, format_rfc3339
from dsf.api.naming import make_label_value, sanitize_resource_name
from dsf.api.types import (
    CLUSTER_API_VERSION,
    CLUSTER_KIND,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    SCORE_API_VERSION,
    SCORE_CONDITION,
    SCORE_KIND,
    SCORER_NAME_LABEL,
    USED_LABELS,
)
from dsf.errors import ScoreObjectTooLargeError
from dsf.reasons import RefusalReason

#: Minimum and maximum of the values that OCM accepts.
MIN_VALUE: Final = -100
MAX_VALUE: Final = 100

#: Maximum size of an object in bytes. etcd rejects a request of 1.5 MiB.
MAX_OBJECT_BYTES: Final = 1_000_000
# Upper bound of an object's bytes without its items.
_OBJECT_BYTES: Final = 4_000
# Upper bound of an item's bytes without its name: `{"name":,"value":-100},` in the status, and
# `"k:{\"name\":}":{".":{},"f:name":{},"f:value":{}},` in managedFields, where the API server repeats the name.
_ITEM_BYTES: Final = 23 + 51

#: Default dimension format.
DEFAULT_FORMAT: Final = "${scoreName}"

#: Names of placeholders in dimension formats.
PLACEHOLDERS: Final = ("cluster", "scoreName", *USED_LABELS)

_PLACEHOLDER_PATTERN = re.compile(r"\$\{(" + "|".join(PLACEHOLDERS) + r")\}")
#: Maximum characters and parts of all item names, including duplicates, that are rendered for one set of results. The
#: limit is needed because a format may repeat a label of megabytes thousands of times.
MAX_RENDERED: Final = 32 * MAX_OBJECT_BYTES

Item = tuple[str, int]


@dataclass(frozen=True)
class ScoreItems:
    """The items of a set of results."""

    #: (name, value), in order of first occurrence.
    items: tuple[Item, ...]
    #: Number of items whose value was outside of -100..100.
    clamped: int
    #: Number of duplicate names.
    duplicates: int
    #: A name that several results have by the same format; empty without one.
    duplicate: str
    #: Numbers of rejected results by reason: empty_dimension, nan, infinite.
    refusal_counts: Counter[str]


def to_score_value(score: float) -> tuple[int, bool]:
    """Return (`score` rounded down and clamped to -100..100, True if clamping changed it).

    Raises ValueError for NaN and infinity, because any value would be misleading.
    """
    if not math.isfinite(score):
        raise ValueError(f"{score} is not a score")
    floor = math.floor(score)
    value = min(max(floor, MIN_VALUE), MAX_VALUE)
    return value, value != floor


def build_items(
    results: Iterable[tuple[Mapping[str, str], float]],
    fmt: str,
    cluster: str,
    score_name: str,
    *,
    further_formats: Sequence[str] = (),
) -> ScoreItems:
    """Return the items of `results`, which are (labels, score). Each dimension format gives each result a name.

    The formats are `fmt` and `further_formats`. If two results have the same name by one format, the later one counts;
    names of an earlier format take precedence. A result without a name by any format is refused (empty_dimension).
    Raises ScoreObjectTooLargeError if the items do not fit into one object.
    """
    refusal_counts: Counter[str] = Counter()
    finite_results: list[tuple[Mapping[str, str], float]] = []
    for result in results:
        if math.isfinite(result[1]):
            finite_results.append(result)
        else:
            refusal_counts[RefusalReason.NAN if math.isnan(result[1]) else RefusalReason.INFINITE] += 1
    score_by_item: dict[str, float] = {}
    named_count = 0
    duplicate = ""
    named_results: set[int] = set()
    name_budget = _NameBudget()
    for item_format in (fmt, *further_formats):
        dimension = DimensionFormat(item_format, cluster, score_name)
        score_by_name: dict[str, float] = {}
        for number, (labels, score) in enumerate(finite_results):
            name_budget.reserve(dimension.compute_length(labels), dimension.parts)
            if name := dimension.render(labels):
                named_count += 1
                named_results.add(number)
                if name in score_by_name:
                    duplicate = duplicate or name
                elif name not in score_by_item:
                    name_budget.add_name(len(name))
                score_by_name[name] = score
        for name, score in score_by_name.items():
            score_by_item.setdefault(name, score)
    if len(named_results) < len(finite_results):
        refusal_counts[RefusalReason.EMPTY_DIMENSION] += len(finite_results) - len(named_results)
    _check_size(score_by_item)
    values = [(name, to_score_value(score)) for name, score in score_by_item.items()]
    return ScoreItems(
        items=tuple((name, value) for name, (value, _) in values),
        clamped=sum(is_clamped for _, (_, is_clamped) in values),
        duplicates=named_count - len(score_by_item),
        duplicate=duplicate,
        refusal_counts=refusal_counts,
    )


class DimensionFormat:
    """A dimension format for a cluster and score, which renders the item names of many results.

    The format is expanded in a single pass, so that placeholders in values are not expanded. Unknown placeholders are
    literal, and absent labels are empty. An empty format means the default. If all labels of the format are absent and
    the name consists of separators (`;;`), the result has no name.
    """

    def __init__(self, fmt: str, cluster: str, score_name: str) -> None:
        # Literal texts, each followed by the name of a placeholder.
        parts = _PLACEHOLDER_PATTERN.split(fmt or DEFAULT_FORMAT)
        known_values = {"cluster": cluster, "scoreName": score_name}
        placeholders = parts[1::2]
        self._parts = [
            (known_values.get(part, part), part if index % 2 and part not in known_values else "")
            for index, part in enumerate(parts)
        ]
        #: Number of literal texts and placeholders, on which the rendering time depends.
        self.parts: Final = len(self._parts)
        # Number of occurrences of each label.
        self._labels = Counter(name for name in placeholders if name not in known_values)
        self._characters = sum(len(text) for text, label in self._parts if not label)
        bare_name = self._expand({}) if self._labels else ""
        # The name of a result without labels, if the name has neither letters nor digits; else empty.
        self._separators = "" if any(map(str.isalnum, bare_name)) else bare_name

    def render(self, labels: Mapping[str, str]) -> str:
        """Return the item name of a result with these labels; empty if the result has no name."""
        name = self._expand(labels)
        return "" if name == self._separators else name

    def compute_length(self, labels: Mapping[str, str]) -> int:
        """Return the number of characters of the name before it is rendered."""
        return self._characters + sum(count * len(labels.get(label, "")) for label, count in self._labels.items())

    def _expand(self, labels: Mapping[str, str]) -> str:
        return "".join([labels.get(label, "") if label else text for text, label in self._parts])


class _NameBudget:
    """Limits the characters of names, so that names that cannot fit into one object are not rendered.

    Each character takes at least two bytes of the object.
    """

    def __init__(self) -> None:
        self._rendered_characters = 0
        self._name_characters = 0

    def reserve(self, characters: int, parts: int) -> None:
        """Count a name with so many characters and parts. Raise ScoreObjectTooLargeError if it may not be rendered."""
        self._rendered_characters += characters + parts
        if 2 * characters > MAX_OBJECT_BYTES or self._rendered_characters > MAX_RENDERED:
            description = f"a score item has a name of {characters} characters"
            if 2 * characters <= MAX_OBJECT_BYTES:
                description = (
                    f"all score items together have names of more than {MAX_RENDERED} characters and placeholders"
                )
            raise _make_size_error(description)

    def add_name(self, characters: int) -> None:
        """Count a new distinct name. Raise ScoreObjectTooLargeError if all these names together are too long."""
        self._name_characters += characters
        if 2 * self._name_characters > MAX_OBJECT_BYTES:
            raise _make_size_error(f"score items have names of more than {MAX_OBJECT_BYTES // 2} characters")


def _make_size_error(description: str) -> ScoreObjectTooLargeError:
    return ScoreObjectTooLargeError(
        f"{description}, more than the {MAX_OBJECT_BYTES} bytes that one AddOnPlacementScore may have; use a "
        "scoreDimensionFormat with fewer or shorter names"
    )


def estimate_object_bytes(names: Collection[str]) -> int:
    """Return the estimated size in bytes of an AddOnPlacementScore with these item names in etcd."""
    quoted_names = json.dumps([*names], ensure_ascii=False)
    # In managedFields a name is JSON within JSON, so escapes are escaped twice.
    escape_count = quoted_names.count('"') + quoted_names.count("\\")
    return _OBJECT_BYTES + 2 * len(quoted_names.encode("utf-8", "replace")) + escape_count + _ITEM_BYTES * len(names)


def _check_size(names: Collection[str]) -> None:
    # A character has at most 20 bytes: six for a control character, counted twice, and a backslash.
    if _OBJECT_BYTES + 20 * len("".join(names)) + 2 * _ITEM_BYTES * len(names) <= MAX_OBJECT_BYTES:
        # Skip the exact computation, because the names fit even if every character is escaped.
        return
    size = estimate_object_bytes(names)
    if size > MAX_OBJECT_BYTES:
        raise ScoreObjectTooLargeError(
            f"{len(names)} score items make an AddOnPlacementScore of {size} bytes, more than the {MAX_OBJECT_BYTES} "
            "that one object may have; use a scoreDimensionFormat with fewer or shorter names"
        )


def make_score_body(cluster: str, scorer_name: str, score_name: str, *, owner_uid: str = "") -> dict[str, Any]:
    """Return an AddOnPlacementScore without its status.

    `owner_uid` is the uid of the ManagedCluster, with which the object is deleted; empty for an object without owner.
    """
    metadata: dict[str, Any] = {
        "name": sanitize_resource_name(score_name),
        "namespace": cluster,
        "labels": {MANAGED_BY_LABEL: MANAGED_BY, SCORER_NAME_LABEL: make_label_value(scorer_name)},
    }
    if owner_uid:
        metadata["ownerReferences"] = [
            {"apiVersion": CLUSTER_API_VERSION, "kind": CLUSTER_KIND, "name": cluster, "uid": owner_uid}
        ]
    return {"apiVersion": SCORE_API_VERSION, "kind": SCORE_KIND, "metadata": metadata}


def compute_items_digest(items: Iterable[Item]) -> str:
    """Return a short hash of items, regardless of their order."""
    text = repr(sorted(items))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def make_score_status(items: Iterable[Item], *, valid_until: datetime, now: datetime) -> dict[str, Any]:
    """Return the status of an AddOnPlacementScore with items, expiry, and a condition."""
    scores = [{"name": name, "value": value} for name, value in items]
    condition = Condition(
        type=SCORE_CONDITION,
        status="True",
        reason=SCORE_CONDITION,
        message=f"{len(scores)} score items are up to date",
        last_transition_time=now,
    )
    return {
        "conditions": [condition.to_manifest()],
        "scores": scores,
        "validUntil": format_rfc3339(valid_until),
    }


def compute_default_validity(interval: int) -> int:
    """Return the default validity in seconds: 3 intervals, but at least 300 seconds.

    OCM also considers a cluster lost after 300 seconds of silence (5 leases of 60 s).
    """
    return max(3 * interval, 300)


def compute_expiry(at: float, validity: float, factor: float) -> float:
    """Return the expiry in Unix seconds of a score computed at `at`. `factor` is the fleet's validity factor."""
    return at + validity * factor


def compute_validity(interval: int, declared_validity: int, declared_interval: int) -> int:
    """Return the validity in seconds at this interval.

    If a user has made the interval longer than `declared_interval`, a default validity grows in proportion, because
    scores would otherwise expire before the next run.
    """
    return (
        max(declared_validity, compute_default_validity(interval))
        if declared_validity == compute_default_validity(declared_interval)
        else declared_validity
    )


def describe_validity_gap(interval: int, declared_validity: int, declared_interval: int) -> str:
    """Return a warning if scores expire before the next run at this interval; empty if they do not.

    Only a validity that a user has set can be too short.
    """
    seconds = compute_validity(interval, declared_validity, declared_interval)
    if seconds >= interval:
        return ""
    return f"scores expire after {seconds}s (validitySeconds), before the next cycle at an interval of {interval}s"


def has_expired(valid_until: float, now: float) -> bool:
    """Return True if a score with this expiry has expired at `now`."""
    return valid_until <= now
