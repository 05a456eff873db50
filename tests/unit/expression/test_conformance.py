"""CEL's own conformance tests of the features that docs/expressions.md offers.

Source: https://github.com/google/cel-spec, tests/simple/testdata (Apache-2.0), at commit
508bd98efda47d85bcf1b9930dd5f35fa37e9a18, files basic, comparisons, conversions, fields, fp_math, integer_math, lists,
logic, macros, parse and string. Left out are tests with bindings or without a type check, and those of bytes, uint,
timestamp, duration, type(), dyn(), bool(), matches(), messages, backquoted fields, keys that are no strings, and lists
or maps of mixed types.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dsf.errors import ExpressionError
from dsf.expression import EvaluationError, Scope, compile_expression
from tests.cases import load

#: Expressions of a number with a text of any type within.
_NUMBERS = ("{}", "({}) ? 1 : 0", "size({})", 'size({{"": {}}}[""])')


def evaluate(expression: str) -> float | None:
    """Return the value of a text with a number, a bool, a text, a list or a map; the last ones by their size."""
    for form in _NUMBERS:
        try:
            compiled = compile_expression(form.format(expression), {})
        except ExpressionError as error:
            failure = error
        else:
            return compiled.evaluate(Scope({}))
    raise failure


@pytest.mark.parametrize("case", load("cel"))
def test_conformance(case: dict[str, Any]) -> None:
    expression = case["expression"]
    if "error" in case:
        with pytest.raises(EvaluationError):
            evaluate(expression)
    elif "string" in case:
        assert evaluate(f"({expression}) == {json.dumps(case['string'], ensure_ascii=False)}") == 1.0
    elif "null" in case:
        assert evaluate(expression) is None
    else:
        expected = float(next(case[kind] for kind in ("bool", "int", "double") if kind in case))
        value = evaluate(expression)
        assert value == expected or (value is not None and math.isnan(value) and math.isnan(expected))
