"""Messages about invalid input, with field, error and allowed values."""

from __future__ import annotations

import copy
import difflib
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from dsf.text import shorten_urls

#: Maximum number of reported errors in a document.
MAX_MISTAKES: Final = 50
#: Maximum number of bytes of an external response in a message.
HEAD_BYTES: Final = 120

Location = tuple[int | str, ...]


@dataclass(frozen=True)
class Mistake:
    """An error in a document."""

    #: Path to the field from the top of the document; empty for the whole document.
    location: Location
    text: str

    @property
    def field(self) -> str:
        """The location in readable form, such as `spec.masks[0].clusterName`; empty for the whole document."""
        return format_field_path(self.location)

    def __str__(self) -> str:
        return f"{self.field}: {self.text}" if self.location else self.text


def format_field_path(location: Location) -> str:
    """Return a location such as `("spec", "masks", 0)` in the form `spec.masks[0]`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def quote_head(body: bytes) -> str:
    """Return the first bytes of a response for a message, quoted, on a single line, without secrets in URLs."""
    # Mask before truncating, because the password in a truncated URL cannot be recognised.
    text = shorten_urls(body[: 32 * HEAD_BYTES].decode(errors="replace"))
    return repr(text[:HEAD_BYTES]) + ("..." if len(body) > HEAD_BYTES else "")


def explain(error: ValidationError, model: type[BaseModel], document: Any) -> list[Mistake]:
    """Return readable messages for the first errors that pydantic found in `document`."""
    mistakes: list[Mistake] = []
    for detail in error.errors(include_url=False, include_input=False):
        if len(mistakes) == MAX_MISTAKES:
            mistakes.append(Mistake((), f"and more mistakes, up to {error.error_count() - MAX_MISTAKES}"))
            break
        if detail["type"] == "default_factory_not_called":
            # The default depends on an invalid field, whose error is already reported.
            continue
        location, value = _resolve_location(detail["loc"], detail["type"], document)
        text = _make_message(detail["type"], detail.get("ctx", {}), value, detail["msg"])
        if detail["type"] == "extra_forbidden":
            text = _make_unknown_field_message(str(location[-1]), _list_fields(model, location[:-1]))
        mistakes.append(Mistake(location, text))
    return mistakes


def remove_unknown_fields(error: ValidationError, document: Any) -> tuple[Any, list[str]]:
    """Return a copy of `document` without unknown fields, and the paths of the unknown fields."""
    unknown_locations = [
        detail["loc"] for detail in error.errors(include_url=False) if detail["type"] == "extra_forbidden"
    ]
    locations = [_resolve_location(location, "extra_forbidden", document)[0] for location in unknown_locations]
    reduced_document = copy.deepcopy(document) if locations else document
    for *parent_path, name in locations:
        part = reduced_document
        for step in parent_path:
            part = part[step]
        part.pop(name, None)
    return reduced_document, [format_field_path(location) for location in locations]


def _resolve_location(location: Location, kind: str, document: Any) -> tuple[Location, Any]:
    """Return the location without steps that only pydantic uses, and the value at the location."""
    steps: list[int | str] = []
    value = document
    for step in location:
        try:
            value = value[step]
        except (LookupError, TypeError):
            if kind != "missing":
                continue
            value = None
        steps.append(step)
    return tuple(steps), value


def _make_message(kind: str, context: dict[str, Any], value: Any, fallback: str) -> str:
    quoted_value = reprlib.repr(shorten_urls(value) if isinstance(value, str) else value)
    choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
    message_by_kind = {
        "missing": "is required",
        "enum": f"{quoted_value} is not one of {choices}",
        "literal_error": f"{quoted_value} is not {'one of ' if ', ' in choices else ''}{choices}",
        "string_type": f"{quoted_value} is not text",
        "string_too_short": "must not be empty",
        "string_too_long": f"is longer than {context.get('max_length')} characters",
        "too_short": "must not be empty",
        "too_long": f"has more than {context.get('max_length')} items",
        "string_pattern_mismatch": f"{quoted_value} does not match {context.get('pattern')}",
        "int_type": f"{quoted_value} is not a whole number",
        "bool_type": f"{quoted_value} is not true or false",
        "bool_parsing": f"{quoted_value} is not true or false",
        "greater_than_equal": f"{quoted_value} is less than {context.get('ge')}",
        "less_than_equal": f"{quoted_value} is more than {context.get('le')}",
        "model_type": f"{quoted_value} is not a mapping of fields",
        "dict_type": f"{quoted_value} is not a mapping of fields",
        "list_type": f"{quoted_value} is not a list",
        "timezone_aware": f"{quoted_value} has no time zone",
        "value_error": str(context.get("error")),
    }
    return message_by_kind.get(kind, fallback)


def _make_unknown_field_message(name: str, allowed_fields: Sequence[str]) -> str:
    guess = difflib.get_close_matches(name, allowed_fields, n=1)
    hint = f"; did you mean {guess[0]}?" if guess else ""
    return f"is not a known field; allowed are {', '.join(allowed_fields)}{hint}"


def _list_fields(model: type[BaseModel], location: Location) -> list[str]:
    """Return the field names of the model at a location below `model`."""
    for step in location:
        if isinstance(step, str):
            model = next(
                nested
                for field in model.model_fields.values()
                if field.alias == step and (nested := _find_model(field.annotation)) is not None
            )
    return [field.alias or name for name, field in model.model_fields.items()]


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model in `Model`, `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _find_model(part)) is not None), None)
