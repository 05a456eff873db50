"""The variables of one evaluation, and its budget of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from dsf.errors import DsfError

#: Maximum number of steps of one evaluation. Each operator, function, variable and processed list item is a step.
MAX_STEPS: Final = 50_000
#: Number of characters of a string that cost one step. Without this cost, repeated concatenation could fill the memory.
CHARACTERS_PER_STEP: Final = 64


class EvaluationError(DsfError):
    """An expression has no value for these variables. The message is the reason."""


class Scope(dict[str, Any]):
    """The variables of one evaluation by name, and the number of remaining steps."""

    __slots__ = ("steps",)

    def __init__(self, variables: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(variables)
        self.steps = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Subtract steps from the budget. Raises EvaluationError if the budget is exhausted."""
        self.steps -= steps
        if self.steps < 0:
            raise EvaluationError(f"the expression takes more than {MAX_STEPS} steps; read shorter lists and texts")

    def spend_content(self, value: Any) -> None:
        """Spend steps for the content of a value: the items of lists at all levels, and the characters of strings.

        Count all levels, because a list may contain the same list many times.
        """
        if isinstance(value, str):
            self.spend(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, Mapping):
            self.spend(len(value))
            for text in value.values():
                self.spend_content(text)
        elif isinstance(value, (list, tuple)):
            self.spend(len(value))
            if value and isinstance(value[0], (str, Mapping, list, tuple)):
                for item in value:
                    self.spend_content(item)


#: A compiled part of an expression.
Run = Callable[[Scope], Any]
