"""Functions for expressions, and operators whose results in CEL differ from Python's.

All functions raise EvaluationError for values that they do not accept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dsf.expression.scope import EvaluationError, Scope
from dsf.expression.types import ANY, BOOL, DOUBLE, INT, NUMBERS, STRING, Type

_INT_PATTERN: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE_PATTERN: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?inf(?:inity)?|nan", re.IGNORECASE
)
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1


class Function(NamedTuple):
    """A function that expressions may call."""

    #: Accepted types of each parameter.
    parameters: tuple[tuple[Type, ...], ...]
    result: Type
    #: Called with the scope and the arguments.
    call: Callable[..., Any]
    #: True if `function(x)` is a call of the function.
    is_global: bool = True
    #: True if `x.function()` is a call of the function.
    is_method: bool = False
    #: Variables that the function reads in addition to its arguments.
    reads: frozenset[str] = frozenset()


def check_int64(value: int) -> int:
    """Return `value`. Raises EvaluationError if it has more than 64 bits."""
    if not _MIN_INT64 <= value <= _MAX_INT64:
        raise EvaluationError("integer overflow")
    return value


def divide(lhs: float, rhs: float) -> float:
    """Divide doubles. Division by zero returns an infinity or not-a-number."""
    if rhs:
        return lhs / rhs
    if math.isnan(lhs) or not lhs:
        return math.nan
    return math.copysign(math.inf, lhs) * math.copysign(1.0, rhs)


def divide_ints(lhs: int, rhs: int) -> int:
    """Divide ints, and round towards zero."""
    if not rhs:
        raise EvaluationError("division by zero")
    quotient = abs(lhs) // abs(rhs)
    return check_int64(quotient if (lhs < 0) == (rhs < 0) else -quotient)


def compute_remainder(lhs: int, rhs: int) -> int:
    """Return the remainder of a division that rounds towards zero."""
    if not rhs:
        raise EvaluationError("modulus by zero")
    # As in CEL, fail if the quotient has more than 64 bits.
    divide_ints(lhs, rhs)
    remainder = abs(lhs) % abs(rhs)
    return remainder if lhs >= 0 else -remainder


def format_value(value: Any) -> str:
    """Convert a bool, number or string to a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text.removesuffix(".0"))
    return str(value)


def _compute_size(_: Scope, value: Any) -> int:
    return len(value)


def _contains(scope: Scope, text: str, part: str) -> bool:
    scope.spend_content(text)
    return part in text


def _convert_to_double(scope: Scope, value: Any) -> float:
    if isinstance(value, str):
        scope.spend_content(value)
        if _DOUBLE_PATTERN.fullmatch(value) is None:
            raise EvaluationError(f"double({value[:40]!r}): the text is not a number")
        return float(value)
    return float(value)


def _convert_to_int(_: Scope, value: Any) -> int:
    if isinstance(value, str):
        if len(value) > 20 or _INT_PATTERN.fullmatch(value) is None:
            raise EvaluationError(f"int({value[:40]!r}): the text is not a whole number")
        return check_int64(int(value))
    if isinstance(value, float) and not abs(value) < 2.0**63:
        raise EvaluationError(f"int({value}): the number has more than 64 bits")
    return int(value)


def _clamp(_: Scope, x: float, low: float, high: float) -> float:
    if low > high:
        raise EvaluationError(f"clamp: low {low:g} is above high {high:g}")
    return float(low if x < low else high if x > high else x)


def _scale(_: Scope, x: float, low: float, high: float) -> float:
    """Map `low` to -100 and `high` to 100, and clamp the result to this range."""
    if low == high:
        raise EvaluationError(f"scale: low and high are both {low:g}")
    share = divide(x - low, high - low)
    return -100.0 if share < 0.0 else 100.0 if share > 1.0 else 200.0 * share - 100.0


def _compute_quantile(scope: Scope, values: Sequence[float], q: float) -> float:
    """Return the quantile `q` (0 to 1), interpolated linearly between two values."""
    scope.spend(4 * len(values))
    if not values:
        raise EvaluationError("quantile: the list is empty")
    if not 0.0 <= q <= 1.0:
        raise EvaluationError(f"quantile: {q:g} is not from 0 to 1")
    if any(map(math.isnan, values)):
        return math.nan
    sorted_values = sorted(values)
    rank = q * (len(sorted_values) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(sorted_values) - 1)
    return float(
        sorted_values[low]
        if low == rank
        else sorted_values[low] + (sorted_values[high] - sorted_values[low]) * (rank - low)
    )


def _compute_trend(scope: Scope, values: Sequence[float], seconds: float) -> float:
    """Fit a line to the values of the series, and return its value `seconds` after the last sample."""
    times: Sequence[float] = scope["times"]
    scope.spend(8 * len(values))
    if len(values) != len(times):
        raise EvaluationError(f"trend: the list has {len(values)} values, and the series {len(times)}")
    if len(values) < 2:
        raise EvaluationError("trend: a line needs two samples; the series has fewer")
    end = times[-1]
    mean_time = sum(time - end for time in times) / len(times)
    mean = sum(values) / len(values)
    spread = sum((time - end - mean_time) ** 2 for time in times)
    if not spread:
        raise EvaluationError("trend: all samples have the same time")
    points = zip(times, values, strict=True)
    slope = sum((time - end - mean_time) * (value - mean) for time, value in points) / spread
    return mean + slope * (seconds - mean_time)


_LISTS: Final = (Type("list", ANY), Type("map", ANY))
_NUMBER: Final = ((DOUBLE,),)

FUNCTIONS: Final[Mapping[str, Function]] = {
    "size": Function(((STRING, *_LISTS),), INT, _compute_size, is_method=True),
    "contains": Function(((STRING,),) * 2, BOOL, _contains, is_global=False, is_method=True),
    "startsWith": Function(
        ((STRING,),) * 2, BOOL, lambda _, text, part: text.startswith(part), is_global=False, is_method=True
    ),
    "endsWith": Function(
        ((STRING,),) * 2, BOOL, lambda _, text, part: text.endswith(part), is_global=False, is_method=True
    ),
    "double": Function(((DOUBLE, STRING),), DOUBLE, _convert_to_double),
    "int": Function(((DOUBLE, STRING),), INT, _convert_to_int),
    "string": Function(((DOUBLE, STRING, BOOL),), STRING, lambda _, value: format_value(value)),
    "clamp": Function(_NUMBER * 3, DOUBLE, _clamp),
    "scale": Function(_NUMBER * 3, DOUBLE, _scale),
    "quantile": Function(((NUMBERS,), (DOUBLE,)), DOUBLE, _compute_quantile),
    "trend": Function(((NUMBERS,), (DOUBLE,)), DOUBLE, _compute_trend, reads=frozenset({"times"})),
}
