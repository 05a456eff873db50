"""Types of values in expressions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Type:
    """A type of CEL. Lists have items of one type, and maps have texts as keys and values of one type."""

    name: str
    item: Type | None = None
    #: Whether the value may be null instead.
    is_nullable: bool = False

    def __str__(self) -> str:
        text = self.name if self.item is None else f"{self.name}({self.item})"
        return f"{text} or null" if self.is_nullable else text

    @property
    def is_number(self) -> bool:
        """True if it is a number that is never null."""
        return self.name in ("int", "double") and not self.is_nullable


BOOL: Final = Type("bool")
INT: Final = Type("int")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
NULL: Final = Type("null")
#: The items of an empty list or map, which are of any type.
ANY: Final = Type("any")
NUMBERS: Final = Type("list", DOUBLE)
LABELS: Final = Type("map", STRING)


def unified(lhs: Type, rhs: Type) -> Type | None:
    """Return the type of a value that is of one of these types; None if there is none. An int may become a double."""
    if rhs in (NULL, ANY) or lhs in (NULL, ANY):
        other = lhs if rhs in (NULL, ANY) else rhs
        is_null = NULL in (lhs, rhs) and other != NULL
        return replace(other, is_nullable=True) if is_null else other
    is_nullable = lhs.is_nullable or rhs.is_nullable
    if lhs.name != rhs.name:
        are_numbers = {lhs.name, rhs.name} == {"int", "double"}
        return Type("double", is_nullable=is_nullable) if are_numbers else None
    if lhs.item is None or rhs.item is None:
        return Type(lhs.name, is_nullable=is_nullable)
    item = unified(lhs.item, rhs.item)
    return None if item is None else Type(lhs.name, item, is_nullable)


def accepts(parameter: Type, argument: Type) -> bool:
    """True if a parameter of this type takes such an argument."""
    if parameter.item == ANY:
        return parameter.name == argument.name and not argument.is_nullable
    return argument.is_nullable <= parameter.is_nullable and unified(parameter, argument) == parameter
