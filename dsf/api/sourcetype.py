"""Source types: built-in ones, and those of plug-ins, whose names have a dot."""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, Final

from pydantic import JsonValue, PlainValidator, WithJsonSchema

from dsf.api.naming import MAX_NAME_LENGTH, is_dns_subdomain
from dsf.api.types import SourceType

_PART: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_KNOWN: Final = f"{', '.join(SourceType)}; that of a plug-in has a dot, as csv.example.com"
#: The same for the API server in CEL, as its message for a pattern is only the pattern.
_RULE: Final = {
    "rule": f"self in {[str(member) for member in SourceType]} || self.matches('^{_PART}([.]{_PART})+$')",
    "message": f"must be one of {_KNOWN}",
}


def is_plugin_type(name: str) -> bool:
    """Whether it is a valid name of a plug-in's type: a DNS subdomain such as `csv.example.com`.

    Built-in types never have a dot, so neither a misspelt nor a new one can be mistaken for a plug-in's.
    """
    return "." in name and is_dns_subdomain(name)


def _source_type(value: Any) -> str:
    """A built-in type as a SourceType, a plug-in's type unchanged. Raises ValueError."""
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
#: Parameters of a plug-in, which only the plug-in validates.
SourceOptions = Annotated[
    dict[str, JsonValue], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]
