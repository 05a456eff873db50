"""Several sources: the merge of spec and /config, and refused lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api.authentication import CaKind, Reference
from dsf.api.problems import explain
from dsf.api.remoteconfig import parse_remote_config
from dsf.api.resolve import MAX_SUMMARY_BYTES, ResolveReason, resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.summary import ScorerSummary, dump_summaries, parse_summaries
from dsf.errors import RemoteConfigError, ResolutionError
from tests.unit.api.factories import SPEC, SYNCED, manifest, merged, scorer

BARE = {name: value for name, value in SPEC.items() if name != "source"}
NO_SOURCE = merged(SYNCED, {"source": None})


def prometheus_source(
    name: str = "", query: str = "up", host: str = "http://p.example", **fields: Any
) -> dict[str, Any]:
    """Return a source of type Prometheus."""
    name_field = {"name": name} if name else {}
    return name_field | {
        "type": "Prometheus",
        "host": host,
        "params": {"query": query, "range": 60, "step": 15},
        **fields,
    }


def scorer_with_sources(
    spec: list[dict[str, Any]] | None, synced: list[dict[str, Any]] | None, **synced_more: Any
) -> DynamicScorer:
    """Return a scorer with these `sources` in its spec and in /config."""
    document = NO_SOURCE | ({"sources": synced} if synced is not None else {}) | synced_more
    spec_fields = BARE | ({"sources": spec} if spec is not None else {})
    status = {"healthStatus": "Active", "lastSyncedConfig": document}
    return DynamicScorer.from_manifest(manifest(spec_fields, status=status))


def resolved_sources(dynamic_scorer: DynamicScorer) -> list[tuple[str | None, str, str]]:
    """Return name, server and query of each source."""
    return [
        (part.source_name, part.source_endpoint.removesuffix("/api/v1/query_range"), part.source_query)
        for part in resolve(dynamic_scorer).summary.each_source
    ]


def test_each_source_is_resolved_like_a_single_one() -> None:
    token = {"tokenSecretRef": {"name": "energy", "key": "token"}}
    basic = {"basic": {"username": {"value": "me"}, "password": {"name": "loads", "key": "p"}}}
    summary = resolve(
        scorer_with_sources(
            [prometheus_source("load", auth=basic), prometheus_source("power", "watts", "http://e", auth=token)], None
        )
    ).summary
    load, power = summary.each_source
    assert (load.source_name, load.source_query, load.sources) == ("load", "up", None)
    assert load.source_access is not None
    assert load.source_access.methods.basic is not None
    assert (power.source_name, power.source_query, power.source_endpoint_auth_name) == ("power", "watts", "energy")
    assert (power.source_access, power.scoring_endpoint) == (None, summary.scoring_endpoint)
    assert summary.references == {Reference(CaKind.Secret, "energy"), Reference(CaKind.Secret, "loads")}
    assert parse_summaries(dump_summaries([summary])) == [summary]


def test_older_agent_reads_the_first_source_in_the_former_fields() -> None:
    summary = json.loads(
        dump_summaries(
            [resolve(scorer_with_sources([prometheus_source("a"), prometheus_source("b", "x")], None)).summary]
        )
    )[0]
    assert (summary["sourceQuery"], summary["sourceName"]) == ("up", "a")
    assert [source["name"] for source in summary["sources"]] == ["b"]
    alone = json.loads(dump_summaries([resolve(scorer(synced=SYNCED)).summary]))[0]
    assert not {"sources", "sourceName"} & alone.keys()


@pytest.mark.parametrize(
    ("spec", "synced", "expected"),
    [
        (["a:1"], None, [("a", "http://p.example", "1")]),
        (None, ["a:1", "b:2"], [("a", "http://p.example", "1"), ("b", "http://p.example", "2")]),
        (["b:1"], ["a:2", "b:3"], [("a", "http://p.example", "2"), ("b", "http://p.example", "3")]),
        (
            ["b:1", "c:4"],
            ["a:2"],
            [("a", "http://p.example", "2"), ("b", "http://p.example", "1"), ("c", "http://p.example", "4")],
        ),
    ],
)
def test_config_wins_by_name_and_all_names_count(
    spec: list[str] | None, synced: list[str] | None, expected: list[tuple[str, str, str]]
) -> None:
    source_lists = [
        None if side is None else [prometheus_source(*text.split(":")) for text in side] for side in (spec, synced)
    ]
    assert resolved_sources(scorer_with_sources(*source_lists)) == expected


def test_single_source_of_one_side_replaces_the_first_of_the_other() -> None:
    both = scorer_with_sources(
        [prometheus_source("a", "mine"), prometheus_source("b", "other")], None, source={"params": {"query": "theirs"}}
    )
    assert [query for _, _, query in resolved_sources(both)] == ["theirs", "other"]
    document = NO_SOURCE | {
        "sources": [prometheus_source("a", host=""), prometheus_source("b", host="http://q")],
        "source": prometheus_source("", "for old hubs"),
    }
    dynamic_scorer = scorer({"source": {"host": "http://mine"}}, document)
    assert resolved_sources(dynamic_scorer) == [("a", "http://mine", "up"), ("b", "http://q", "up")]


def test_missing_source_field_is_named_with_its_source() -> None:
    dynamic_scorer = scorer_with_sources([prometheus_source("a"), {"name": "b", "params": {"query": "up"}}], None)
    with pytest.raises(ResolutionError) as raised:
        resolve(dynamic_scorer)
    assert raised.value.reason == ResolveReason.MissingRange
    assert str(raised.value).startswith("sources[b].params.range is not set")


def test_source_token_stays_with_its_server() -> None:
    token = {"tokenSecretRef": {"name": "t", "key": "k"}}
    dynamic_scorer = scorer_with_sources(
        [prometheus_source("a"), prometheus_source("b", auth=token)],
        [prometheus_source("b", host="http://thief.example")],
    )
    with pytest.raises(ResolutionError) as raised:
        resolve(dynamic_scorer)
    assert raised.value.reason == ResolveReason.TokenHostMismatch
    assert "spec.sources[b].auth" in str(raised.value)


def test_too_many_sources_of_both_sides_are_refused() -> None:
    dynamic_scorer = scorer_with_sources(
        [prometheus_source(f"s{i}") for i in range(5)], [prometheus_source(f"c{i}") for i in range(4)]
    )
    with pytest.raises(ResolutionError) as raised:
        resolve(dynamic_scorer)
    assert raised.value.reason == ResolveReason.InvalidSources
    assert "have 9 names together, more than the 8 that a scorer may have: c0, c1" in str(raised.value)


def test_too_large_summary_is_refused() -> None:
    dynamic_scorer = scorer_with_sources(
        [prometheus_source("a"), prometheus_source("b", "x" * MAX_SUMMARY_BYTES)], None
    )
    with pytest.raises(ResolutionError, match="most of it is sources: make it shorter"):
        resolve(dynamic_scorer)


def test_too_long_query_is_refused_before_it_is_read() -> None:
    dynamic_scorer = scorer_with_sources(
        [prometheus_source("a"), prometheus_source("b", '("${cluster}")' * 5000)], None
    )
    with pytest.raises(ResolutionError, match="has 70000 characters, more than 65536: make it shorter") as raised:
        resolve(dynamic_scorer)
    assert raised.value.reason == ResolveReason.TooLarge


BAD: list[tuple[Any, str]] = [
    ([], "must not be empty"),
    (
        [prometheus_source("a"), prometheus_source("b"), prometheus_source("a")],
        "the name 'a' is there twice; give each its own",
    ),
    ([prometheus_source(f"s{i}") for i in range(1000)], "has more than 8 items"),
    ([prometheus_source("a b")], "'a b' does not match"),
    ([{"type": "Prometheus"}], "is required"),
]


@pytest.mark.parametrize(("sources", "expected"), BAD)
def test_invalid_source_list_is_refused(sources: Any, expected: str) -> None:
    document = manifest(BARE | {"sources": sources})
    with pytest.raises(ValidationError) as raised:
        DynamicScorer.from_manifest(document)
    (mistake,) = explain(raised.value, DynamicScorer, document)
    assert mistake.field.startswith("spec.sources")
    assert expected in mistake.text
    with pytest.raises(RemoteConfigError, match="sources") as config_error:
        parse_remote_config(json.dumps(NO_SOURCE | {"sources": sources}).encode())
    assert expected in str(config_error.value)


def test_not_both() -> None:
    document = manifest(SPEC | {"sources": [prometheus_source("a")]})
    with pytest.raises(ValidationError, match="either source or sources"):
        DynamicScorer.from_manifest(document)


def test_unknown_source_type_of_a_newer_hub_is_parsed() -> None:
    first = {"name": "s", "scoreName": "s", "sourceName": "a", "sourceType": "Prometheus"}
    text = json.dumps([first | {"sources": [{"name": "b", "type": "Magic", "wand": 1, "access": {"spell": 1}}]}])
    (summary,) = parse_summaries(text)
    _, other = summary.each_source
    assert isinstance(other, ScorerSummary)
    assert other.source_type == "Magic"
    assert other.source_access is not None
    assert "spell" in other.source_access.problem


PLUGIN = {"type": "csv.example.com", "host": "http://files.example", "options": {"delimiter": ";", "deep": [{"a": 1}]}}


def test_plugin_source_needs_no_query_and_keeps_its_options() -> None:
    document = merged(SYNCED, {"source": {}})
    summary = resolve(scorer({"source": {**PLUGIN, "path": "/power.csv"}}, document)).summary
    assert (summary.source_type, summary.source_endpoint) == ("csv.example.com", "http://files.example/power.csv")
    assert (summary.source_query, summary.source_options) == ("", PLUGIN["options"])
    assert parse_summaries(dump_summaries([summary])) == [summary]
    assert "sourceOptions" not in dump_summaries([resolve(scorer(synced=SYNCED)).summary])


def test_each_source_has_its_own_options() -> None:
    summary = resolve(scorer_with_sources([prometheus_source("load"), {**PLUGIN, "name": "power"}], None)).summary
    assert [part.source_options for part in summary.each_source] == [None, PLUGIN["options"]]
    assert parse_summaries(dump_summaries([summary])) == [summary]


def test_config_may_name_the_type_and_never_the_options() -> None:
    document = {**SYNCED, "source": {"type": "csv.example.com", "options": {"delimiter": "x"}}}
    summary = resolve(scorer({"source": {"host": "http://files.example", "options": {"a": 1}}}, document)).summary
    assert (summary.source_type, summary.source_options) == ("csv.example.com", {"a": 1})


def test_built_in_types_have_no_options() -> None:
    with pytest.raises(ResolutionError) as caught:
        resolve(scorer({"source": {"options": {"a": 1}}}, SYNCED))
    assert caught.value.reason == ResolveReason.InvalidSources
    assert str(caught.value) == (
        "spec.source.options: the type is Prometheus, and only the types of plug-ins have options"
    )


def test_summary_has_the_method_of_each_source_with_post() -> None:
    summary = resolve(
        scorer_with_sources(
            [prometheus_source("a", method="GET"), prometheus_source("b", method="POST")],
            [prometheus_source("b"), prometheus_source("c")],
        )
    ).summary
    assert [source.source_method for source in summary.each_source] == ["POST", None, None]
    summary_json = json.loads(dump_summaries([summary]))[0]
    assert summary_json["sourceMethod"] == "POST"
    assert not any("method" in source for source in summary_json["sources"])
    said_by_config = resolve(
        scorer_with_sources([prometheus_source("a")], [prometheus_source("a", method="POST")])
    ).summary
    assert said_by_config.source_method is None, "only the spec sets it"


@pytest.mark.parametrize("kind", ["OpenTelemetry", "Kubernetes", "csv.example.com"])
def test_method_is_refused_for_non_prometheus_sources(kind: str) -> None:
    with pytest.raises(ValidationError, match="method goes with type Prometheus only"):
        scorer_with_sources([prometheus_source("a") | {"type": kind, "method": "POST"}], None)
    dynamic_scorer = scorer_with_sources([{"name": "a", "method": "POST"}], [prometheus_source("a") | {"type": kind}])
    with pytest.raises(ResolutionError) as raised:
        resolve(dynamic_scorer)
    assert raised.value.reason == ResolveReason.InvalidSources
    assert str(raised.value).startswith("spec.sources[a].method")


def test_options_that_are_too_large_are_named() -> None:
    source = {**PLUGIN, "options": {"a": "x" * MAX_SUMMARY_BYTES}}
    with pytest.raises(ResolutionError, match="most of it is sourceOptions"):
        resolve(scorer({"source": source}, merged(SYNCED, {"source": {}})))
