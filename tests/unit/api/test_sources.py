"""Several sources: what spec and /config come to together, and what is refused."""

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


def one(name: str = "", query: str = "up", host: str = "http://p.example", **more: Any) -> dict[str, Any]:
    """A source of type Prometheus."""
    named = {"name": name} if name else {}
    return named | {"type": "Prometheus", "host": host, "params": {"query": query, "range": 60, "step": 15}, **more}


def several(
    spec: list[dict[str, Any]] | None, synced: list[dict[str, Any]] | None, **synced_more: Any
) -> DynamicScorer:
    """A scorer with these `sources` in its spec and in /config."""
    document = NO_SOURCE | ({"sources": synced} if synced is not None else {}) | synced_more
    made = BARE | ({"sources": spec} if spec is not None else {})
    status = {"healthStatus": "Active", "lastSyncedConfig": document}
    return DynamicScorer.from_manifest(manifest(made, status=status))


def asked(found: DynamicScorer) -> list[tuple[str | None, str, str]]:
    """Name, server and query of each source."""
    return [
        (part.source_name, part.source_endpoint.removesuffix("/api/v1/query_range"), part.source_query)
        for part in resolve(found).summary.each_source
    ]


def test_each_is_as_if_it_were_alone() -> None:
    token = {"tokenSecretRef": {"name": "energy", "key": "token"}}
    basic = {"basic": {"username": {"value": "me"}, "password": {"name": "loads", "key": "p"}}}
    found = resolve(several([one("load", auth=basic), one("power", "watts", "http://e", auth=token)], None)).summary
    load, power = found.each_source
    assert (load.source_name, load.source_query, load.sources) == ("load", "up", None)
    assert load.source_access is not None
    assert load.source_access.methods.basic is not None
    assert (power.source_name, power.source_query, power.source_endpoint_auth_name) == ("power", "watts", "energy")
    assert (power.source_access, power.scoring_endpoint) == (None, found.scoring_endpoint)
    assert found.references == {Reference(CaKind.Secret, "energy"), Reference(CaKind.Secret, "loads")}
    assert parse_summaries(dump_summaries([found])) == [found]


def test_an_older_agent_sees_the_first_alone_and_one_source_is_told_as_before() -> None:
    told = json.loads(dump_summaries([resolve(several([one("a"), one("b", "x")], None)).summary]))[0]
    assert (told["sourceQuery"], told["sourceName"]) == ("up", "a")
    assert [source["name"] for source in told["sources"]] == ["b"]
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
    made = [None if side is None else [one(*text.split(":")) for text in side] for side in (spec, synced)]
    assert asked(several(*made)) == expected


def test_where_one_side_has_a_single_source_it_is_the_first() -> None:
    both = several([one("a", "mine"), one("b", "other")], None, source={"params": {"query": "theirs"}})
    assert [query for _, _, query in asked(both)] == ["theirs", "other"]
    document = NO_SOURCE | {
        "sources": [one("a", host=""), one("b", host="http://q")],
        "source": one("", "for old hubs"),
    }
    found = scorer({"source": {"host": "http://mine"}}, document)
    assert asked(found) == [("a", "http://mine", "up"), ("b", "http://q", "up")]


def test_missing_source_field_is_named_with_its_source() -> None:
    found = several([one("a"), {"name": "b", "params": {"query": "up"}}], None)
    with pytest.raises(ResolutionError) as raised:
        resolve(found)
    assert raised.value.reason == ResolveReason.MissingRange
    assert str(raised.value).startswith("sources[b].params.range is not set")


def test_source_token_stays_with_its_server() -> None:
    token = {"tokenSecretRef": {"name": "t", "key": "k"}}
    found = several([one("a"), one("b", auth=token)], [one("b", host="http://thief.example")])
    with pytest.raises(ResolutionError) as raised:
        resolve(found)
    assert raised.value.reason == ResolveReason.TokenHostMismatch
    assert "spec.sources[b].auth" in str(raised.value)


def test_too_many_together() -> None:
    found = several([one(f"s{i}") for i in range(5)], [one(f"c{i}") for i in range(4)])
    with pytest.raises(ResolutionError) as raised:
        resolve(found)
    assert raised.value.reason == ResolveReason.InvalidSources
    assert "have 9 names together, more than the 8 that a scorer may have: c0, c1" in str(raised.value)


def test_too_large_together() -> None:
    found = several([one("a"), one("b", "x" * MAX_SUMMARY_BYTES)], None)
    with pytest.raises(ResolutionError, match="most of it is sources: make it shorter"):
        resolve(found)


