"""Parser of Kubernetes quantities, such as `100m`, `1.5Gi` or `2e3`."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY_PATTERN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?")
_SUFFIXES = {
    **{suffix: Decimal(10) ** power for suffix, power in zip("num", (-9, -6, -3), strict=True)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


def parse_quantity(text: object) -> Decimal:
    """Return the value of a quantity. Raises ValueError."""
    match = _QUANTITY_PATTERN.fullmatch(str(text).strip())
    if match is None:
        msg = f"{text!r} is not a quantity of Kubernetes"
        raise ValueError(msg)
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _SUFFIXES:
        return number * _SUFFIXES[suffix]
    return number.scaleb(int(suffix[1:])) if suffix else number
