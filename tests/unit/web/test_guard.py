"""Host names, proxies and headers, in front of an application that returns its scope."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from dsf.errors import SettingsError
from dsf.web.guard import POLICY, Guard, is_prefix, is_within, parse_host_name, parse_networks


async def _respond_with_scope(scope: Scope, receive: Receive, send: Send) -> None:
    scope_fields = {
        name: scope.get(name)
        for name in ("path", "scheme", "client", "dsf.root", "dsf.host", "dsf.trusted", "dsf.direct")
    }
    await JSONResponse(scope_fields)(scope, receive, send)


def request_through_guard(
    path: str = "/",
    *,
    peer: str = "127.0.0.1",
    hosts: tuple[str, ...] = (),
    proxies: tuple[str, ...] = (),
    root: str = "",
    extra_lines: tuple[tuple[str, str], ...] = (),
    has_login: bool = False,
    **headers: str,
) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and JSON of a response; `_` in header names means `-`, `extra_lines` come last."""
    header_values = {"host": "localhost:8090"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "scheme": "http",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in (*header_values.items(), *extra_lines)],
        "client": (peer, 1),
    }
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    asyncio.run(
        Guard(_respond_with_scope, hosts, parse_networks(proxies), root, has_login=has_login)(scope, receive, send)
    )
    import json

    body = messages[1]["body"].decode()
    response_headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    return messages[0]["status"], response_headers, json.loads(body) if body.startswith("{") else body


