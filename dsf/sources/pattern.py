"""Regular expressions of label matchers, in a time that only grows with the length of the value.

Python's own engine may take hours for an expression that somebody chose badly, and holds up the whole agent meanwhile.
Prometheus' engine never does; this one works in the same way, on sets of states, and knows the part of its syntax that
matchers are written in: literals, `.`, classes, `\\d \\w \\s`, groups, `|`, `* + ? {n,m}`, `^`, `$`, and `(?i)` at the
beginning. A match is always of the whole value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

#: Longest expression in characters, most states of one, deepest nesting of groups.
_MAX_LENGTH, _MAX_STATES, _MAX_DEPTH = 1000, 2000, 50
#: Steps that are remembered.
_MAX_KNOWN = 10_000

_TOKEN = re.compile(
    r"(?P<repeat>[*+?]\??|\{\d+(?:,\d*)?\}\??)|(?P<cls>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<escape>\\.)"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<alternative>\|)|(?P<anchor>[\^$])|(?P<char>.)",
    re.DOTALL,
)
_COUNTS = re.compile(r"\{(\d+)(,?)(\d*)\}")

_Test = Callable[[str], object]


class PatternError(ValueError):
    """Not an expression of the kind that is understood here; the message says why."""


class Pattern:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        if len(text) > _MAX_LENGTH:
            raise PatternError(f"it has more than {_MAX_LENGTH} characters")
        self.text = text
        self._flags = re.DOTALL
        if text.startswith("(?i)"):
            self._flags, text = self._flags | re.IGNORECASE, text[4:]
        self._tokens = list(_TOKEN.finditer(text))
        self._position = 0
        #: State -> where it leads to without a character, or with one; the last state is the accepting one.
        self._empty: list[tuple[int, ...]] = []
        self._tests: list[tuple[_Test, int] | None] = []
        self._anchors: dict[int, str] = {}
        start, self._accepting = self._alternatives(0)
        if self._position < len(self._tokens):
            raise PatternError("a ) has no (")
        self._start = self._closed([start], "^")
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, value: str) -> bool:
        """Whether the whole value matches."""
        states = self._start
        for char in value:
            states = self._step(states, char)
            if not states:
                return False
        return self._accepting in self._closed(states, "^$" if not value else "$")

    def _step(self, states: frozenset[int], char: str) -> frozenset[int]:
        found = self._known.get((states, char))
        if found is None:
            nexts = [step[1] for state in states if (step := self._tests[state]) is not None and step[0](char)]
            found = self._closed(nexts, "")
            if len(self._known) < _MAX_KNOWN:
                self._known[states, char] = found
        return found

    def _closed(self, states: Iterable[int], anchors: str) -> frozenset[int]:
        """These states and all that they lead to without a character, at a place where `anchors` hold."""
        found: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state in found:
                continue
            found.add(state)
            if self._anchors.get(state, "") in anchors:
                waiting += self._empty[state]
        return frozenset(found)

    # --- from text to states; each part has a first and a last state ------------------------------------------------

    def _state(self, *nexts: int) -> int:
        if len(self._empty) >= _MAX_STATES:
            raise PatternError("it is too large; its repetitions are counted out")
        self._empty.append(nexts)
        self._tests.append(None)
        return len(self._empty) - 1

    def _link(self, state: int, *nexts: int) -> None:
        self._empty[state] += nexts

    def _peek(self) -> str | None:
        return self._tokens[self._position].lastgroup if self._position < len(self._tokens) else None

    def _alternatives(self, depth: int) -> tuple[int, int]:
        if depth > _MAX_DEPTH:
            raise PatternError(f"its groups are more than {_MAX_DEPTH} deep")
        first, last = self._state(), self._state()
        while True:
            begin, end = self._sequence(depth)
            self._link(first, begin)
            self._link(end, last)
            if self._peek() != "alternative":
                return first, last
            self._position += 1

    def _sequence(self, depth: int) -> tuple[int, int]:
        first = last = self._state()
        while self._peek() not in (None, "alternative", "close"):
            begin, end = self._repeated(depth)
            self._link(last, begin)
            last = end
        return first, last

    def _repeated(self, depth: int) -> tuple[int, int]:
        at = self._position
        part = self._atom(depth)
        if self._peek() != "repeat":
            return part
        token = self._tokens[self._position][0]
        after = self._position + 1
        least, most = _counts(token)
        first = last = self._state()
        # The part once for each time that it may occur; without an end, the last one leads back to itself.
        for count in range(max(least, 1) if most is None else most):
            if count:
                self._position = at
                part = self._atom(depth)
            self._link(last, part[0])
            if count >= least:
                self._link(last, part[1])
            last = part[1]
        if most is None:
            self._link(part[1], part[0])
        self._position = after
        if self._peek() == "repeat":
            raise PatternError(f"{token}{self._tokens[after][0]} repeats a repetition")
        return first, last

    def _atom(self, depth: int) -> tuple[int, int]:
        token = self._tokens[self._position]
        self._position += 1
        match token.lastgroup:
            case "open":
                part = self._alternatives(depth + 1)
                if self._peek() != "close":
                    raise PatternError("a ( has no )")
                self._position += 1
                return part
            case "repeat":
                raise PatternError(f"there is nothing for {token[0]} to repeat")
            case "anchor":
                last = self._state()
                first = self._state(last)
                self._anchors[first] = token[0]
                return first, last
        last = self._state()
        first = self._state()
        self._tests[first] = (self._test(token), last)
        return first, last

    def _test(self, token: re.Match[str]) -> _Test:
        """Whether a character is one that the token means: Python's engine decides about single characters."""
        text = token[0]
        if token.lastgroup == "escape" and (text[1].isdigit() or text[1] in "AZbBz"):
            raise PatternError(f"{text} is not supported")
        if token.lastgroup == "cls" and ("[" in text[1:] or "--" in text or "&&" in text):
            raise PatternError(f"in {text}, write special characters with a backslash")
        if text == "[":
            raise PatternError("a [ has no ]")
        if token.lastgroup == "char" and text != ".":
            text = re.escape(text)
        try:
            return re.compile(text, self._flags | re.ASCII).fullmatch
        except re.error as error:
            raise PatternError(f"{text}: {error}") from None


def _counts(token: str) -> tuple[int, int | None]:
    """Least and most times; None is without end."""
    counts = _COUNTS.match(token)
    if counts is None:
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[token[0]]
    least = int(counts[1])
    most = least if not counts[2] else int(counts[3]) if counts[3] else None
    if max(least, most or 0) > _MAX_LENGTH or (most is not None and most < least):
        raise PatternError(f"{token} is no number of repetitions")
    return least, most
