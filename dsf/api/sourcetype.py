"""Source types: built-in ones, and those of plug-ins, whose names have a dot."""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, Final

from pydantic import JsonValue, PlainValidator, WithJsonSchema

from dsf.api.naming import MAX_NAME_LENGTH, is_dns_subdomain
from dsf.api.types import SourceType

_PART: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_KNOWN: Final = f"{', '.join(SourceType)}; that of a plug-in has a dot, as csv.example.com"
#: The same for the API server (CEL), whose message for a pattern would be the pattern.
_RULE: Final = {
    "rule": f"self in {[str(member) for member in SourceType]} || self.matches('^{_PART}([.]{_PART})+$')",
    "message": f"must be one of {_KNOWN}",
}


def is_plugin_type(name: str) -> bool:
    """Whether it is a name for a plug-in's type: that of a DNS subdomain, such as `csv.example.com`.

    No built-in type has a dot, now or later: neither a misspelt one nor a new one is ever taken for a plug-in's.
    """
    return "." in name and is_dns_subdomain(name)


def _source_type(value: Any) -> str:
    """A built-in type as a SourceType, another one as it is. Raises ValueError."""
    if isinstance(value, str):
        if value in set(SourceType):
            return SourceType(value)
        if is_plugin_type(value):
            return value
    raise ValueError(f"{reprlib.repr(value)} is not one of {_KNOWN}")


AnySourceType = Annotated[
    str,
    PlainValidator(_source_type),
    WithJsonSchema({"type": "string", "maxLength": MAX_NAME_LENGTH, "x-kubernetes-validations": [_RULE]}),
]
#: What a plug-in is told besides; only the plug-in knows which fields it has.
SourceOptions = Annotated[
    dict[str, JsonValue], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]