@pytest.mark.parametrize("host", ["localhost", "localhost:8090", "127.0.0.1:1", "[::1]:8090", "LOCALHOST"])
def test_loopback_host_names_are_accepted(host: str) -> None:
    assert request_through_guard(host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[::", "127.0.0.1.nip.io"])
def test_other_names_are_refused(host: str) -> None:
    status, headers, _ = request_through_guard(host=host)
    assert status == 421
    assert headers["content-security-policy"] == POLICY


def test_token_through_a_service_proxy_is_accepted_under_any_name_where_a_login_is_required() -> None:
    def status(path: str, *, has_login: bool = True, **headers: str) -> int:
        return request_through_guard(path, host="hub.example:6443", has_login=has_login, **headers)[0]

    token = {"x_dsf_authorization": "Bearer t"}
    assert status("/api/v1/summary", **token) == 200
    assert status("/api/v1/summary") == 421
    assert status("/", **token) == 421
    assert status("/api/v1/summary", has_login=False, **token) == 421


def test_configured_host_names_are_accepted() -> None:
    assert request_through_guard(host="scores.example", hosts=("Scores.example",))[0] == 200
    assert request_through_guard(host="10.1.2.3:8090", hosts=("*",))[0] == 200
    # A kubelet sends requests to the pod's address.
    assert request_through_guard("/healthz", host="10.1.2.3:8090")[0] == 200


def test_headers_of_every_answer() -> None:
    _, headers, _ = request_through_guard()
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


FORWARDED = {
    "x_forwarded_for": "203.0.113.9, 10.0.0.2",
    "x_forwarded_proto": "https",
    "x_forwarded_host": "scores.example",
    "x_forwarded_prefix": "/dsf/",
}


def test_trusted_proxy_headers_are_used() -> None:
    status, _, scope = request_through_guard(
        peer="10.0.0.1", proxies=("10.0.0.0/8",), hosts=("scores.example",), **FORWARDED
    )
    assert status == 200
    assert scope["client"] == ["203.0.113.9", 0]
    assert (scope["scheme"], scope["dsf.host"], scope["dsf.root"]) == ("https", "scores.example", "/dsf")


@pytest.mark.parametrize(
    ("first", "second", "client"),
    [
        ("1.1.1.1", "203.0.113.9", "203.0.113.9"),
        ("1.1.1.1", "203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("203.0.113.9:4711", "10.0.0.2:80", "203.0.113.9"),
        ("1.1.1.1", "[2001:db8::9]:4711", "2001:db8::9"),
        ("1.1.1.1", "2001:db8::9", "2001:db8::9"),
        ("1.1.1.1", "unknown", "unknown"),
    ],
)
def test_client_is_read_from_the_line_that_the_proxy_added(first: str, second: str, client: str) -> None:
    """A client may send its own lines before it."""
    forwarded_lines = (
        ("x-forwarded-for", first),
        ("x-forwarded-for", second),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "localhost:1"),
        ("x-forwarded-host", "localhost:2"),
    )
    _, _, scope = request_through_guard(peer="10.0.0.1", proxies=("10.0.0.0/8",), extra_lines=forwarded_lines)
    assert scope["client"] == [client, 0]
    assert (scope["scheme"], scope["dsf.host"]) == ("https", "localhost:2")


def test_untrusted_proxy_headers_are_ignored() -> None:
    _, _, scope = request_through_guard(peer="10.0.0.1", proxies=("10.0.0.2",), hosts=("scores.example",), **FORWARDED)
    assert scope["client"] == ["10.0.0.1", 1]
    assert (scope["scheme"], scope["dsf.host"], scope["dsf.root"], scope["dsf.trusted"]) == (
        "http",
        "localhost:8090",
        "",
        False,
    )


@pytest.mark.parametrize(
    ("path", "guarded_path"),
    [("/p/scorers/x", "/scorers/x"), ("/p", "/"), ("/scorers/x", "/scorers/x"), ("/pp", "/pp")],
)
def test_root_prefix_is_stripped_if_present(path: str, guarded_path: str) -> None:
    assert request_through_guard(path, root="/p")[2]["path"] == guarded_path


@pytest.mark.parametrize("prefix", ["//evil.example", '/a"b', "javascript:x", "/a b", "/scorers", "/api/v1"])
def test_invalid_prefix_is_ignored(prefix: str) -> None:
    assert not is_prefix(prefix)
    assert request_through_guard(peer="10.0.0.1", proxies=("10.0.0.1",), x_forwarded_prefix=prefix)[2]["dsf.root"] == ""


def test_networks() -> None:
    networks = parse_networks(["10.0.0.0/8", "::1"])
    assert is_within("10.9.9.9", networks)
    assert is_within("::ffff:10.9.9.9", networks)
    assert not is_within("11.0.0.1", networks)
    assert not is_within("unix", networks)
    with pytest.raises(SettingsError, match=r"DSF_WEB_TRUSTED_PROXIES.*'proxy'"):
        parse_networks(["proxy"])
    assert parse_host_name("A.b:1") == "a.b"


@pytest.mark.parametrize(
    ("host", "headers", "is_direct"),
    [
        ("10.1.2.3:8080", {}, True),
        ("dynamic-scoring-hub.ocm.svc:8080", {}, True),
        ("localhost:8080", {}, True),
        ("scores.example", {}, False),
        ("10.1.2.3:8080", {"x_forwarded_for": "203.0.113.9"}, False),
        ("hub.ocm.svc", {"x_forwarded_host": "scores.example"}, False),
        ("hub.ocm.svc", {"x_real_ip": "203.0.113.9"}, False),
        ("hub.ocm.svc", {"forwarded": "for=203.0.113.9"}, False),
    ],
)
@pytest.mark.parametrize("proxies", [(), ("10.0.0.0/8",)])
def test_request_is_direct_without_a_proxy_or_a_public_name(
    host: str, headers: dict[str, str], is_direct: bool, proxies: tuple[str, ...]
) -> None:
    hosts = ("scores.example", "10.1.2.3", "hub.ocm.svc")
    status, _, scope = request_through_guard(
        "/metrics", host=host, peer="10.0.0.1", hosts=hosts, proxies=proxies, **headers
    )
    assert (status, scope["dsf.direct"]) == (200, is_direct)
