"""Requests of each method, the messages if a method cannot be used, and the absence of secrets in messages."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.support.authenticatedquery import GOOD, SourceAccessHarness, make_secret_ref, refuse_with_echo
from tests.support.httpserver import ScriptedServer

KEY_ALONE = base64.b64encode(b"k3y-of-api:").decode()
BASIC = base64.b64encode(b"reader:pa55-of-reader").decode()


@pytest.fixture
def source() -> Any:
    """A server that takes everybody."""
    with ScriptedServer(GOOD) as running:
        yield running


@pytest.fixture
def filled(bed: SourceAccessHarness) -> SourceAccessHarness:
    """With Secrets."""
    bed.put("s", token="t0ken-of-source\n", user="reader", password="pa55-of-reader", key="k3y-of-api")
    return bed


@pytest.mark.parametrize(
    ("methods", "headers", "shown_headers"),
    [
        (
            {"tokenSecretRef": {"name": "s", "key": "token"}},
            {"Authorization": "Bearer t0ken-of-source"},
            "Authorization: Bearer ***",
        ),
        (
            {"basic": {"username": {"value": "reader"}, "password": {"name": "s", "key": "password"}}},
            {"Authorization": f"Basic {BASIC}"},
            "Authorization: Basic reader:***",
        ),
        (
            {"basic": {"username": make_secret_ref("s", "user"), "password": {"name": "s", "key": "password"}}},
            {"Authorization": f"Basic {BASIC}"},
            "Authorization: Basic ***:***",
        ),
        (
            # An API key as the user, without a password.
            {"basic": {"username": make_secret_ref("s", "key")}},
            {"Authorization": f"Basic {KEY_ALONE}"},
            "Authorization: Basic ***:",
        ),
        (
            {"headers": [{"name": "X-Scope-OrgID", "value": "team-a|team-b"}]},
            {"X-Scope-Orgid": "team-a|team-b"},
            "X-Scope-OrgID: team-a|team-b",
        ),
        (
            {
                "headers": [
                    {"name": "X-Api-Key", **make_secret_ref("s", "key")},
                    {"name": "Accept", "value": "text/plain"},
                ]
            },
            {"X-Api-Key": "k3y-of-api", "Accept": "text/plain"},
            "X-Api-Key: ***",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_headers_are_sent_and_masked_in_output(
    filled: SourceAccessHarness,
    source: ScriptedServer,
    methods: dict[str, Any],
    headers: dict[str, str],
    shown_headers: str,
    verb: str,
) -> None:
    filled.method = verb
    assert filled.fetch(source.url, methods) == 1
    (request,) = source.requests
    assert request.method == verb
    assert headers.items() <= request.headers.items()
    assert shown_headers in filled.display_lines


@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_url_parameters_are_sent_and_masked(filled: SourceAccessHarness, source: ScriptedServer, verb: str) -> None:
    parameters = [{"name": "tenant", "value": "a&b=c d"}, {"name": "api_key", **make_secret_ref("s", "key")}]
    filled.method = verb
    assert filled.fetch(source.url, {"queryParameters": parameters}) == 1
    (request,) = source.requests
    assert {"tenant": "a&b=c d", "api_key": "k3y-of-api"}.items() <= request.query.items()
    assert (request.query if verb == "GET" else dict(parse_qsl(request.body.decode())))["query"] == "up"
    assert filled.display_lines == ("?tenant=a&b=c d", "?api_key=***")


def test_several_methods_are_combined(filled: SourceAccessHarness, source: ScriptedServer) -> None:
    methods = {
        "tokenSecretRef": {"name": "s", "key": "token"},
        "headers": [{"name": "X-Scope-OrgID", "value": "a"}],
        "queryParameters": [{"name": "p", "value": "b"}],
    }
    assert filled.fetch(source.url, methods) == 1
    (request,) = source.requests
    assert (request.headers["Authorization"], request.headers["X-Scope-Orgid"], request.query["p"]) == (
        "Bearer t0ken-of-source", "a", "b",
    )  # fmt: skip


def test_changed_secret_is_used_at_once(filled: SourceAccessHarness, source: ScriptedServer) -> None:
    methods = {"headers": [{"name": "X-Api-Key", **make_secret_ref("s", "key")}]}
    filled.fetch(source.url, methods)
    filled.put("s", key="an0ther-key")
    filled.fetch(source.url, methods)
    assert [request.headers["X-Api-Key"] for request in source.requests] == ["k3y-of-api", "an0ther-key"]


@pytest.mark.parametrize("value", ["two\nlines", "x\r\nInjected: 1", "tab\there", "\x00", "ü", ""])
def test_secret_with_a_line_break_is_not_sent(bed: SourceAccessHarness, source: ScriptedServer, value: str) -> None:
    bed.put("s", key=value)
    for methods in (
        {"headers": [{"name": "X-Api-Key", **make_secret_ref("s", "key")}]},
        {"queryParameters": [{"name": "k", **make_secret_ref("s", "key")}]},
        {"basic": {"username": {"value": "u"}, "password": {"name": "s", "key": "key"}}},
    ):
        error = bed.failure(source.url, methods)
        assert error.reason == "secret_invalid"
        assert "key 'key' of Secret 's' cannot be sent" in error.message
        assert not value.strip() or value not in error.message
    assert source.requests == []


@pytest.mark.parametrize(
    ("reference", "expected_message"),
    [
        ({"name": "nowhere", "key": "k"}, "key 'k' of Secret 'nowhere' is missing"),
        ({"name": "s", "key": "other"}, "key 'other' of Secret 's' is missing"),
    ],
)
def test_missing_secret_is_named(
    filled: SourceAccessHarness, source: ScriptedServer, reference: dict[str, str], expected_message: str
) -> None:
    error = filled.failure(source.url, {"basic": {"username": {"value": "u"}, "password": reference}})
    assert (error.reason, source.requests) == ("secret_missing", [])
    assert expected_message in error.message


def test_unreleased_secret_is_not_sent(bed: SourceAccessHarness, source: ScriptedServer) -> None:
    bed.put("s", usable_for="elsewhere.example", key="k3y-of-api")
    error = bed.failure(source.url, {"headers": [{"name": "X-Api-Key", **make_secret_ref("s", "key")}]})
    assert (error.reason, source.requests) == ("secret_refused", [])


def test_unknown_method_fails_its_scorer_only(filled: SourceAccessHarness, source: ScriptedServer) -> None:
    error = filled.failure(source.url, {"kerberos": {"realm": "EXAMPLE"}})
    assert (error.reason, source.requests) == ("auth_unsupported", [])
    assert "methods.kerberos: is not a known field" in error.message
    assert filled.fetch(source.url, {"tokenSecretRef": {"name": "s", "key": "token"}}) == 1


@pytest.mark.parametrize(
    "methods",
    [
        {"tokenSecretRef": {"name": "s", "key": "token"}},
        {"basic": {"username": {"value": "reader"}, "password": {"name": "s", "key": "password"}}},
        {"basic": {"username": make_secret_ref("s", "key")}},
        {"headers": [{"name": "X-Api-Key", **make_secret_ref("s", "key")}]},
        {"queryParameters": [{"name": "api_key", **make_secret_ref("s", "key")}]},
    ],
)
def test_echoed_secrets_are_not_shown(filled: SourceAccessHarness, methods: dict[str, Any]) -> None:
    with ScriptedServer(refuse_with_echo) as source:
        error = filled.failure(source.url, methods)
    assert error.reason == "unauthorized"
    for secret in ("t0ken-of-source", "pa55-of-reader", "k3y-of-api", BASIC, KEY_ALONE):
        assert secret not in str(error)
