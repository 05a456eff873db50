"""Errors of the optimiser, in addition to those of the framework."""

from __future__ import annotations

from dsf.errors import DsfError


class PlanConflictError(DsfError):
    """A plan cannot be applied to the hub's current state: a label is missing, an object has another owner, or the plan
    has changed. Nothing was written."""


class ApplyError(DsfError):
    """A plan could not be written. `left` names the changes that were not rolled back; empty: all were."""

    def __init__(self, message: str, left: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.left = left


class SolverError(DsfError):
    """The solver is busy with other plans, far exceeded its time limit, or its process died."""
