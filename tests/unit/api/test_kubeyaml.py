"""YAML as Kubernetes reads it. Expected values come from sigs.k8s.io/yaml (its goyaml.v2/resolve.go)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsf.api.kubeyaml import YamlError, load


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((word, True) for word in ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")),
        *((word, False) for word in ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")),
        *((word, None) for word in ("~", "null", "Null", "NULL", "")),
        *((word, word) for word in ("yEs", "oN", "nULL", "yess", "=", "'on'", "!!str on")),
        ("1:30", "1:30"),
        ("22:33:44", "22:33:44"),
        ("-1:30.5", "-1:30.5"),
        ("2001-12-14", "2001-12-14"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("2001-12-14 21:59:43", "2001-12-14 21:59:43"),
        ("!!timestamp 2", "2"),
        ("0", 0),
        ("-0", 0),
        ("12", 12),
        ("+12", 12),
        ("1_000", 1000),
        ("010", 8),
        ("0o10", 8),
        ("-010", -8),
        ("08", 8),
        ("0x1F", 31),
        ("-0x1f", -31),
        ("0b101", 5),
        ("0_", 0),
        ("18446744073709551616", 18446744073709551616),
        ("1.5", 1.5),
        ("1.", 1),
        (".5", 0.5),
        ("30.0", 30),
        ("1e3", 1000),
        ("1.5e-3", 0.0015),
        ("1e400", math.inf),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("1.2.3", "1.2.3"),
        ("10m", "10m"),
        ("1e", "1e"),
        ("0x", "0x"),
        ("--1", "--1"),
        ("{on: 1, 2: x, 1.5: z, a: 3}", {"true": 1, "2": "x", "1.5": "z", "a": 3}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("!!float 3", 3),
        ("!!bool yes", True),
    ],
)
def test_values(text: str, expected: object) -> None:
    loaded = load(text.strip("'") if text != "'on'" else "'on'")
    expected_value = {"'on'": "on", "!!str on": "on"}.get(text, expected)
    assert loaded == expected_value
    assert type(loaded) is type(expected_value)


def test_not_a_number() -> None:
    assert math.isnan(load(".nan"))


@pytest.mark.parametrize(
    "text",
    [
        "!!int 9_9:99[",
        "!!int ",
        "!!int x",
        "!!float ''",
        "!!bool maybe",
        "!!int " + "9" * 5000,
        "!!set {a}",
        "!!python/object:os.system x",
        "!!binary aGk=",
        "? [a]\n: b",
        "{~: 1}",
        "<<: 5",
        "&a [*a]",
        "[" * 200_000,
        "{a: " * 200_000,
        "- " * 200_000,
        "? " * 200_000,
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
        # An alias that is used as a key is not expanded.
        "a0: &a0 [x]\n" + "".join(f"? &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n: 1\n" for n in range(1, 12)),
        "a0: &a0 {k: v}\n"
        + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}], k{n}: v}}\n" for n in range(1, 20)),
    ],
)  # fmt: skip
def test_hazards_are_errors_of_our_own(text: str) -> None:
    with pytest.raises(YamlError, match=r"^line \d+: "):
        load(text)


@settings(deadline=None, max_examples=300)
@given(
    st.text(alphabet="ab01-+._:~!&*<>{}[]|?,'\"#% \n\toynEefx", max_size=60)
    | st.lists(st.sampled_from(["!!int ", "!!map ", "&a ", "*a ", "<<: ", "- ", "[", "]", "{", "}", ": ", "9", "\n"]),
               max_size=30).map("".join)
)  # fmt: skip
def test_any_text_is_data_or_an_error_of_our_own(text: str) -> None:
    try:
        load(text)
    except YamlError:
        return
