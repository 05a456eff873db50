"""Selectors: selected series, and refused expressions."""

from __future__ import annotations

import time

import pytest

from dsf.otlp.selector import SelectorError, parse_selectors, to_prometheus_name

LABELS = {"__name__": "system_memory_usage", "state": "free", "k8s_node_name": "n1"}


@pytest.mark.parametrize(
    ("query", "selected"),
    [
        ("system_memory_usage", True),
        ("system.memory.usage", True),
        ("system_memory", False),
        ("system_memory_usage{}", True),
        ('system_memory_usage{state="free"}', True),
        ("system_memory_usage{ state = 'free' , k8s.node.name=`n1`, }", True),
        ('system_memory_usage{state!="free"}', False),
        ('system_memory_usage{state=~"fr.*|used"}', True),
        ('system_memory_usage{state=~"fre"}', False),
        ('system_memory_usage{state!~"used"}', True),
        ('{state="free"}', True),
        ('{__name__=~"system_.*"}', True),
        ('system_memory_usage{absent=""}', True),
        ('system_memory_usage{absent!=""}', False),
        (r'system_memory_usage{state="\"free\""}', False),
    ],
)
def test_selector_matches_labels(query: str, selected: bool) -> None:
    (selector,) = parse_selectors(query)
    assert selector.matches(LABELS) is selected


def test_several_queries_are_joined_by_semicolons() -> None:
    first, second = parse_selectors('a{b=";"}; c ;')
    assert (first.name, first.matchers[0].value, second.name) == ("a", ";", "c")
    assert parse_selectors("") == ()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("rate(x[1m])", "functions need a Prometheus"),
        ("x + y", "is not a selector"),
        ("x[5m]", "is not a selector"),
        ("{}", "nothing in particular"),
        ('x{a="b"', "is not a selector"),
        ("x{a=b}", 'expected label="value"'),
        ('x{a="b" c="d"}', "expected a comma"),
        ('x{a=~"("}', "cannot be used: missing ): ("),
    ],
)
def test_invalid_selector_is_refused_with_its_reason(query: str, words: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selectors(query)
    assert words in str(caught.value)


def test_names_of_opentelemetry_become_those_of_prometheus() -> None:
    assert to_prometheus_name("http.server.duration") == "http_server_duration"
    assert to_prometheus_name("2xx-rate/s") == "_2xx_rate_s"
    assert to_prometheus_name("ok_1") == "ok_1"
    assert to_prometheus_name("é") == "_"


@pytest.mark.parametrize(
    ("expression", "value", "matches"),
    [
        ("", "", True),
        ("web", "web-1", False),
        ("prod|staging", "staging", True),
        ("(?i)PROD", "prod", True),
        (r"10\.0\..*", "10a0.1", False),
        ("[[:alpha:]]+", "web", True),
        (r"\pL.", "éa", True),
        ("a.b", "a\nb", True),
        ("a", "a\ud800", False),
    ],
)
def test_expressions_are_those_of_prometheus(expression: str, value: str, matches: bool) -> None:
    (selector,) = parse_selectors(f"m{{x=~`{expression}`}}")
    assert selector.matches({"__name__": "m", "x": value}) is matches


@pytest.mark.parametrize("expression", ["(a*)*b", "(a|a)*b", "(a?){30}a{30}b", "(.*)(.*)(.*)(.*)(.*)x", ".*a.{900}"])
def test_expression_is_matched_in_linear_time(expression: str) -> None:
    (selector,) = parse_selectors(f"m{{x=~`{expression}`}}")
    began = time.thread_time()
    assert not selector.matches({"__name__": "m", "x": "a" * 900})
    assert time.thread_time() - began < 2


@pytest.mark.parametrize(
    "expression", [")", "*a", "a**", "a{3,2}", "a{2000}", "(a{900}){900}", r"(a)\1", "(?=a)", "[a-", "a\ud800"]
)
def test_expression_unknown_to_re2_is_refused(expression: str) -> None:
    with pytest.raises(SelectorError, match=r"cannot be used: ."):
        parse_selectors(f"m{{x=~`{expression}`}}")


def test_total_size_of_expressions_of_a_scorer_is_limited() -> None:
    parse_selectors(";".join(f'm{n}{{instance=~"node-[0-9]{{1,3}}"}}' for n in range(40)))
    with pytest.raises(SelectorError, match="together are too large"):
        parse_selectors(";".join('m{instance=~".*a.{200}"}' for _ in range(6)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\u00e9"', "é"), (r'"\x41\101"', "AA"), (r'"\U0001F600"', "😀"), (r'"\a\v\f"', "\a\v\f"),
        (r'"\d\."', r"\d\."), (r"`\x41`", r"\x41"), (r'"\\x41"', r"\x41"),
    ],
)  # fmt: skip
def test_escapes_as_in_promql(text: str, value: str) -> None:
    (selector,) = parse_selectors(f"m{{a={text}}}")
    assert selector.matchers[0].value == value


@pytest.mark.parametrize("text", [r"\ud800", r"\U00110000", r"\777"])
def test_escape_without_a_character_is_refused(text: str) -> None:
    with pytest.raises(SelectorError, match="is no character"):
        parse_selectors(f'm{{a="{text}"}}')
