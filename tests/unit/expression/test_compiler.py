from __future__ import annotations

import math
from typing import Any

import pytest

from dsf.errors import ExpressionError
from dsf.expression import DOUBLE, INT, LABELS, NUMBERS, STRING, EvaluationError, Scope, compile_expression

_TYPES = {
    "values": NUMBERS,
    "times": NUMBERS,
    "last": DOUBLE,
    "mean": DOUBLE,
    "count": DOUBLE,
    "labels": LABELS,
    "query": INT,
    "cluster": STRING,
}
_VALUES: dict[str, Any] = {
    "values": [float(number) for number in range(61)],
    "times": [float(30 * number) for number in range(61)],
    "last": 60.0,
    "mean": 2.5,
    "count": 61.0,
    "labels": {"node": "n1", "price": "4.5", "namespace": "shop"},
    "query": 1,
    "cluster": "paris",
}


def evaluate(text: str, **variables: Any) -> float | None:
    return compile_expression(text, _TYPES).evaluate(Scope(_VALUES | variables))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100 * mean", 250.0),
        ("100 - last", 40.0),
        ("mean / 2", 1.25),
        ("7 / 2", 3.0),
        ("values.filter(v, v > 50).size() / count", 10 / 61),
        ("values[size(values) - 1]", 60.0),
        ("double(labels.price) * 2", 9.0),
        ('has(labels.zone) ? 1 : labels.namespace == "shop" ? 2 : 3', 2.0),
        ('{"n1": 80, "n2": 2.5}[labels.node]', 80.0),
        ("[10, 20][query]", 20.0),
        ("last > 50 ? null : last", None),
        ("last in [1, 60] ? 1 : 0", 1.0),
        ('cluster.startsWith("par") ? 1 : 0', 1.0),
        ("// with a remark\n last", 60.0),
        ("[].filter(v, -v > 0 && !(v - v in values)).size()", 0.0),
        ("[].map(v, v).exists(v, v in values || v ? true : false) ? 1 : 0", 0.0),
        ("{}.map(k, k).size() + size([].map(v, labels[v]))", 0.0),
    ],
)
def test_value_of_expression(text: str, value: float | None) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("clamp(last, 0, 5)", 5.0),
        ("clamp(last, 70, 80)", 70.0),
        ("scale(last, 0, 100)", 20.0),
        ("scale(last, 100, 0)", -20.0),
        ("scale(last, 0, 10)", 100.0),
        ("quantile(values, 0.95)", 57.0),
        ("quantile([1.0, 2.0], 0.5)", 1.5),
        ("trend(values, 60)", 62.0),
        ("trend(values.map(v, 5), 600)", 5.0),
    ],
)
def test_value_of_own_functions(text: str, value: float) -> None:
    assert evaluate(text) == pytest.approx(value)


def test_quantile_of_nan_is_nan() -> None:
    value = evaluate("quantile(values, 0.5)", values=[1.0, math.nan, 2.0])
    assert value is not None
    assert math.isnan(value)


