"""Why something cannot be done, as a condition says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Obstacle:
    """Why a scorer runs nowhere, or a check of its scoring API failed: a condition's reason and message."""

    reason: str
    message: str
    #: The hub's internal error; None if the scorer has to be changed.
    error: Exception | None = field(default=None, compare=False)


#: Condition reason for an internal error with a scorer.
INTERNAL_ERROR: Final = "InternalError"
#: Condition reason for an unreadable DynamicScorer.
INVALID: Final = "Invalid"
#: Condition reason of a scorer whose namespace may not have its score name.
NAME_NOT_ALLOWED: Final = "ScoreNameNotAllowed"
#: Condition reason of scorers beside which there is a DynamicScoringConfig whose masks do not count.
CONFIG_MISPLACED: Final = "ScoringConfigMisplaced"


def internal_obstacle(error: Exception, doing: str) -> Obstacle:
    """For an internal error with a scorer while `doing` something."""
    text = f"the hub cannot go on with this scorer: {type(error).__name__} while {doing}; the hub's log says where"
    return Obstacle(INTERNAL_ERROR, text, error)
