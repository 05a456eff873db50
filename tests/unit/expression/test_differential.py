"""Random expressions give the same value, or an error, as in two CEL libraries.

Both are dependencies of the tests alone. `common-expression-language` is written in Rust, `cel-python` in Python. A
difference is a fault of the compiler, or a fault of the library that the lists below describe with the section of the
CEL specification (https://github.com/google/cel-spec/blob/master/doc/langdef.md) that decides it. Expressions have
types in CEL, so the two rules of docs/expressions.md that differ from CEL do not occur.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pytest

from dsf.expression import EvaluationError, Scope
from dsf.expression.compiler import _Parser
from tests.unit.expression.randomexpressions import TYPES, ExpressionWriter, Feature, make_variables

#: Number of compared expressions by library: in `make test`, and in `make test-all`.
_FEW: Final = {"rust": 2_000, "python": 250}
_MANY: Final = {"rust": 30_000, "python": 6_000}


class Outcome(NamedTuple):
    """The value of an expression, or the error instead."""

    value: Any
    error: str = ""


class Fault(NamedTuple):
    """A known fault of a library: the section of the specification, an example, and whether it explains a difference.

    `explains` gets the expression, our outcome and that of the library.
    """

    section: str
    example: str
    explains: Callable[[str, Outcome, Outcome], bool]


_FAULTS: Final[Mapping[str, tuple[Fault, ...]]] = {
    "rust": (
        Fault(
            "List of Standard Definitions, size: the number of Unicode code points, and not of bytes",
            'size("é")',
            lambda text, _, __: "size" in text and "\u00e9" in text,
        ),
        Fault(
            "Overflow: the least int has no positive counterpart, so that its negation is an error",
            "-(-9223372036854775808)",
            lambda text, ours, _: "-9223372036854775808" in text and "-(" in text and bool(ours.error),
        ),
        Fault(
            "Macros, all and exists: an item that decides absorbs the errors of other items",
            "[0, 3].all(v, v / v > v)",
            lambda text, ours, library: (
                not ours.error and bool(library.error) and (".all(" in text or ".exists(" in text)
            ),
        ),
        Fault(
            "Numeric values: each ordering of a number and NaN is false, and no error",
            "1 <= 0.0 / (last - last)",
            lambda text, ours, library: not ours.error and library.error == "TypeError" and "/" in text,
        ),
    ),
    "python": (
        Fault(
            "Numeric values: a double divided by 0.0 is NaN or an infinity by IEEE 754, and not always +infinity",
            "-1.0 / (last - last)",
            lambda text, _, __: "/" in text,
        ),
        Fault(
            "List of Standard Definitions, contains: it is defined for every string, also for one made by +",
            '(cluster + "a").contains("a")',
            lambda text, ours, library: not ours.error and bool(library.error) and ".contains(" in text and "+" in text,
        ),
        Fault(
            "Conformance test conversions/int/double_int_min_range: the least int as a double is out of range",
            "int(double(-9223372036854775808))",
            lambda text, ours, _: "number has more than 64 bits" in ours.error,
        ),
    ),
}
#: Features that a library has not, or that are wrong in it in most expressions.
_LEFT_OUT: Final[Mapping[str, frozenset[Feature]]] = {
    # List of Standard Definitions, string: bool to "true" and "false".
    "rust": frozenset({"string of bool"}),
    # The same: it gives "True". Macros: map with four arguments. Numeric values: comparison across types. Runtime
    # errors: a map with an error in a value is an error.
    "python": frozenset({"string of bool", "map with condition", "mixed comparison", "map"}),
}


def evaluate(text: str, variables: Mapping[str, Any]) -> Outcome:
    """Evaluate with the framework's compiler. Raises ExpressionError."""
    term = _Parser(text, TYPES).parse()
    try:
        return Outcome(term.run(Scope(variables)))
    except (EvaluationError, OverflowError) as error:
        return Outcome(None, str(error))


def evaluate_by_rust(text: str, variables: Mapping[str, Any]) -> Outcome:
    """Evaluate with `common-expression-language`."""
    import cel

    try:
        return Outcome(cel.evaluate(text, dict(variables)))
    except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError) as error:
        return Outcome(None, type(error).__name__)


def evaluate_by_python(text: str, variables: Mapping[str, Any]) -> Outcome:
    """Evaluate with `cel-python`."""
    import celpy

    environment = celpy.Environment()
    program = environment.program(environment.compile(text))
    try:
        value = program.evaluate({name: celpy.json_to_cel(variable) for name, variable in variables.items()})
    except celpy.CELEvalError as error:
        return Outcome(None, type(error).__name__)
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        return Outcome(None, type(error).__name__)
    return Outcome(None, "CELEvalError") if isinstance(value, celpy.CELEvalError) else Outcome(value)


_LIBRARIES: Final = {"rust": evaluate_by_rust, "python": evaluate_by_python}


def is_same(ours: Any, other: Any) -> bool:
    """True if two values are the same, with the same type."""
    if isinstance(ours, list):
        has_same_length = isinstance(other, list) and len(ours) == len(other)
        return has_same_length and all(is_same(*items) for items in zip(ours, other, strict=True))
    if "Bool" in type(other).__name__:
        other = bool(other)
    for kind in (bool, float, str):
        if isinstance(ours, kind) != isinstance(other, kind):
            return False
    return bool(ours == other) or (isinstance(ours, float) and math.isnan(ours) and math.isnan(other))


def find_differences(library: str, number: int) -> tuple[list[str], float]:
    """Compare random expressions; return the unexplained differences, and the share of expressions with a value."""
    source = random.Random(20261130)
    writer = ExpressionWriter(source, _LEFT_OUT[library])
    differences: list[str] = []
    values = 0
    for _ in range(number):
        text, variables = writer.write(), make_variables(source)
        ours, other = evaluate(text, variables), _LIBRARIES[library](text, variables)
        values += not ours.error
        if differs(ours, other) and not any(fault.explains(text, ours, other) for fault in _FAULTS[library]):
            differences.append(f"{text} with {variables}: {ours}, and {library}: {other}")
    return differences, values / number


def differs(ours: Outcome, other: Outcome) -> bool:
    """True if one alone is an error, or the values are different."""
    return bool(ours.error) != bool(other.error) or (not ours.error and not is_same(ours.value, other.value))


@pytest.mark.parametrize("library", _LIBRARIES)
def test_random_expressions_have_the_value_of_a_library(library: str) -> None:
    differences, values = find_differences(library, _FEW[library])
    assert differences == []
    # Errors alone would compare nothing.
    assert values > 0.5


@pytest.mark.whole
@pytest.mark.parametrize("library", _LIBRARIES)
def test_many_random_expressions_differ_only_by_known_faults_of_a_library(library: str) -> None:
    assert find_differences(library, _MANY[library])[0] == []


@pytest.mark.parametrize(
    ("library", "fault"), [(library, fault) for library, faults in _FAULTS.items() for fault in faults]
)
def test_known_fault_of_a_library_is_still_there(library: str, fault: Fault) -> None:
    variables = make_variables(random.Random(1))
    ours, other = evaluate(fault.example, variables), _LIBRARIES[library](fault.example, variables)
    assert differs(ours, other)
    assert fault.explains(fault.example, ours, other)
