"""Selectors: what they select, and what is refused."""

from __future__ import annotations

import pytest

from dsf.sources.selector import SelectorError, parse_selectors, underscored

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
def test_what_a_query_selects(query: str, selected: bool) -> None:
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
        ('x{a=~"("}', "cannot be used: a ( has no )"),
    ],
)
def test_what_is_no_selector_is_refused_in_words(query: str, words: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selectors(query)
    assert words in str(caught.value)


def test_names_of_opentelemetry_become_those_of_prometheus() -> None:
    assert underscored("http.server.duration") == "http_server_duration"
    assert underscored("2xx-rate/s") == "_2xx_rate_s"
    assert underscored("ok_1") == "ok_1"
    assert underscored("é") == "_"
