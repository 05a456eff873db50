"""The variables of a scorer's expression, which depend on its sources, and the scores of other scorers as inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field

from dsf.api.meta import Rule, SpecModel
from dsf.expression import DOUBLE, INT, LABELS, NUMBERS, STRING, Expression, Type, compile_expression

#: Variables of every expression.
_CLUSTER_VARIABLES: Final[Mapping[str, Type]] = {"cluster": STRING, "clusterLabels": LABELS}
#: Variables of an expression that is evaluated for each series.
_SERIES_VARIABLES: Final[Mapping[str, Type]] = {
    **_CLUSTER_VARIABLES,
    "labels": LABELS,
    "query": INT,
    **dict.fromkeys(("values", "times"), NUMBERS),
    **dict.fromkeys(("last", "first", "min", "max", "mean", "sum", "count", "stddev"), DOUBLE),
}
#: Name of a variable in an expression.
_INPUT_NAME_PATTERN: Final = "^[a-zA-Z_][a-zA-Z0-9_]*$"
#: Maximum number of scores that an expression combines.
MAX_INPUTS: Final = 32


class ScoreInput(SpecModel):
    """The score of another scorer on the same cluster, as a variable of the expression."""

    rules = (
        Rule(
            f"as is none of {', '.join((*_CLUSTER_VARIABLES, 'labels'))}",
            f"!(self.__as__ in {[*_CLUSTER_VARIABLES, 'labels']})",
            lambda self: self.name not in (*_CLUSTER_VARIABLES, "labels"),
        ),
    )

    scorer: str = Field(description="Name of the DynamicScorer, in the same namespace.", min_length=1, max_length=253)
    name: Annotated[str, Field(pattern=_INPUT_NAME_PATTERN, max_length=63)] = Field(
        alias="as", description="Name of its variable in the expression."
    )
    default: float | None = Field(
        default=None,
        description="Value where the score is missing; unset: no item, and the cycle says which score is missing.",
    )


def list_variables(source_types: tuple[str, ...], inputs: tuple[str, ...]) -> dict[str, Type]:
    """Return the variables of an expression and their types, for the types of its sources and the names of `inputs`."""
    if inputs:
        return {**_CLUSTER_VARIABLES, "labels": LABELS, **dict.fromkeys(inputs, DOUBLE)}
    return dict(_CLUSTER_VARIABLES if set(source_types) <= {"None"} else _SERIES_VARIABLES)


@functools.lru_cache(4096)
def compile_cached(text: str, source_types: tuple[str, ...], inputs: tuple[str, ...] = ()) -> Expression:
    """Compile an expression; equal arguments return the same object. Raises ExpressionError."""
    return compile_expression(text, list_variables(source_types, inputs))