BAD: list[tuple[Any, str]] = [
    ([], "must not be empty"),
    ([one("a"), one("b"), one("a")], "the name 'a' is there twice; give each its own"),
    ([one(f"s{i}") for i in range(1000)], "has more than 8 items"),
    ([one("a b")], "'a b' does not match"),
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
    with pytest.raises(RemoteConfigError, match="sources") as refused:
        parse_remote_config(json.dumps(NO_SOURCE | {"sources": sources}).encode())
    assert expected in str(refused.value)


def test_not_both() -> None:
    document = manifest(SPEC | {"sources": [one("a")]})
    with pytest.raises(ValidationError, match="either source or sources"):
        DynamicScorer.from_manifest(document)


def test_unknown_source_type_of_a_newer_hub_is_parsed() -> None:
    first = {"name": "s", "scoreName": "s", "sourceName": "a", "sourceType": "Prometheus"}
    text = json.dumps([first | {"sources": [{"name": "b", "type": "Magic", "wand": 1, "access": {"spell": 1}}]}])
    (found,) = parse_summaries(text)
    _, other = found.each_source
    assert isinstance(other, ScorerSummary)
    assert other.source_type == "Magic"
    assert other.source_access is not None
    assert "spell" in other.source_access.problem


PLUGIN = {"type": "csv.example.com", "host": "http://files.example", "options": {"delimiter": ";", "deep": [{"a": 1}]}}


def test_plugin_source_needs_no_query_and_keeps_its_options() -> None:
    document = merged(SYNCED, {"source": {}})
    found = resolve(scorer({"source": {**PLUGIN, "path": "/power.csv"}}, document)).summary
    assert (found.source_type, found.source_endpoint) == ("csv.example.com", "http://files.example/power.csv")
    assert (found.source_query, found.source_options) == ("", PLUGIN["options"])
    assert parse_summaries(dump_summaries([found])) == [found]
    assert "sourceOptions" not in dump_summaries([resolve(scorer(synced=SYNCED)).summary])


def test_each_source_has_its_own_options() -> None:
    found = resolve(several([one("load"), {**PLUGIN, "name": "power"}], None)).summary
    assert [part.source_options for part in found.each_source] == [None, PLUGIN["options"]]
    assert parse_summaries(dump_summaries([found])) == [found]


def test_config_may_name_the_type_and_never_the_options() -> None:
    document = {**SYNCED, "source": {"type": "csv.example.com", "options": {"delimiter": "x"}}}
    found = resolve(scorer({"source": {"host": "http://files.example", "options": {"a": 1}}}, document)).summary
    assert (found.source_type, found.source_options) == ("csv.example.com", {"a": 1})


def test_built_in_types_have_no_options() -> None:
    with pytest.raises(ResolutionError) as caught:
        resolve(scorer({"source": {"options": {"a": 1}}}, SYNCED))
    assert caught.value.reason == ResolveReason.InvalidSources
    assert str(caught.value) == (
        "spec.source.options: the type is Prometheus, and only the types of plug-ins have options"
    )


def test_the_method_of_each_source_reaches_the_agents_where_it_is_post() -> None:
    found = resolve(several([one("a", method="GET"), one("b", method="POST")], [one("b"), one("c")])).summary
    assert [source.source_method for source in found.each_source] == ["POST", None, None]
    told = json.loads(dump_summaries([found]))[0]
    assert told["sourceMethod"] == "POST"
    assert not any("method" in source for source in told["sources"])
    said_by_config = resolve(several([one("a")], [one("a", method="POST")])).summary
    assert said_by_config.source_method is None, "only the spec sets it"


@pytest.mark.parametrize("kind", ["OpenTelemetry", "Kubernetes", "csv.example.com"])
def test_method_is_refused_for_non_prometheus_sources(kind: str) -> None:
    with pytest.raises(ValidationError, match="method goes with type Prometheus only"):
        several([one("a") | {"type": kind, "method": "POST"}], None)
    found = several([{"name": "a", "method": "POST"}], [one("a") | {"type": kind}])
    with pytest.raises(ResolutionError) as raised:
        resolve(found)
    assert raised.value.reason == ResolveReason.InvalidSources
    assert str(raised.value).startswith("spec.sources[a].method")


def test_options_that_are_too_large_are_named() -> None:
    source = {**PLUGIN, "options": {"a": "x" * MAX_SUMMARY_BYTES}}
    with pytest.raises(ResolutionError, match="most of it is sourceOptions"):
        resolve(scorer({"source": source}, merged(SYNCED, {"source": {}})))