def test_variables_are_those_that_the_expression_reads() -> None:
    assert compile_expression("values.exists(v, v > mean) ? 1 : 0", _TYPES).variables == {"values", "mean"}
    assert compile_expression("trend(values, 60)", _TYPES).variables == {"values", "times"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mean >", "column 7: expected a value and not 'the end'"),
        ("100 * usage", "column 7: there is no variable 'usage'; the variables are"),
        ("max(values)", "column 1: there is no function max(); the functions are"),
        ("size", "column 1: size is a function: size(...)"),
        ("labels - 1", "column 8: map(string) - int is not possible"),
        ("labels.price * 2", "column 14: string * int is not possible; convert a text by double()"),
        ("5.0 % 2", "column 5: double % int is not possible; it takes ints: int()"),
        ("labels.node", "the value of the expression is string; a score is a number, or null"),
        ("last ? 1 : 2", "column 6: the condition before '?' is double, not bool"),
        ('last > 1 ? 1 : "a"', "column 10: one value of '?' is int and the other string"),
        ("(last > 5 ? last : null) + 1", "column 26: double or null + int is not possible"),
        ("clamp(1)", "column 1: clamp() takes 3 values and not 1"),
        ('clamp("a", 1, 2)', "column 1: value 1 of clamp() is string and not double"),
        ("(1", "column 3: expected ')' and not 'the end'"),
        ("1 2", "column 3: unexpected '2'"),
        ("5u", "column 2: unexpected 'u' after '5'"),
        ('"abc', "column 1: a text without its end"),
        ("mean\n  + usage", "line 2, column 5: there is no variable 'usage'"),
        ("values.map(last, 1).size()", "column 8: map(): 'last' cannot be the name of an item"),
        ("has(last)", "column 1: has() takes a field, such as has(labels.node)"),
        ("9223372036854775808", "column 1: 9223372036854775808 has more than 64 bits"),
        ("size('\\ud83d')", "column 6: a text with an invalid escape"),
        ("", "column 1: expected a value and not 'the end'"),
    ],
)
def test_mistake_is_reported_with_its_column(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compile_expression(text, _TYPES)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "division by zero"),
        ("double(labels.zone)", "there is no 'zone': neither label nor key"),
        ("double(labels.node)", "double('n1'): the text is not a number"),
        ("values[99]", "the list has 61 items and none at 99"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("-9223372036854775808 % -1", "integer overflow"),
        ("-([][0])", "the list has 0 items and none at 0"),
        ("int(1e300)", "int(1e+300): the number has more than 64 bits"),
        ("quantile([], 0.5)", "quantile: the list is empty"),
        ("quantile(values, 95)", "quantile: 95 is not from 0 to 1"),
        ("clamp(last, 5, 0)", "clamp: low 5 is above high 0"),
        ("scale(last, 1, 1)", "scale: low and high are both 1"),
        ("trend([1.0], 60)", "trend: the list has 1 values, and the series 61"),
    ],
)
def test_failing_evaluation_names_the_cause(text: str, message: str) -> None:
    with pytest.raises(EvaluationError) as error:
        evaluate(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1" + " + 1" * 30_000, "the expression has 120001 characters, more than 4096"),
        ("(" * 60 + "1" + ")" * 60, "more than 40 brackets within one another"),
        ("!" * 2000 + "true ? 1 : 0", "more than 40 brackets and signs within one another"),
        ("1" + "+1" * 400, "the expression has more than 100 levels"),
        ("size([" + ",".join(["1"] * 600) + "])", "the expression has more than 500 operators, functions and values"),
        ("[" * 60 + "]" * 60, "more than 40 brackets within one another"),
        ("true ? 1 : " * 60 + "1", "more than 40 brackets within one another"),
        ("values" + ".map(v, v)" * 300, "the expression has more than 100 levels"),
    ],
)
def test_hostile_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compile_expression(text, _TYPES)
    assert message in str(error.value)


_LONG = f"['{'a' * 1000}'].map(t, t + t + t + t).map(t, t + t + t + t)"
_NESTED = "[[1]]" + "".join(f".map(n{n}, [n{n}, n{n}])" for n in range(40))


@pytest.mark.parametrize(
    "text",
    [
        "values.map(a, values.map(b, values.map(c, a * b * c).size()).size()).size()",
        "values.exists(a, values.exists(b, values.exists(c, a * b * c < 0))) ? 1 : 0",
        "values.map(a, values.map(b, values + values).size()).size()",
        "values.filter(a, values.map(b, values == values).size() > 0).size()",
        "values" + ".map(a, quantile(values, 0.5))" * 4 + ".size()",
        "values.map(a, values.exists(b, values.exists(c, c < 0 || a in values))).size()",
        # A text, and lists of one list, that double with each macro.
        "['aaaaaaaaaaaaaaaa']" + "".join(f".map(t{n}, t{n} + t{n})" for n in range(40)) + "[0].size()",
        f"{_NESTED} == {_NESTED} ? 1 : 0",
        f"{_NESTED}[0] in {_NESTED} ? 1 : 0",
        # Texts that are long, and read for each item.
        f"{_LONG}.map(t, values.map(a, values.map(b, t.contains('b') || t == t + 'b' || t < t)).size())[0]",
    ],
)
def test_hostile_evaluation_ends_by_its_steps(text: str) -> None:
    with pytest.raises(EvaluationError, match="takes more than 50000 steps"):
        evaluate(text)


def test_macro_over_every_sample_of_a_long_series_is_within_the_steps() -> None:
    values = [float(number) for number in range(11_000)]
    assert evaluate("values.filter(v, v >= 10000).size()", values=values) == 1000.0
