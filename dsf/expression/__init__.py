"""Expressions of scorers without a scoring API: the part of CEL that docs/expressions.md describes.

    types       types of values, and what an operator accepts
    functions   CEL's functions of that part, and the framework's own
    scope       the variables of one evaluation, and its budget of steps
    compiler    checks the text, and turns it into functions

No library of PyPI bounds the cost of an expression, which a tenant may write: in `common-expression-language` 0.10 one
`map` over 11,000 samples takes 9 s and one `matches` 250 ms, both without releasing Python's lock. `cel-python` 0.5
takes 190 us for a product, and `cel-expr-python` 0.1.3 adds 50 MB to the image. Hence a compiler for the documented
part, which also reports columns and types before the first evaluation. CEL's conformance tests cover it.
"""

from dsf.expression.compiler import MAX_LENGTH, Expression, compile_expression
from dsf.expression.scope import MAX_STEPS, EvaluationError, Scope
from dsf.expression.types import DOUBLE, INT, LABELS, NUMBERS, STRING, Type

__all__ = [
    "DOUBLE",
    "INT",
    "LABELS",
    "MAX_LENGTH",
    "MAX_STEPS",
    "NUMBERS",
    "STRING",
    "EvaluationError",
    "Expression",
    "Scope",
    "Type",
    "compile_expression",
]
