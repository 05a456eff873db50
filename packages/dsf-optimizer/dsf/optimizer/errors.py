"""Errors of the optimiser, in addition to those of the framework."""

from __future__ import annotations

from dsf.errors import DsfError


class PlanConflictError(DsfError):
    """A plan cannot be applied to the hub's current state, and no object was written.

    A label is missing, an object has another owner, or the plan has changed, for example.
    """


class ApplyError(DsfError):
    """A plan could not be written. `remaining_changes` were not rolled back."""

    def __init__(self, message: str, remaining_changes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.remaining_changes = remaining_changes


class SolverError(DsfError):
    """The solver is busy with other plans, far exceeded its time limit, or its process died."""
