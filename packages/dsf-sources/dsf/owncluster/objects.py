"""The source type `Object`: chosen fields of Kubernetes objects of the agent's own cluster.

Objects are listed in each cycle instead of watched, so that only the chosen numbers stay in memory.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from dsf.api.objectsource import ObjectField, ObjectSource
from dsf.api.problems import explain
from dsf.api.quantity import parse_quantity
from dsf.errors import HttpError
from dsf.owncluster.background import OwnCluster, get_own_cluster
from dsf.owncluster.kubelisting import KubeListing
from dsf.sources.memory import Samples
from dsf.sources.plugin import Options, Plugin, Request, Series

_STEP_PATTERN = re.compile(r"\.?([A-Za-z0-9_-]+)|\[([0-9]+)\]|\['([^']+)'\]")
#: Texts that count as booleans, such as the status of a condition.
_BOOLEAN_VALUES: Final = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}
#: Maximum characters of a quantity. The API server limits the length of quantities, but not of other texts.
_MAX_QUANTITY: Final = 64


class RefusedValueError(ValueError):
    """A value that is not a number; the message is the value of the metric's label `result`."""


def fetch(request: Request[Options]) -> Iterator[Series]:
    """Yield a series per object and field, for the part of the time range that this agent has observed."""
    object_source = _parse_source(request.query)
    counts: Counter[str] = Counter()
    with request.history() as history:
        own_cluster = get_own_cluster(request)
        try:
            with request.asking(f"{object_source.kind} of {object_source.api_version} of this cluster") as record:
                listing = own_cluster.cluster.make_listing(object_source, request.deadline)
                record.url = listing.url
                samples, record.received = _read_samples(object_source, listing, request, history.now, counts)
            omitted_count = history.keep(samples)
            counts.update(kept=-omitted_count, labels=omitted_count)
        finally:
            own_cluster.add_outcomes(+counts)
    yield from history.series(lambda _: True, request.check)


def parse_number(value: Any) -> float:
    """Return the value of a number or quantity, or 1 or 0 for a boolean. Raises RefusedValueError."""
    if isinstance(value, (dict, list)):
        raise RefusedValueError("no_single_value")
    if isinstance(value, str) and value in _BOOLEAN_VALUES:
        return _BOOLEAN_VALUES[value]
    try:
        if isinstance(value, str) and len(value) > _MAX_QUANTITY:
            raise ValueError
        number = float(parse_quantity(value)) if isinstance(value, str) else float(value)
    except OverflowError:
        number = math.inf
    except ValueError:
        raise RefusedValueError("no_number") from None
    if not math.isfinite(number):
        raise RefusedValueError("infinite")
    return number


def _parse_source(query: str) -> ObjectSource:
    try:
        document = json.loads(query)
    except (ValueError, RecursionError):
        document = None
    try:
        return ObjectSource.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = "; ".join(map(str, explain(error, ObjectSource, document)))
        raise HttpError("bad_query", f"source.object cannot be used by this agent: {problems}") from None


def _read_samples(
    object_source: ObjectSource, listing: KubeListing, request: Request[Options], now: float, counts: Counter[str]
) -> tuple[Samples, int]:
    """Return (samples of all objects' fields, number of bytes read), and add the outcomes of fields to `counts`.

    Raises HttpError if a field is no number in any object.
    """
    samples: dict[Hashable, tuple[Mapping[str, str], float, float]] = {}
    received_bytes = 0
    # Field name -> first refused value, and the names of fields with a valid value.
    refusals: dict[str, str] = {}
    valid_fields: set[str] = set()
    for objects, size in listing.iterate_pages(request.max_bytes, request.deadline):
        received_bytes += size
        for obj in objects:
            request.check()
            for field in object_source.fields:
                labels = _make_labels(field, obj)
                value = get_value(obj, field.path)
                if value is None and (value := field.default) is None:
                    counts["absent"] += 1
                    continue
                try:
                    samples[tuple(sorted(labels.items()))] = (labels, now, parse_number(value))
                except RefusedValueError as error:
                    counts[str(error)] += 1
                    object_name = f"{labels.get('namespace', '')}/{labels.get('name', '')}".lstrip("/")
                    refusals.setdefault(field.name, f"{object_name} ({error})")
                else:
                    counts["kept"] += 1
                    valid_fields.add(field.name)
    for field in object_source.fields:
        if field.name in refusals and field.name not in valid_fields:
            raise HttpError(
                "bad_answer",
                f"{field.path} is no number in any object that has it, such as {refusals[field.name]}; it must be a "
                "number, a quantity, or true or false",
            )
    return samples, received_bytes


def get_value(document: Any, path: str) -> Any:
    """Return the value at a path; None if it is missing."""
    step: Any
    for step in _parse_path(path):
        if not isinstance(document, list if isinstance(step, int) else dict):
            return None
        try:
            document = document[step]
        except LookupError:
            return None
    return document


@functools.lru_cache(maxsize=1024)
def _parse_path(path: str) -> tuple[str | int, ...]:
    return tuple(int(index) if index else key or quoted_key for key, index, quoted_key in _STEP_PATTERN.findall(path))


def _make_labels(field: ObjectField, obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a series, without labels whose value is a list or an object."""
    metadata = obj.get("metadata") or {}
    labels = {"__name__": field.name}
    labels |= {key: str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)}
    for label in field.labels:
        value = get_value(obj, label.path)
        if isinstance(value, (str, bool, int, float)):
            labels[label.name] = value if isinstance(value, str) else json.dumps(value)
    return labels


PLUGIN: Final = Plugin(1, Options, fetch, OwnCluster)
