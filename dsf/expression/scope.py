"""The variables of one evaluation, and its budget of steps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from dsf.errors import DsfError

#: Most steps of one evaluation. A step is an operator, a function or a variable, or an item of a list that one reads.
MAX_STEPS: Final = 50_000
#: Characters of a text that cost a step: joined again and again, a short text would fill the memory.
CHARACTERS_OF_STEP: Final = 64


class EvaluationError(DsfError):
    """An expression has no value for these variables. The message says why."""


class Scope(dict[str, Any]):
    """The variables by name, and the number of steps that remain."""

    __slots__ = ("steps",)

    def __init__(self, variables: Mapping[str, Any] = MappingProxyType({}), steps: int = MAX_STEPS) -> None:
        super().__init__(variables)
        self.steps = steps

    def spend(self, steps: int) -> None:
        """Take so many steps from the budget. Raises EvaluationError once it is exhausted."""
        self.steps -= steps
        if self.steps < 0:
            raise EvaluationError(f"the expression takes more than {MAX_STEPS} steps; read shorter lists and texts")

    def spend_content(self, value: Any) -> None:
        """Spend steps for all of a value: each item at every level, and the characters of texts.

        A list may contain one list many times, so that its items at all levels are more than those in memory.
        """
        if isinstance(value, str):
            self.spend(len(value) // CHARACTERS_OF_STEP)
        elif isinstance(value, Mapping):
            self.spend(len(value))
            for text in value.values():
                self.spend_content(text)
        elif isinstance(value, (list, tuple)):
            self.spend(len(value))
            if value and isinstance(value[0], (str, Mapping, list, tuple)):
                for item in value:
                    self.spend_content(item)
