"""Host names, proxies and headers, in front of an application that tells what it sees."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from dsf.errors import SettingsError
from dsf.web.guard import POLICY, Guard, host_name, is_prefix, is_within, parse_networks


async def _tell(scope: Scope, receive: Receive, send: Send) -> None:
    seen = {name: scope.get(name) for name in ("path", "scheme", "client", "dsf.root", "dsf.host", "dsf.trusted")}
    await JSONResponse(seen)(scope, receive, send)


def ask(
    path: str = "/",
    *,
    peer: str = "127.0.0.1",
    hosts: tuple[str, ...] = (),
    proxies: tuple[str, ...] = (),
    root: str = "",
    more: tuple[tuple[str, str], ...] = (),
    **headers: str,
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of an answer; `_` in a header's name stands for `-`, `more` are lines after those."""
    given = {"host": "localhost:8090"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "scheme": "http",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in (*given.items(), *more)],
        "client": (peer, 1),
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    asyncio.run(Guard(_tell, hosts, parse_networks(proxies), root)(scope, receive, send))
    import json

    body = sent[1]["body"].decode()
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, json.loads(body) if body.startswith("{") else body


@pytest.mark.parametrize("host", ["localhost", "localhost:8090", "127.0.0.1:1", "[::1]:8090", "LOCALHOST"])
def test_names_of_this_machine(host: str) -> None:
    assert ask(host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[::", "127.0.0.1.nip.io"])
def test_other_names_are_refused(host: str) -> None:
    status, headers, _ = ask(host=host)
    assert status == 421
    assert headers["content-security-policy"] == POLICY


def test_names_that_were_given() -> None:
    assert ask(host="scores.example", hosts=("Scores.example",))[0] == 200
    assert ask(host="10.1.2.3:8090", hosts=("*",))[0] == 200
    # A kubelet comes by the pod's address.
    assert ask("/healthz", host="10.1.2.3:8090")[0] == 200


def test_headers_of_every_answer() -> None:
    _, headers, _ = ask()
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
    status, _, seen = ask(peer="10.0.0.1", proxies=("10.0.0.0/8",), hosts=("scores.example",), **FORWARDED)
    assert status == 200
    assert seen["client"] == ["203.0.113.9", 0]
    assert (seen["scheme"], seen["dsf.host"], seen["dsf.root"]) == ("https", "scores.example", "/dsf")


@pytest.mark.parametrize(
    ("first", "second", "seen"),
    [
        ("1.1.1.1", "203.0.113.9", "203.0.113.9"),
        ("1.1.1.1", "203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("203.0.113.9:4711", "10.0.0.2:80", "203.0.113.9"),
        ("1.1.1.1", "[2001:db8::9]:4711", "2001:db8::9"),
        ("1.1.1.1", "2001:db8::9", "2001:db8::9"),
        ("1.1.1.1", "unknown", "unknown"),
    ],
)
def test_the_line_that_the_proxy_added_counts(first: str, second: str, seen: str) -> None:
    """A client may send lines of its own before."""
    more = (
        ("x-forwarded-for", first),
        ("x-forwarded-for", second),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "localhost:1"),
        ("x-forwarded-host", "localhost:2"),
    )
    _, _, told = ask(peer="10.0.0.1", proxies=("10.0.0.0/8",), more=more)
    assert told["client"] == [seen, 0]
    assert (told["scheme"], told["dsf.host"]) == ("https", "localhost:2")


def test_untrusted_proxy_headers_are_ignored() -> None:
    _, _, seen = ask(peer="10.0.0.1", proxies=("10.0.0.2",), hosts=("scores.example",), **FORWARDED)
    assert seen["client"] == ["10.0.0.1", 1]
    assert (seen["scheme"], seen["dsf.host"], seen["dsf.root"], seen["dsf.trusted"]) == (
        "http",
        "localhost:8090",
        "",
        False,
    )


@pytest.mark.parametrize(
    ("path", "seen"), [("/p/scorers/x", "/scorers/x"), ("/p", "/"), ("/scorers/x", "/scorers/x"), ("/pp", "/pp")]
)
def test_root_prefix_is_stripped_if_present(path: str, seen: str) -> None:
    assert ask(path, root="/p")[2]["path"] == seen


@pytest.mark.parametrize("prefix", ["//evil.example", '/a"b', "javascript:x", "/a b", "/scorers", "/api/v1"])
def test_invalid_prefix_is_ignored(prefix: str) -> None:
    assert not is_prefix(prefix)
    assert ask(peer="10.0.0.1", proxies=("10.0.0.1",), x_forwarded_prefix=prefix)[2]["dsf.root"] == ""


def test_networks() -> None:
    networks = parse_networks(["10.0.0.0/8", "::1"])
    assert is_within("10.9.9.9", networks)
    assert is_within("::ffff:10.9.9.9", networks)
    assert not is_within("11.0.0.1", networks)
    assert not is_within("unix", networks)
    with pytest.raises(SettingsError, match=r"DSF_WEB_TRUSTED_PROXIES.*'proxy'"):
        parse_networks(["proxy"])
    assert host_name("A.b:1") == "a.b"
