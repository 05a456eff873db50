"""Random expressions of the grammar in docs/expressions.md, and random variables for them.

Every expression has a type in CEL, which has no arithmetic of an int and a double. Values are chosen so that errors
occur: zeros, absent labels, short lists, and integers near the ends of their range.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from dsf.expression import DOUBLE, INT, LABELS, NUMBERS, STRING, Type
from dsf.expression.types import BOOL

#: The variables of the expressions.
TYPES: Final[Mapping[str, Type]] = {
    "values": NUMBERS,
    "last": DOUBLE,
    "mean": DOUBLE,
    "labels": LABELS,
    "query": INT,
    "cluster": STRING,
}
_INTS: Final = (*("0", "1", "2", "3", "7", "-1", "-4", "100") * 3, "9223372036854775807", "-9223372036854775808")
_DOUBLES: Final = ("0.0", "1.0", "0.5", "2.5", "-1.5", "100.0", "1e10", "1.25e-3", "3.0e200")
_STRINGS: Final = ("", "a", "b", "n1", "paris", "12", "-3", "4.5", "1e3", "é", "a b", "\\'\"\n")
_LABELS: Final = ("node", "zone", "price", "absent")
_SCALARS: Final = (INT, DOUBLE, STRING, BOOL)


def make_variables(source: random.Random) -> dict[str, Any]:
    """Return values of all variables."""
    present_labels = source.sample(_LABELS[:3], source.choice((0, 2, 3, 3, 3)))
    return {
        "values": [source.choice((0.0, 0.5, 1.0, 2.5, -3.0)) for _ in range(source.randint(0, 4))],
        "last": source.choice((0.0, 1.0, -2.5, 60.0)),
        "mean": source.choice((0.0, 0.25, 30.0)),
        "labels": {name: source.choice(("a", "n1", "12", "4.5", "")) for name in present_labels},
        "query": source.choice((0, 1, 2)),
        "cluster": source.choice(("paris", "a", "")),
    }


#: Features that can be left out: `map` with a condition, `string` of a bool, an int compared with a double, and maps.
Feature = Literal["map with condition", "string of bool", "mixed comparison", "map"]


class ExpressionWriter:
    """Writes random expressions, the same ones for the same source."""

    def __init__(self, source: random.Random, left_out: frozenset[Feature] = frozenset()) -> None:
        self._source = source
        self._left_out = left_out
        #: Variables of macros around the place that is written.
        self._items: dict[str, Type] = {}
        self._count = 0

    def write(self) -> str:
        """Return an expression of any type."""
        self._count = 0
        return self._write(self._source.choice((*_SCALARS, NUMBERS, Type("list", STRING))), self._source.randint(1, 4))

    def _choose(self, *options: Callable[[], str]) -> str:
        return self._source.choice(options)()

    def _write(self, kind: Type, depth: int) -> str:
        items = [name for name, item in self._items.items() if item == kind]
        if items and self._source.random() < 0.4:
            return self._source.choice(items)
        if depth <= 0:
            return self._write_leaf(kind)
        if self._source.random() < 0.08:
            test, first, second = (self._write(each, depth - 1) for each in (BOOL, kind, kind))
            return f"({test} ? {first} : {second})"
        if self._source.random() < 0.08 and kind.item is None:
            return f"{self._write_list(kind, depth - 1)}[{self._source.choice(('0', '1', '2', 'query'))}]"
        if self._source.random() < 0.05 and kind.item is None and "map" not in self._left_out:
            key = self._write(STRING, depth - 1)
            return f"{self._write_map(kind, depth - 1)}[{key}]"
        if kind == INT:
            return self._write_int(depth)
        if kind == DOUBLE:
            return self._write_double(depth)
        if kind == STRING:
            return self._write_string(depth)
        if kind == BOOL:
            return self._write_bool(depth)
        return self._write_list(kind.item or STRING, depth)

    def _write_leaf(self, kind: Type) -> str:
        source = self._source
        if kind == INT:
            return source.choice((*_INTS, "query"))
        if kind == DOUBLE:
            return source.choice((*_DOUBLES, "last", "mean"))
        if kind == STRING:
            label = source.choice(_LABELS[:3] * 4 + _LABELS[3:])
            text = source.choice(_STRINGS)
            literal = json.dumps(text, ensure_ascii=False)
            return source.choice((literal, literal, "cluster", f"labels.{label}"))
        if kind == BOOL:
            return source.choice(("true", "false", f"has(labels.{source.choice(_LABELS)})"))
        if kind == NUMBERS:
            return source.choice(("values", "[]", "[0.5, 2.5]"))
        leaves = [self._write_leaf(kind.item or STRING) for _ in range(source.randint(1, 3))]
        return f"[{', '.join(leaves)}]"

    def _write_arithmetic(self, kind: Type, signs: Sequence[str], depth: int) -> str:
        sign = self._source.choice(signs)
        return f"({self._write(kind, depth - 1)} {sign} {self._write(kind, depth - 1)})"

    def _write_int(self, depth: int) -> str:
        return self._choose(
            lambda: self._write_arithmetic(INT, "+-*/%", depth),
            lambda: self._write_arithmetic(INT, "+-*/%", depth),
            lambda: f"-({self._write(INT, depth - 1)})",
            lambda: f"size({self._write(STRING, depth - 1)})",
            lambda: f"{self._write_list(self._source.choice(_SCALARS), depth - 1)}.size()",
            lambda: f"{self._write_map(INT, depth - 1)}.size()" if "map" not in self._left_out else "labels.size()",
            lambda: f"int({self._write(self._source.choice((INT, DOUBLE, STRING)), depth - 1)})",
        )

    def _write_double(self, depth: int) -> str:
        return self._choose(
            lambda: self._write_arithmetic(DOUBLE, "+-*/", depth),
            lambda: self._write_arithmetic(DOUBLE, "+-*/", depth),
            lambda: f"-({self._write(DOUBLE, depth - 1)})",
            lambda: f"double({self._write(self._source.choice((INT, DOUBLE, STRING)), depth - 1)})",
            lambda: f"values[{self._source.choice(('0', '1', 'query'))}]",
        )

    def _write_string(self, depth: int) -> str:
        kinds = (INT, STRING) if "string of bool" in self._left_out else (INT, STRING, BOOL)
        return self._choose(
            lambda: self._write_arithmetic(STRING, "+", depth),
            lambda: f"string({self._write(self._source.choice(kinds), depth - 1)})",
            lambda: f"labels[{self._write(STRING, depth - 1)}]",
        )

    def _write_bool(self, depth: int) -> str:
        method = self._source.choice(("contains", "startsWith", "endsWith"))
        return self._choose(
            lambda: self._write_arithmetic(BOOL, ("&&", "||"), depth),
            lambda: f"!({self._write(BOOL, depth - 1)})",
            lambda: self._write_comparison(depth),
            lambda: self._write_comparison(depth),
            lambda: f"{self._write(STRING, depth - 1)}.{method}({self._write(STRING, depth - 1)})",
            lambda: self._write_membership(depth),
            lambda: self._write_quantifier(depth),
        )

    def _write_comparison(self, depth: int) -> str:
        kind = self._source.choice((INT, DOUBLE, STRING))
        # Numbers are compared across types.
        is_mixed = kind.is_number and "mixed comparison" not in self._left_out
        other = self._source.choice((INT, DOUBLE)) if is_mixed else kind
        sign = self._source.choice(("==", "!=", "<", "<=", ">", ">="))
        if self._source.random() < 0.2:
            kind = other = self._source.choice((BOOL, NUMBERS, Type("list", STRING)))
            sign = self._source.choice(("==", "!="))
        return f"({self._write(kind, depth - 1)} {sign} {self._write(other, depth - 1)})"

    def _write_membership(self, depth: int) -> str:
        kind = self._source.choice(_SCALARS)
        if kind == STRING and self._source.random() < 0.5:
            return f"({self._write(STRING, depth - 1)} in labels)"
        return f"({self._write(kind, depth - 1)} in {self._write_list(kind, depth - 1)})"

    def _write_quantifier(self, depth: int) -> str:
        macro = self._source.choice(("all", "exists", "exists_one"))
        if self._source.random() < 0.25:
            return self._write_macro("labels", macro, STRING, BOOL, depth)
        kind = self._source.choice(_SCALARS)
        return self._write_macro(self._write_list(kind, depth - 1), macro, kind, BOOL, depth)

    def _write_macro(self, container: str, macro: str, item: Type, result: Type, depth: int) -> str:
        self._count += 1
        name = f"v{self._count}"
        self._items[name] = item
        body = self._write(result, depth - 1)
        if macro == "map" and "map with condition" not in self._left_out and self._source.random() < 0.3:
            body = f"{self._write(BOOL, depth - 1)}, {body}"
        del self._items[name]
        return f"{container}.{macro}({name}, {body})"

    def _write_list(self, item: Type, depth: int) -> str:
        if depth <= 0:
            return self._write_leaf(Type("list", item))
        return self._choose(
            lambda: self._write_leaf(Type("list", item)),
            lambda: f"[{', '.join(self._write(item, depth - 1) for _ in range(self._source.randint(1, 3)))}]",
            lambda: f"({self._write_list(item, depth - 1)} + {self._write_list(item, depth - 1)})",
            lambda: self._write_macro(self._write_list(item, depth - 1), "filter", item, BOOL, depth),
            lambda: self._write_mapping(item, depth),
        )

    def _write_mapping(self, item: Type, depth: int) -> str:
        before = self._source.choice(_SCALARS)
        return self._write_macro(self._write_list(before, depth - 1), "map", before, item, depth)

    def _write_map(self, item: Type, depth: int) -> str:
        keys = self._source.sample(("a", "n1", "paris", ""), self._source.randint(1, 3))
        return "{" + ", ".join(f'"{key}": {self._write(item, depth - 1)}' for key in keys) + "}"
