"""Sessions end with their token, and only forms of this page are accepted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext

import pytest
import redis
from starlette.requests import Request
from starlette.responses import Response

from dsf import keys
from dsf.errors import AccessError
from dsf.web.sessions import LOGIN_SECONDS, Sessions, check_form, make_form_secret, read_cookie, set_cookie
from tests.support.memorystore import memory_client

COOKIE = "c" * 43


@pytest.fixture
def client() -> redis.Redis:
    return memory_client()


def request(*, scheme: str = "https", root: str = "", host: str = "page.example.com", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "headers": raw, "scheme": scheme, "dsf.root": root, "dsf.host": host}
    return Request(scope)


def seconds(client: redis.Redis) -> int:
    (key,) = client.keys(keys.web_session("*"))
    return int(client.ttl(key))


def test_session_ends_after_its_lifetime(client: redis.Redis) -> None:
    cookie = Sessions(client).open("a-secret-token")
    assert Sessions(client).read_token(cookie) == "a-secret-token"
    assert LOGIN_SECONDS - 60 <= seconds(client) <= LOGIN_SECONDS


def test_redis_has_no_token_that_can_be_read(client: redis.Redis) -> None:
    cookie = Sessions(client).open("a-secret-token")
    (key,) = client.keys(keys.web_session("*"))
    redis_value = str(client.get(key))
    assert "a-secret-token" not in redis_value
    assert cookie not in f"{key} {redis_value}"
    # A form secret of another session is refused.
    client.set(key, str(client.get(keys.web_session("x")) or "nothing"))
    assert Sessions(client).read_token(cookie) == ""


@pytest.mark.parametrize(
    ("later", "is_open"), [(-7200, False), (-30, True), (LOGIN_SECONDS - 10, True), (LOGIN_SECONDS + 10, False)]
)
def test_session_lifetime_survives_clock_changes(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, later: float, is_open: bool
) -> None:
    """Clocks of the page and of Redis were ahead and are corrected, or Redis keeps a session for too long."""
    sessions = Sessions(client)
    cookie = sessions.open("static")
    opened = time.time()
    monkeypatch.setattr(time, "time", lambda: opened + later)
    assert bool(sessions.read_token(cookie)) is is_open


def test_all_sessions_end(client: redis.Redis) -> None:
    sessions = Sessions(client)
    cookies = [sessions.open("token") for _ in range(2)]
    sessions.end_all()
    assert [sessions.read_token(cookie) for cookie in cookies] == ["", ""]
    assert sessions.read_token(sessions.open("token")) == "token"


@pytest.mark.parametrize(
    ("scheme", "root", "name"),
    [("https", "", "__Host-dsf_page"), ("https", "/dsf", "__Secure-dsf_page"), ("http", "", "dsf_page")],
)
def test_cookie_cannot_be_set_by_other_sites(scheme: str, root: str, name: str) -> None:
    answer = Response()
    set_cookie(request(scheme=scheme, root=root), answer, COOKIE)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{name}={COOKIE};")
    assert ("Secure" in cookie) == (scheme == "https")
    assert "Domain" not in cookie
    assert {"HttpOnly", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    assert read_cookie(request(scheme=scheme, root=root, cookie=f"a=b; {name}={COOKIE}")) == COOKIE
    assert read_cookie(request(scheme=scheme, root=root, cookie=f"{name}={COOKIE}; {name}={'d' * 43}")) == ""


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({}, True),
        ({"origin": "https://page.example.com"}, True),
        ({"origin": "http://page.example.com"}, True),
        ({"origin": "https://page.example.com:443"}, True),
        ({"origin": "https://page.example.com:8443"}, False),
        ({"origin": "https://other.example.com"}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://page.example.com:x"}, False),
        ({"origin": "http://["}, False),
        ({"origin": "http://[::1"}, False),
        ({"origin": "//"}, False),
        ({"origin": ""}, False),
        ({"sec_fetch_site": "same-site"}, False),
    ],
)
def test_forms_of_other_origins_are_refused(headers: Mapping[str, str], accepted: bool) -> None:
    form_request = request(cookie=f"__Host-dsf_page={COOKIE}", **headers)
    with nullcontext() if accepted else pytest.raises(AccessError, match="refused"):
        check_form(form_request, make_form_secret(COOKIE))
    # A header as nginx with `Host $host` passes it on.
    behind = request(host="localhost", cookie=f"__Host-dsf_page={COOKIE}", origin="https://localhost:8443")
    with pytest.raises(AccessError, match=r"as 'localhost': .* `proxy_set_header Host \$http_host`"):
        check_form(behind, make_form_secret(COOKIE))
    with_port = request(
        host="localhost:8090", scheme="http", cookie=f"dsf_page={COOKIE}", origin="http://localhost:8090"
    )
    check_form(with_port, make_form_secret(COOKIE))
