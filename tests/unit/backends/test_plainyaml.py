"""What is written as YAML is what PyYAML writes, letter by letter."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml

from dsf.backends.plainyaml import WIDTH, dump

_TEXTS = (
    "", " ", "a", "node1", "a b", " a", "a ", "-", "- a", "?", ": a", "a: b", "a:b", "a #b", "a#b", "#", "'",
    '"', "it's", "yes", "No", "on", "null", "~", "true", "y", "1", "0x1f", "0o7", "017", "1_000", "1.5", "1e3",
    "1.e+3", ".5", "-.inf", ".nan", "=", "<<", "2026-11-24", "2026-11-24T09:44:45Z", "2026-11-24 09:44:45",
    "12:30:45", "1:2", "!a", "&a", "*a", "[a", "{a", "a]", "a,b", "|", ">", "%a", "@a", "`a", "---", "...",
    "--- a", "a\nb", "a\n", "\n", "\ta", "a\tb", "\x85", "a\u2028b", "\ufeffa", "\x00", "\x7f", "é", "日本", "😀",
    "\\", "a\\nb", "10 score items are up to date", "a961a9d8-24e4-4672-9ccc-cb7dc47789e6",
    "12345678-1234-1234-1234-123456789012", "00000000-0000-0000-0000-0000000000e1", "a" * 99, "a" * 101,
    "a" * 130, "word " * 19 + "end", "word " * 22 + "end", "word " * 40, "é " * 50, "a: " * 33,
)  # fmt: skip


class _Whole(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _pyyaml(data: Any) -> str:
    text: str = yaml.dump(data, Dumper=_Whole, sort_keys=False, allow_unicode=True, width=WIDTH)
    return text


@pytest.mark.parametrize("text", _TEXTS)
def test_a_text_is_written_as_by_pyyaml(text: str) -> None:
    for data in ({"key": text}, {text: 1}, {"a": {"b": [text, {"c": text}]}}, {"a": [{text: text}]}, text, [text]):
        assert dump(data) == _pyyaml(data)


@pytest.mark.parametrize("seed", range(40))
def test_any_plain_data_is_written_as_by_pyyaml(seed: int) -> None:
    draw = random.Random(seed)

    def text() -> str:
        if draw.random() < 0.6:
            return draw.choice(_TEXTS)
        return "".join(draw.choices("ab1- :#'\"é.,_/T0Z~", k=draw.randrange(40)))

    def anything(depth: int) -> Any:
        kind = draw.randrange(10 if depth else 7)
        if kind > 7:
            return [anything(depth - 1) for _ in range(draw.randrange(4))]
        if kind == 7:
            return {text(): anything(depth - 1) for _ in range(draw.randrange(4))}
        return (text, text, text, lambda: draw.choice((True, False, None)), lambda: draw.randrange(-99, 10**9),
                lambda: draw.choice((0.5, 1e300, float("inf"))), lambda: draw.choice(({}, [])))[kind]()  # fmt: skip

    for _ in range(50):
        data = {f"key{number}": anything(4) for number in range(draw.randrange(1, 5))}
        assert dump(data) == _pyyaml(data)
