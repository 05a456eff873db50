"""The types of values in expressions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Type:
    """A CEL type. Lists have items of one type. Maps have strings as keys, and values of one type."""

    name: str
    #: Type of the items of a list, or of the values of a map; None for other types.
    item: Type | None = None
    #: True if the value may be null instead.
    is_nullable: bool = False

    def __str__(self) -> str:
        text = self.name if self.item is None else f"{self.name}({self.item})"
        return f"{text} or null" if self.is_nullable else text

    @property
    def is_number(self) -> bool:
        """True if values are numbers and never null."""
        return self.name in ("int", "double") and not self.is_nullable


BOOL: Final = Type("bool")
INT: Final = Type("int")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
NULL: Final = Type("null")
#: Type of the items of an empty list or map.
ANY: Final = Type("any")
NUMBERS: Final = Type("list", DOUBLE)
LABELS: Final = Type("map", STRING)


def unify(lhs: Type, rhs: Type) -> Type | None:
    """Return the common type of two types; None if there is none. The common type of int and double is double."""
    if rhs in (NULL, ANY) or lhs in (NULL, ANY):
        other_type = lhs if rhs in (NULL, ANY) else rhs
        is_null = NULL in (lhs, rhs) and other_type != NULL
        return replace(other_type, is_nullable=True) if is_null else other_type
    is_nullable = lhs.is_nullable or rhs.is_nullable
    if lhs.name != rhs.name:
        are_numbers = {lhs.name, rhs.name} == {"int", "double"}
        return Type("double", is_nullable=is_nullable) if are_numbers else None
    if lhs.item is None or rhs.item is None:
        return Type(lhs.name, is_nullable=is_nullable)
    item = unify(lhs.item, rhs.item)
    return None if item is None else Type(lhs.name, item, is_nullable)


def is_accepted(parameter: Type, argument: Type) -> bool:
    """True if a parameter accepts an argument of this type."""
    if parameter.item == ANY:
        return parameter.name == argument.name and not argument.is_nullable
    return argument.is_nullable <= parameter.is_nullable and unify(parameter, argument) == parameter
