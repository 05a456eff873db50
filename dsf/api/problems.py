"""Messages for invalid input: place, mistake and allowed values."""

from __future__ import annotations

import copy
import difflib
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from dsf.text import without_secrets_of_urls

#: Mistakes of one document that are named.
MAX_MISTAKES: Final = 50
#: Most bytes of a foreign answer that are shown in a message.
HEAD_BYTES: Final = 120

Location = tuple[int | str, ...]


@dataclass(frozen=True)
class Mistake:
    """A mistake: `location` is the path to the field from the top of the document."""

    location: Location
    text: str

    @property
    def field(self) -> str:
        """The location in readable form, such as `spec.masks[0].clusterName`; empty for the whole document."""
        return field_path(self.location)

    def __str__(self) -> str:
        return f"{self.field}: {self.text}" if self.location else self.text


def field_path(location: Location) -> str:
    """`("spec", "masks", 0)` as `spec.masks[0]`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def head(body: bytes) -> str:
    """The first bytes of an answer, quoted and on one line, for a message, without secrets of URLs."""
    # Truncate afterwards: in half a URL a password cannot be recognised.
    text = without_secrets_of_urls(body[: 32 * HEAD_BYTES].decode(errors="replace"))
    return repr(text[:HEAD_BYTES]) + ("..." if len(body) > HEAD_BYTES else "")


def explain(error: ValidationError, model: type[BaseModel], document: Any) -> list[Mistake]:
    """The first mistakes that pydantic found in `document` as a `model`, as readable messages."""
    mistakes: list[Mistake] = []
    for detail in error.errors(include_url=False, include_input=False):
        if len(mistakes) == MAX_MISTAKES:
            mistakes.append(Mistake((), f"and more mistakes, up to {error.error_count() - MAX_MISTAKES}"))
            break
        if detail["type"] == "default_factory_not_called":
            # A default that depends on another field, whose mistake is already reported.
            continue
        location, value = _present(detail["loc"], detail["type"], document)
        text = _wording(detail["type"], detail.get("ctx", {}), value, detail["msg"])
        if detail["type"] == "extra_forbidden":
            text = _unknown_field(str(location[-1]), _fields_at(model, location[:-1]))
        mistakes.append(Mistake(location, text))
    return mistakes


def without_unknown(error: ValidationError, document: Any) -> tuple[Any, list[str]]:
    """A copy of `document` without unknown fields, and their names."""
    unknown = [detail["loc"] for detail in error.errors(include_url=False) if detail["type"] == "extra_forbidden"]
    locations = [_present(location, "extra_forbidden", document)[0] for location in unknown]
    less = copy.deepcopy(document) if locations else document
    for *way, name in locations:
        part = less
        for step in way:
            part = part[step]
        part.pop(name, None)
    return less, [field_path(location) for location in locations]


def _present(location: Location, kind: str, document: Any) -> tuple[Location, Any]:
    """The location without steps that pydantic added for itself, and the value there."""
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


def _wording(kind: str, context: dict[str, Any], value: Any, fallback: str) -> str:
    quoted_value = reprlib.repr(without_secrets_of_urls(value) if isinstance(value, str) else value)
    choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
    words = {
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
    return words.get(kind, fallback)


def _unknown_field(name: str, allowed: Sequence[str]) -> str:
    guess = difflib.get_close_matches(name, allowed, n=1)
    hint = f"; did you mean {guess[0]}?" if guess else ""
    return f"is not a known field; allowed are {', '.join(allowed)}{hint}"


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    """The field names of the model at a location below `model`."""
    for step in location:
        if isinstance(step, str):
            model = next(
                nested
                for field in model.model_fields.values()
                if field.alias == step and (nested := _model_in(field.annotation)) is not None
            )
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)
