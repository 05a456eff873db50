"""The variables of one evaluation, and its budget of steps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from dsf.errors import DsfError

#: Most steps of one evaluation. A step is an operator, a function or a variable, or an item of a list that one reads.
MAX_STEPS: Final = 50_000


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
            raise EvaluationError(f"the expression takes more than {MAX_STEPS} steps; read shorter lists")
