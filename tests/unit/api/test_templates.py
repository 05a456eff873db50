"""Values of clusters in queries, URLs and headers: escaping, and errors for missing values."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.promql import split_queries
from dsf.api.scoringauthentication import ClusterFacts
from dsf.api.templates import Renderer
from dsf.api.urls import parse_origin
from dsf.errors import ResolutionError

LABELS = {
    "region": "eu-west.1",
    "topology.kubernetes.io/zone": "a",
    "quote": 'x"} or vector(1) or {a="',
    "single": "it's",
    "back": "a`b",
    "word": "job_total:rate5m",
    "slash": "a/../b?c=d#e",
    "empty": "",
}
FILL = Renderer(ClusterFacts("c1", LABELS, {"id.k8s.io": "0f-1", "dots": "..", "lines": "a\r\nX-B: c"}))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('up{cluster="${cluster}"}', 'up{cluster="c1"}'),
        ('up{id="${claim:id.k8s.io}"}', 'up{id="0f-1"}'),
        ('up{zone="${label:topology.kubernetes.io/zone}"}', 'up{zone="a"}'),
        ('up{region=~"${label:region}|us"}', r'up{region=~"eu-west\\.1|us"}'),
        ('up{region!~ "${label:region}"}', r'up{region!~ "eu-west\\.1"}'),
        ('up{region="${label:region}"}', 'up{region="eu-west.1"}'),
        ('up{a="${label:quote}"}', r'up{a="x\"} or vector(1) or {a=\""}'),
        ("up{a='${label:single}'}", r"up{a='it\'s'}"),
        ("up{a=`${label:region}`}", "up{a=`eu-west.1`}"),
        # A comment is not part of the text before a string.
        ('up{r=~ # =\n # b\n "${label:region}"}', 'up{r=~ # =\n # b\n "eu-west\\\\.1"}'),
        ('up{r= # =~\n "${label:region}"}', 'up{r= # =~\n "eu-west.1"}'),
        ("up{r=~`${label:region}`}", r"up{r=~`eu-west\.1`}"),
        # The backslashes escape each other.
        (r'up{a="\\${label:quote}"}', r'up{a="\\x\"} or vector(1) or {a=\""}'),
        (r'up{a=~"\\\\${label:region}"}', r'up{a=~"\\\\eu-west\\.1"}'),
        (r"up{a=`\${label:region}`}", r"up{a=`\eu-west.1`}"),
        ("sum(${label:word})", "sum(job_total:rate5m)"),
        ('up{a="$${cluster}"}', 'up{a="${cluster}"}'),
        ('label_replace(up,"a","${1}-$2","b","(.*)-(.*)")', 'label_replace(up,"a","${1}-$2","b","(.*)-(.*)")'),
        ('label_replace(up,"a","${1}.${cluster}","b","(.*)")', 'label_replace(up,"a","${1}.c1","b","(.*)")'),
        ('label_replace(up,"a","$${1}","b","(.*)")', 'label_replace(up,"a","${1}","b","(.*)")'),
        ('up{a="${label:empty}"}', 'up{a=""}'),
        ('up{a="$cluster {b}"}', 'up{a="$cluster {b}"}'),
    ],
)
def test_queries(query: str, expected: str) -> None:
    assert FILL.expand_query(query, "q") == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('("${cluster}")' * 40_000, id="strings"),
        pytest.param('"' + "${cluster}" * 100_000 + '"', id="one-string"),
        pytest.param("http://" + "${cluster}" * 20_000, id="host"),
    ],
)
def test_time_of_expansion_grows_with_the_length_of_the_text(text: str) -> None:
    began = time.thread_time()
    expanded = FILL.expand_host(text, "h") if text.startswith("http") else FILL.expand_query(text, "q")
    # A second or less. Quadratic, it was a minute.
    assert time.thread_time() - began < 10
    assert expanded == text.replace("${cluster}", "c1")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("https://prometheus.${label:region}.example:9090", "https://prometheus.eu-west.1.example:9090"),
        ("https://x/base/${label:topology.kubernetes.io/zone}", "https://x/base/a"),
        ("https://x/${label:slash}", "https://x/a%2F..%2Fb%3Fc%3Dd%23e"),
    ],
)
def test_urls(host: str, expected: str) -> None:
    assert FILL.expand_host(host, "h") == expected


def test_paths_and_values() -> None:
    assert FILL.expand_path("/a/${label:slash}?b=${label:single}", "p") == "/a/a%2F..%2Fb%3Fc%3Dd%23e?b=it%27s"
    assert FILL.expand_value("t-${cluster}-${label:region}", "v") == "t-c1-eu-west.1"


@pytest.mark.parametrize(
    ("how", "text", "reason", "problem"),
    [
        ("query", 'up{a="${label:none}"}', "MissingClusterValue", "q: ManagedCluster 'c1' has no label 'none'"),
        ("query", 'up{a="${claim:none}"}', "MissingClusterValue", "q: ManagedCluster 'c1' has no ClusterClaim 'none'"),
        ("query", 'up{a="${node}"}', "UnknownTemplate", "q: ${node} is not one of ${cluster}, ${label:KEY}"),
        ("query", 'up{a="${label:}"}', "UnknownTemplate", "${label:} is not one of"),
        ("query", 'label_replace(up,"a","${1x}","b","(.*)")', "UnknownTemplate", "${1x} is not one of"),
        ("host", "https://a.${1}.example", "UnknownTemplate", "${1} is not one of"),
        ("query", "up{a=`${label:back}`}", "UnsafeClusterValue", "has a back quote"),
        ("query", "sum(${label:quote})", "UnsafeClusterValue", "the template must be inside quotes"),
        ("query", 'up{a="${claim:lines}"}', "UnsafeClusterValue", "has a control character"),
        ("query", r'up{a="\${label:quote}"}', "UnknownTemplate", "q: ${label:quote} follows a backslash"),
        ("query", r"up{a='x\\\${label:single}'}", "UnknownTemplate", "follows a backslash"),
        ("query", r'up{a=~"\\${label:region}"}', "UnknownTemplate", "follows a backslash"),
        ("query", r"up{a=~`\${label:region}`}", "UnknownTemplate", "follows a backslash"),
        ("host", "https://${label:slash}/", "UnsafeClusterValue", "cannot be part of a host name"),
        ("host", "https://${label:quote}.example", "UnsafeClusterValue", "cannot be part of a host name"),
        ("path", "/a/${claim:dots}/b", "UnsafeClusterValue", "cannot be part of a path"),
        ("value", "${claim:lines}", "UnsafeClusterValue", "is not printable ASCII on one line"),
    ],
)
def test_unresolvable_template_is_refused(how: str, text: str, reason: str, problem: str) -> None:
    with pytest.raises(ResolutionError) as caught:
        getattr(FILL, f"expand_{how}")(text, "q")
    assert caught.value.reason == reason
    assert problem in str(caught.value)


@given(st.text(max_size=30), st.sampled_from(['"', "'", "`"]), st.booleans(), st.integers(0, 5))
def test_template_value_never_ends_its_string(value: str, mark: str, is_regex: bool, backslashes: int) -> None:
    before = "\\" * backslashes
    query = f"up{{a{'=~' if is_regex else '='}{mark}{before}${{label:x}}{mark}}}; down"
    try:
        filled = Renderer(ClusterFacts("c", {"x": value})).expand_query(query, "q")
    except ResolutionError:
        return
    first, second = split_queries(filled)
    assert second == "down"
    assert first.startswith("up{a=")
    assert first.endswith(f"{mark}}}")


@given(st.text(max_size=30))
def test_template_value_never_changes_the_server(value: str) -> None:
    try:
        filled = Renderer(ClusterFacts("c", {"x": value})).expand_host("https://a.example/${label:x}", "h")
    except ResolutionError:
        return
    assert parse_origin(filled).host == "a.example"
