"""Checks the text of an expression, and compiles it to nested Python functions.

The parser reads the text once, by precedence climbing. Each operator becomes a function that calls the functions of its
operands; the text is never run as Python. A macro spends steps for each item, so that nested macros cannot run for
long.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from dsf.errors import ExpressionError
from dsf.expression.functions import FUNCTIONS, Function, check_int64, compute_remainder, divide, divide_ints
from dsf.expression.macros import MACROS, Items
from dsf.expression.scope import CHARACTERS_PER_STEP, EvaluationError, Run, Scope
from dsf.expression.types import ANY, BOOL, DOUBLE, INT, NULL, STRING, Type, is_accepted, unify

#: Maximum characters of an expression.
MAX_EXPRESSION_CHARACTERS: Final = 4096
#: Maximum number of operators, functions, variables and constants.
MAX_NODES: Final = 500
#: Maximum depth of nested terms, each of which needs a Python frame.
MAX_DEPTH: Final = 100
#: Maximum depth of nested brackets.
MAX_NESTING: Final = 40

_TOKEN_PATTERN: Final = re.compile(
    r"""(?P<space>[\s]+|//[^\n]*)
    |(?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<int>0x[0-9a-fA-F]+|[0-9]+)
    |(?P<string>[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>\|\||&&|[=!<>]=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE,
)
_ESCAPE_PATTERN: Final = re.compile(
    r"\\(?:[abfnrtv\\'\"`?]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|(?P<bad>.))"
)
_RESERVED: Final = {
    *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package"),
    *("namespace", "return", "var", "void", "while"),
}
#: Precedence of binary operators; higher values bind more strongly.
_PRECEDENCE: Final[Mapping[str, int]] = {
    "||": 1,
    "&&": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
    **dict.fromkeys("+-", 4),
    **dict.fromkeys("*/%", 5),
}
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DOUBLE_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divide,
}
_INT_OPERATORS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda lhs, rhs: check_int64(lhs + rhs),
    "-": lambda lhs, rhs: check_int64(lhs - rhs),
    "*": lambda lhs, rhs: check_int64(lhs * rhs),
    "/": divide_ints,
    "%": compute_remainder,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression whose value is a number, or null."""

    text: str
    #: Variables that the expression reads.
    variables: frozenset[str]
    #: Number of steps of one evaluation, without those for items of lists and characters of strings.
    size: int
    _run: Run

    def evaluate(self, scope: Scope) -> float | None:
        """Return the value for these variables; None for null. Raises EvaluationError."""
        try:
            value = self._run(scope)
            return None if value is None else float(value)
        except OverflowError:
            raise EvaluationError("a number beyond the range of a double") from None


def compile_expression(text: str, variables: Mapping[str, Type]) -> Expression:
    """Compile an expression that may read these variables. Raises ExpressionError, with the position of the error."""
    parser = _Parser(text, variables)
    term = parser.parse()
    if term.type not in (NULL, INT, DOUBLE, Type("int", is_nullable=True), Type("double", is_nullable=True)):
        raise ExpressionError(f"the value of the expression is {term.type}; a score is a number, or null")
    return Expression(text, frozenset(parser.reads), parser.size, term.run)


class _Token(NamedTuple):
    #: Group of `_TOKEN_PATTERN`, or `end` after the last token.
    kind: str
    text: str
    #: Position in the expression.
    start: int


class _Term(NamedTuple):
    """A compiled part of an expression."""

    type: Type
    run: Run
    #: Number of levels of nested terms, including this one.
    depth: int = 1


def _resolve_any_types(sign: str, lhs: _Term, rhs: _Term) -> tuple[_Term, _Term]:
    """Return the operands, with a type that the operator accepts in place of the type ANY.

    ANY is the type of items of an empty list, which no evaluation computes.
    """
    if sign == "in":
        if rhs.type == ANY:
            rhs = rhs._replace(type=Type("list", lhs.type))
        item = STRING if rhs.type.name == "map" else rhs.type.item or ANY
        return (lhs._replace(type=item) if lhs.type == ANY else lhs), rhs
    default_type = BOOL if sign in ("&&", "||") else INT
    kind = next((term.type for term in (lhs, rhs) if term.type != ANY), default_type)
    return lhs._replace(type=kind), rhs._replace(type=kind)


class _Parser:
    """Parser of one expression. Methods raise ExpressionError.

    `_parse_...` methods consume tokens; `_compile_...` methods check the types of operands and return a type with a
    function, or a term.
    """

    def __init__(self, text: str, variables: Mapping[str, Type]) -> None:
        if len(text) > MAX_EXPRESSION_CHARACTERS:
            raise ExpressionError(f"the expression has {len(text)} characters, more than {MAX_EXPRESSION_CHARACTERS}")
        self._text = text
        self._variables = dict(variables)
        #: Item variables of the enclosing macros.
        self._items: dict[str, Type] = {}
        #: Variables that the expression reads.
        self.reads: set[str] = set()
        self._nodes = 0
        self._nesting = 0
        self._tokens = self._tokenize()
        self._next = 0

    @property
    def size(self) -> int:
        """Number of parsed operators, functions and values."""
        return self._nodes

    def parse(self) -> _Term:
        """Parse the whole text."""
        term = self._parse_expression()
        if (token := self._peek()).kind != "end":
            raise self._make_error(token, f"unexpected {token.text!r}")
        return term

    def _tokenize(self) -> list[_Token]:
        tokens = []
        position = 0
        while position < len(self._text):
            match = _TOKEN_PATTERN.match(self._text, position)
            if match is None:
                character = self._text[position]
                problem = "a text without its end" if character in "\"'" else f"unexpected {character!r}"
                raise self._make_error(_Token("", "", position), problem)
            if match.lastgroup != "space":
                tokens.append(_Token(match.lastgroup or "", match[0], position))
            position = match.end()
        return [*tokens, _Token("end", "the end", len(self._text))]

    def _make_error(self, token: _Token, problem: str) -> ExpressionError:
        text_before = self._text[: token.start]
        line, column = text_before.count("\n") + 1, token.start - text_before.rfind("\n")
        location = f"line {line}, column {column}" if "\n" in self._text.strip() else f"column {column}"
        return ExpressionError(f"{location}: {problem}")

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _consume(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _consume_if(self, sign: str) -> bool:
        """Consume the next token and return True if it is this operator, bracket or keyword."""
        token = self._peek()
        is_match = token.kind in ("sign", "name") and token.text == sign
        self._next += is_match
        return is_match

    def _expect(self, sign: str) -> None:
        if not self._consume_if(sign):
            token = self._peek()
            raise self._make_error(token, f"expected {sign!r} and not {token.text!r}")

    def _make_term(self, token: _Token, kind: Type, run: Run, *subterms: _Term) -> _Term:
        """Count a node, and return its term. The token is the position of errors about the limits."""
        self._nodes += 1
        depth = 1 + max((term.depth for term in subterms), default=0)
        if self._nodes > MAX_NODES:
            raise self._make_error(token, f"the expression has more than {MAX_NODES} operators, functions and values")
        if depth > MAX_DEPTH:
            raise self._make_error(token, f"the expression has more than {MAX_DEPTH} levels")
        return _Term(kind, run, depth)

    def _parse_expression(self) -> _Term:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise self._make_error(self._peek(), f"more than {MAX_NESTING} brackets within one another")
        term = self._parse_binary(1)
        token = self._peek()
        if self._consume_if("?"):
            term = self._parse_choice(token, term)
        self._nesting -= 1
        return term

    def _parse_choice(self, token: _Token, condition: _Term) -> _Term:
        if condition.type not in (BOOL, ANY):
            raise self._make_error(token, f"the condition before '?' is {condition.type}, not bool")
        first = self._parse_binary(1)
        self._expect(":")
        second = self._parse_expression()
        kind = unify(first.type, second.type)
        if kind is None:
            raise self._make_error(token, f"one value of '?' is {first.type} and the other {second.type}")
        test, then, other = condition.run, first.run, second.run
        return self._make_term(
            token, kind, lambda scope: then(scope) if test(scope) else other(scope), condition, first, second
        )

    def _parse_binary(self, min_precedence: int) -> _Term:
        lhs = self._parse_unary()
        while (
            precedence := _PRECEDENCE.get((token := self._peek()).text, 0)
        ) >= min_precedence and token.kind != "string":
            self._consume()
            rhs = self._parse_binary(precedence + 1)
            lhs = self._apply_operator(token, lhs, rhs)
        return lhs

    def _apply_operator(self, token: _Token, lhs: _Term, rhs: _Term) -> _Term:
        sign = token.text
        if lhs.type == rhs.type == ANY and _PRECEDENCE[sign] > _PRECEDENCE["in"]:
            return self._make_term(token, ANY, lhs.run, lhs, rhs)
        if ANY in (lhs.type, rhs.type):
            lhs, rhs = _resolve_any_types(sign, lhs, rhs)
        if sign in ("&&", "||"):
            kind, run = self._compile_logical(token, lhs, rhs)
        elif sign in ("==", "!="):
            kind, run = self._compile_equality(token, lhs, rhs)
        elif sign in _COMPARISONS:
            kind, run = self._compile_order(token, lhs, rhs)
        elif sign == "in":
            kind, run = self._compile_membership(token, lhs, rhs)
        else:
            kind, run = self._compile_arithmetic(token, lhs, rhs)
        return self._make_term(token, kind, run, lhs, rhs)

    def _make_mismatch_error(self, token: _Token, lhs: _Term, rhs: _Term) -> ExpressionError:
        return self._make_error(token, f"{lhs.type} {token.text} {rhs.type} is not possible")

    def _compile_logical(self, token: _Token, lhs: _Term, rhs: _Term) -> tuple[Type, Run]:
        if (lhs.type, rhs.type) != (BOOL, BOOL):
            raise self._make_mismatch_error(token, lhs, rhs)
        deciding_value = token.text == "||"

        def run(scope: Scope, first: Run = lhs.run, second: Run = rhs.run) -> bool:
            try:
                is_true = bool(first(scope))
            except EvaluationError:
                # As in CEL, one side may decide the result even if the other side has an error.
                if bool(second(scope)) is deciding_value:
                    return deciding_value
                raise
            return deciding_value if is_true is deciding_value else bool(second(scope))

        return BOOL, run

    def _compile_equality(self, token: _Token, lhs: _Term, rhs: _Term) -> tuple[Type, Run]:
        if unify(lhs.type, rhs.type) is None:
            raise self._make_mismatch_error(token, lhs, rhs)
        has_content = lhs.type.item is not None or lhs.type.name == "string"
        is_equal = token.text == "=="

        def run(scope: Scope, first: Run = lhs.run, second: Run = rhs.run) -> bool:
            value = first(scope)
            if has_content:
                scope.spend_content(value)
            return bool((value == second(scope)) is is_equal)

        return BOOL, run

    def _compile_order(self, token: _Token, lhs: _Term, rhs: _Term) -> tuple[Type, Run]:
        are_numbers = lhs.type.is_number and rhs.type.is_number
        if not are_numbers and not (lhs.type == rhs.type and lhs.type in (STRING, BOOL)):
            raise self._make_mismatch_error(token, lhs, rhs)
        compare = _COMPARISONS[token.text]
        if lhs.type != STRING:
            return BOOL, lambda scope, first=lhs.run, second=rhs.run: compare(first(scope), second(scope))

        def run(scope: Scope, first: Run = lhs.run, second: Run = rhs.run) -> bool:
            text = first(scope)
            scope.spend_content(text)
            return compare(text, second(scope))

        return BOOL, run

    def _compile_membership(self, token: _Token, lhs: _Term, rhs: _Term) -> tuple[Type, Run]:
        item = STRING if rhs.type.name == "map" else rhs.type.item
        if item is None or rhs.type.is_nullable or unify(lhs.type, item) is None:
            raise self._make_mismatch_error(token, lhs, rhs)

        def run(scope: Scope, first: Run = lhs.run, second: Run = rhs.run) -> bool:
            value, container = first(scope), second(scope)
            if isinstance(container, Mapping):
                return value in container
            scope.spend_content(container)
            # Compare by `==`, because Python's `in` finds a not-a-number equal to itself.
            return any(value == member for member in container)

        return BOOL, run

    def _compile_arithmetic(self, token: _Token, lhs: _Term, rhs: _Term) -> tuple[Type, Run]:
        sign, types = token.text, {lhs.type, rhs.type}
        operate: Callable[[Any, Any], Any] | None = None
        kind = lhs.type
        if types == {INT}:
            operate = _INT_OPERATORS[sign]
        elif lhs.type.is_number and rhs.type.is_number:
            # Convert an int if the other operand is a double. In CEL, 100 * 0.5 is an error.
            operate, kind = _DOUBLE_OPERATORS.get(sign), DOUBLE
        elif sign == "+" and types == {STRING}:
            return kind, _compile_join(lhs.run, rhs.run)
        elif sign == "+" and lhs.type.name == rhs.type.name == "list" and unify(lhs.type, rhs.type):
            return unify(lhs.type, rhs.type) or kind, _compile_concatenation(lhs.run, rhs.run)
        if operate is None:
            hint = "; convert a text by double()" if STRING in types and len(types) > 1 else ""
            hint = "; it takes ints: int()" if sign == "%" and not hint else hint
            raise self._make_error(token, f"{lhs.type} {sign} {rhs.type} is not possible{hint}")
        return kind, lambda scope, first=lhs.run, second=rhs.run: operate(first(scope), second(scope))

    def _parse_unary(self) -> _Term:
        token = self._peek()
        if not (self._consume_if("-") or self._consume_if("!")):
            return self._parse_member()
        if token.text == "-" and self._peek().kind == "int" and self._tokens[self._next + 1].text not in (".", "["):
            # Parse the sign with the number, because the lowest int has no positive counterpart.
            number = self._consume()
            return self._compile_constant(number, -int(number.text, 0 if "x" in number.text else 10))
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise self._make_error(token, f"more than {MAX_NESTING} brackets and signs within one another")
        term = self._parse_unary()
        self._nesting -= 1
        run = term.run
        if token.text == "!":
            if term.type not in (BOOL, ANY):
                raise self._make_error(token, f"!{term.type} is not possible")
            return self._make_term(token, BOOL, lambda scope: not run(scope), term)
        if not (term.type.is_number or term.type == ANY):
            raise self._make_error(token, f"-{term.type} is not possible")
        if term.type == INT:
            return self._make_term(token, INT, lambda scope: check_int64(-run(scope)), term)
        return self._make_term(token, DOUBLE, lambda scope: -run(scope), term)

    def _parse_member(self) -> _Term:
        term = self._parse_primary()
        while True:
            token = self._peek()
            if self._consume_if("."):
                name = self._parse_name()
                if self._consume_if("("):
                    term = self._parse_macro(name, term) if name.text in MACROS else self._parse_method(name, term)
                else:
                    term = self._compile_item(name, term, self._compile_constant(name, name.text), is_field=True)
            elif self._consume_if("["):
                index = self._parse_expression()
                self._expect("]")
                term = self._compile_item(token, term, index)
            else:
                return term

    def _parse_name(self) -> _Token:
        token = self._consume()
        if token.kind != "name" or token.text in ("true", "false", "null", "in"):
            raise self._make_error(token, f"expected a name and not {token.text!r}")
        return token

    def _compile_item(self, token: _Token, container: _Term, index: _Term, *, is_field: bool = False) -> _Term:
        kind = container.type.item
        if container.type.name == "list" and kind is not None and index.type in (INT, ANY) and not is_field:
            return self._make_term(token, kind, _compile_list_item(container.run, index.run), container, index)
        if container.type.name == "map" and kind is not None and index.type in (STRING, ANY):
            return self._make_term(token, kind, _compile_map_item(container.run, index.run), container, index)
        suffix = f".{token.text}" if is_field else f"[{index.type}]"
        raise self._make_error(token, f"{container.type}{suffix} is not possible")

    def _parse_primary(self) -> _Term:
        token = self._consume()
        if token.kind == "int":
            return self._compile_constant(token, int(token.text, 16 if "x" in token.text else 10))
        if token.kind == "double":
            return self._compile_constant(token, float(token.text))
        if token.kind == "string":
            return self._compile_constant(token, self._parse_literal(token))
        if token.kind == "name":
            return self._parse_identifier(token)
        if token.text == "(":
            term = self._parse_expression()
            self._expect(")")
            return term
        if token.text == "[":
            return self._parse_list(token)
        if token.text == "{":
            return self._parse_map(token)
        raise self._make_error(token, f"expected a value and not {token.text!r}")

    def _compile_constant(self, token: _Token, value: Any) -> _Term:
        if self._peek().kind == "name" and self._peek().start == token.start + len(token.text):
            raise self._make_error(self._peek(), f"unexpected {self._peek().text!r} after {token.text!r}")
        kind = {bool: BOOL, int: INT, float: DOUBLE, str: STRING}.get(type(value), NULL)
        if kind == INT:
            try:
                check_int64(value)
            except EvaluationError:
                raise self._make_error(token, f"{token.text} has more than 64 bits") from None
        return self._make_term(token, kind, lambda _: value)

    def _parse_literal(self, token: _Token) -> str:
        if token.text[0] in "rR":
            return token.text[2:-1]
        content = token.text[1:-1]
        if bad_escape := next((match for match in _ESCAPE_PATTERN.finditer(content) if match["bad"]), None):
            raise self._make_error(
                token._replace(start=token.start + 1 + bad_escape.start()), f"unknown escape {bad_escape[0]!r}"
            )
        text = _ESCAPE_PATTERN.sub(
            lambda match: {r"\`": "`", r"\?": "?"}.get(match[0], match[0].replace("X", "x")), content
        )
        quote = token.text[0]
        try:
            value = str(ast.literal_eval(f"{quote}{text}{quote}"))
            value.encode()
        except (ValueError, SyntaxError):
            # Encoding half of a surrogate pair raises UnicodeError, which is a ValueError.
            raise self._make_error(token, "a text with an invalid escape") from None
        return value

    def _parse_identifier(self, token: _Token) -> _Term:
        name = token.text
        if name in ("true", "false", "null"):
            return self._compile_constant(token, {"true": True, "false": False}.get(name))
        if self._consume_if("("):
            return self._parse_has(token) if name == "has" else self._parse_call(token, ())
        kind = self._items.get(name) or self._variables.get(name)
        if kind is None or name in _RESERVED:
            hint = ", ".join(sorted({**self._variables, **self._items}))
            is_function = name in FUNCTIONS or name == "has"
            problem = f"{name} is a function: {name}(...)" if is_function else f"there is no variable {name!r}"
            raise self._make_error(token, f"{problem}; the variables are {hint}")
        if name not in self._items:
            self.reads.add(name)
        return self._make_term(token, kind, operator.itemgetter(name))

    def _parse_arguments(self, closing: str) -> list[_Term]:
        terms: list[_Term] = []
        while not self._consume_if(closing):
            if terms:
                self._expect(",")
                if closing in "]}" and self._consume_if(closing):
                    break
            terms.append(self._parse_expression())
        return terms

    def _parse_list(self, token: _Token) -> _Term:
        terms = self._parse_arguments("]")
        item = self._find_common_type(token, terms)
        runs = [term.run for term in terms]
        return self._make_term(token, Type("list", item), lambda scope: [run(scope) for run in runs], *terms)

    def _find_common_type(self, token: _Token, terms: Sequence[_Term]) -> Type:
        item = ANY
        for term in terms:
            kind = unify(item, term.type)
            if kind is None:
                raise self._make_error(token, f"{item} and {term.type} in one list or map")
            item = kind
        return item

    def _parse_map(self, token: _Token) -> _Term:
        entries: list[tuple[_Term, _Term]] = []
        while not self._consume_if("}"):
            if entries:
                self._expect(",")
                if self._consume_if("}"):
                    break
            key = self._parse_expression()
            if key.type != STRING:
                raise self._make_error(token, f"a key of a map is {key.type}; it must be a string")
            self._expect(":")
            entries.append((key, self._parse_expression()))
        item = self._find_common_type(token, [value for _, value in entries])
        runs = [(key.run, value.run) for key, value in entries]

        def run(scope: Scope) -> dict[str, Any]:
            result: dict[str, Any] = {}
            for key, value in runs:
                name = key(scope)
                if name in result:
                    raise EvaluationError(f"the map has the key {name!r} twice")
                result[name] = value(scope)
            return result

        return self._make_term(token, Type("map", item), run, *(term for entry in entries for term in entry))

    def _parse_has(self, token: _Token) -> _Term:
        term = self._parse_expression()
        self._expect(")")
        dot, field = self._tokens[self._next - 3 : self._next - 1]
        if dot.text != "." or field.kind != "name":
            raise self._make_error(token, "has() takes a field, such as has(labels.node)")
        run = term.run

        def is_present(scope: Scope) -> bool:
            try:
                run(scope)
            except _MissingKeyError:
                return False
            return True

        return self._make_term(token, BOOL, is_present, term)

    def _parse_method(self, token: _Token, receiver: _Term) -> _Term:
        return self._parse_call(token, (receiver,))

    def _parse_call(self, token: _Token, receiver: tuple[_Term, ...]) -> _Term:
        function = FUNCTIONS.get(token.text)
        terms = [*receiver, *self._parse_arguments(")")]
        if function is None or not (function.is_method if receiver else function.is_global):
            text = f"x.{token.text}()" if receiver else f"{token.text}()"
            names = [f"x.{macro}()" for macro in MACROS] + ["has()"]
            for name, other in FUNCTIONS.items():
                names += [f"{name}()"] * other.is_global + [f"x.{name}()"] * (other.is_method and not other.is_global)
            raise self._make_error(token, f"there is no function {text}; the functions are {', '.join(sorted(names))}")
        self._check_arguments(token, function, terms)
        self.reads |= function.reads
        if absent_variables := function.reads - self._variables.keys():
            raise self._make_error(
                token, f"{token.text}() needs a series, which has {', '.join(sorted(absent_variables))}"
            )
        call, runs = function.call, [term.run for term in terms]
        # Call functions of one argument without a loop, which would cost as much as the function itself.
        if len(runs) == 1:
            (argument,) = runs
            return self._make_term(token, function.result, lambda scope: call(scope, argument(scope)), *terms)
        return self._make_term(token, function.result, lambda scope: call(scope, *[run(scope) for run in runs]), *terms)

    def _check_arguments(self, token: _Token, function: Function, terms: Sequence[_Term]) -> None:
        if len(terms) != len(function.parameters):
            raise self._make_error(
                token, f"{token.text}() takes {len(function.parameters)} values and not {len(terms)}"
            )
        for number, (parameter, term) in enumerate(zip(function.parameters, terms, strict=True), 1):
            if not any(is_accepted(kind, term.type) for kind in parameter):
                kinds = " or ".join(str(replace(kind, item=None) if kind.item == ANY else kind) for kind in parameter)
                raise self._make_error(token, f"value {number} of {token.text}() is {term.type} and not {kinds}")

    def _parse_macro(self, token: _Token, receiver: _Term) -> _Term:
        kind = receiver.type
        item = STRING if kind.name == "map" else kind.item
        if item is None or kind.is_nullable:
            raise self._make_error(token, f"{kind}.{token.text}() is not possible")
        name = self._parse_name().text
        if name in _RESERVED or name in self._variables or name in self._items:
            raise self._make_error(
                token, f"{token.text}(): {name!r} cannot be the name of an item, it has a meaning already"
            )
        self._expect(",")
        nodes_before = self._nodes
        self._items[name] = item
        terms = [self._parse_expression()]
        if token.text == "map" and self._consume_if(","):
            terms.append(self._parse_expression())
        del self._items[name]
        self._expect(")")
        if token.text != "map" or len(terms) > 1:
            self._check_test(token, terms[0])
        cost = self._nodes - nodes_before + 1
        run = MACROS[token.text](Items(receiver.run, name, cost), *(term.run for term in terms))
        result = {"filter": Type("list", item), "map": Type("list", terms[-1].type)}.get(token.text, BOOL)
        return self._make_term(token, result, run, receiver, *terms)

    def _check_test(self, token: _Token, term: _Term) -> None:
        if term.type not in (BOOL, ANY):
            raise self._make_error(token, f"the condition of {token.text}() is {term.type}, not bool")


class _MissingKeyError(EvaluationError):
    """A map lacks the key that the expression reads."""


def _compile_list_item(container: Run, index: Run) -> Run:
    def run(scope: Scope) -> Any:
        values, number = container(scope), index(scope)
        if not 0 <= number < len(values):
            raise EvaluationError(f"the list has {len(values)} items and none at {number}")
        return values[number]

    return run


def _compile_map_item(container: Run, index: Run) -> Run:
    def run(scope: Scope) -> Any:
        values, key = container(scope), index(scope)
        try:
            return values[key]
        except KeyError:
            raise _MissingKeyError(f"there is no {key[:80]!r}: neither label nor key") from None

    return run


def _compile_concatenation(lhs: Run, rhs: Run) -> Run:
    def run(scope: Scope) -> list[Any]:
        first, second = lhs(scope), rhs(scope)
        scope.spend(len(first) + len(second))
        return [*first, *second]

    return run


def _compile_join(lhs: Run, rhs: Run) -> Run:
    def run(scope: Scope) -> str:
        first, second = lhs(scope), rhs(scope)
        scope.spend((len(first) + len(second)) // CHARACTERS_PER_STEP)
        return f"{first}{second}"

    return run
