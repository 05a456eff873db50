"""Types of fields in specs: parts of requests, rates, and lists of elements with names.

The models check these types in Python, and the API server by the schema of the CRD.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Protocol, TypeVar

from pydantic import AfterValidator, Field

from dsf.api.meta import SpecModel
from dsf.api.urls import find_url_problem, is_valid_url, parse_origin

#: Maximum number of headers, query parameters or scopes.
MAX_PAIRS: Final = 32

_HEADER_VALUE_PATTERN: Final = r"^[!-~](?:[ -~]*[!-~])?$"
#: The API server's check of a URL; the models check more.
URL_PATTERN: Final = r"^[hH][tT][tT][pP][sS]?://[a-zA-Z0-9._:\[\]-]+([/?][^\s\\#]*)?$"
#: A positive number of cycles, with at most nine digits, per second, minute or hour.
RATE_PATTERN: Final = "^[1-9][0-9]{0,8}/[smh]$"
_SECONDS_PER_UNIT: Final = {"s": 1, "m": 60, "h": 3600}


def parse_rate(text: str) -> float:
    """Parse a rate such as `10/s`, `30/m` or `100/h`; return the number per second. Raises ValueError."""
    # Use fullmatch, because `$` alone would accept a trailing line break.
    if re.fullmatch(RATE_PATTERN, text) is None:
        msg = f"{text!r} is not a rate: write a whole number from 1 on and /s, /m or /h, such as 10/s or 30/m"
        raise ValueError(msg)
    number, _, unit = text.partition("/")
    return int(number) / _SECONDS_PER_UNIT[unit]


def is_header_value(value: str) -> bool:
    """Return True if `value` is printable ASCII with blanks only inside, so that no line break can add a header."""
    return re.fullmatch(_HEADER_VALUE_PATTERN, value) is not None


def check_header_value(value: str) -> str:
    """Return a valid header value. Raises ValueError."""
    if not is_header_value(value):
        raise ValueError("is not printable ASCII on one line")
    return value


def _check_https_url(value: str) -> str:
    if not is_valid_url(value) or not value.startswith("https://"):
        raise ValueError(find_url_problem(value, "a URL of the form https://host[:port]"))
    return value


def make_validator(check: Callable[[str], object]) -> AfterValidator:
    """Return a validator that rejects the texts for which `check` raises ValueError."""

    def validate(value: str) -> str:
        check(value)
        return value

    return AfterValidator(validate)


def make_schema_pattern(pattern: str, max_length: int) -> Any:
    """Return a field with the pattern in the schema for the API server.

    The models check only the length, so the type needs a separate validator for the pattern.
    """
    return Field(max_length=max_length, json_schema_extra={"pattern": pattern})


HeaderValue = Annotated[str, AfterValidator(check_header_value), make_schema_pattern(_HEADER_VALUE_PATTERN, 4096)]
Url = Annotated[str, make_validator(parse_origin), make_schema_pattern(URL_PATTERN, 2048)]
HttpsUrl = Annotated[str, AfterValidator(_check_https_url), make_schema_pattern(r"^https://\S+$", 2048)]
Name = Annotated[str, Field(min_length=1, max_length=253)]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Items = TypeVar("_Items", bound=Sequence[_Named])


def _require_elements(items: _Items) -> _Items:
    if not items:
        raise ValueError("must not be empty")
    return items


def _require_distinct_names(items: _Items) -> _Items:
    counts = Counter(item.name for item in items)
    duplicate_name = next((name for name, count in counts.items() if count > 1), None)
    if duplicate_name is not None:
        raise ValueError(f"the name {duplicate_name!r} is there twice; give each its own")
    return items


#: Validator for a list of elements with distinct names.
DISTINCT_NAMES: Final = AfterValidator(_require_distinct_names)
#: Validator for a list that is not empty. The field's min_length would report a list of invalid elements as empty.
NOT_EMPTY: Final = AfterValidator(_require_elements)


class SecretKeyRef(SpecModel):
    """A key of a Secret in the agent's namespace on the managed cluster."""

    name: str = Field(description="Name of the Secret in the agent's namespace on the managed cluster.", max_length=253)
    key: str = Field(description="Key in the Secret that holds the value.", max_length=253)
