"""The macros of CEL, which iterate over a list: `all`, `exists`, `exists_one`, `filter` and `map`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from dsf.expression.scope import EvaluationError, Run, Scope


class Items(NamedTuple):
    """The list over which a macro iterates."""

    #: Evaluates the list, or a map for its keys.
    container: Run
    #: Variable for the item.
    name: str
    #: Number of steps for each item.
    cost: int

    def read_items(self, scope: Scope) -> list[Any]:
        """Return the items, and spend the steps for all of them. Raises EvaluationError beyond the budget."""
        values = self.container(scope)
        scope.spend(self.cost * len(values))
        return list(values)


def _compile_all(items: Items, test: Run) -> Run:
    return _compile_quantifier(items, test, deciding_value=False)


def _compile_exists(items: Items, test: Run) -> Run:
    return _compile_quantifier(items, test, deciding_value=True)


def _compile_quantifier(items: Items, test: Run, *, deciding_value: bool) -> Run:
    """Return a function that ends at the first item for which the test has the deciding value."""

    def run(scope: Scope) -> bool:
        error: EvaluationError | None = None
        for item in items.read_items(scope):
            scope[items.name] = item
            try:
                if bool(test(scope)) is deciding_value:
                    return deciding_value
            except EvaluationError as failure:
                # Continue, because another item may decide the result.
                error = failure
        if error is not None:
            raise error
        return not deciding_value

    return run


def _compile_exists_one(items: Items, test: Run) -> Run:
    def run(scope: Scope) -> bool:
        count = 0
        for item in items.read_items(scope):
            scope[items.name] = item
            count += bool(test(scope))
        return count == 1

    return run


def _compile_filter(items: Items, test: Run) -> Run:
    def run(scope: Scope) -> list[Any]:
        matching = []
        for item in items.read_items(scope):
            scope[items.name] = item
            if test(scope):
                matching.append(item)
        return matching

    return run


def _compile_map(items: Items, first: Run, second: Run | None = None) -> Run:
    def run(scope: Scope) -> list[Any]:
        values = []
        for item in items.read_items(scope):
            scope[items.name] = item
            if second is None:
                values.append(first(scope))
            elif first(scope):
                values.append(second(scope))
        return values

    return run


#: Macro by name. Each gets its list and its compiled arguments, and returns a compiled function.
MACROS: Final[Mapping[str, Callable[..., Run]]] = {
    "all": _compile_all,
    "exists": _compile_exists,
    "exists_one": _compile_exists_one,
    "filter": _compile_filter,
    "map": _compile_map,
}
