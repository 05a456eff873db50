"""Expressions for scorers without a scoring API: the subset of CEL that docs/expressions.md describes.

    types       types of values, and the types that parameters accept
    functions   the CEL functions in the subset, and the framework's own functions
    scope       the variables of one evaluation, and its budget of steps
    macros      the macros of CEL, which iterate over lists
    compiler    checks the text of an expression, and compiles it to Python functions

No library on PyPI limits the cost of an expression, which a tenant may write: in `common-expression-language` 0.10 one
`map` over 11,000 samples takes 9 s and one `matches` 250 ms, both without releasing the interpreter lock. `cel-python`
0.5 takes 190 us for a product, and `cel-expr-python` 0.1.3 adds 50 MB to the image. Therefore this package compiles the
documented subset, which CEL's conformance tests cover. The compiler reports type errors with their position before the
first evaluation.
"""

from dsf.expression.compiler import MAX_EXPRESSION_CHARACTERS, Expression, compile_expression
from dsf.expression.scope import MAX_STEPS, EvaluationError, Scope
from dsf.expression.types import DOUBLE, INT, LABELS, NUMBERS, STRING, Type

__all__ = [
    "DOUBLE",
    "INT",
    "LABELS",
    "MAX_EXPRESSION_CHARACTERS",
    "MAX_STEPS",
    "NUMBERS",
    "STRING",
    "EvaluationError",
    "Expression",
    "Scope",
    "Type",
    "compile_expression",
]
