"""Identity of users, and their permissions."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from dsf.errors import AccessError, BackendError, SettingsError
from dsf.kube.session import Session
from dsf.process.clienttoken import MAX_BURST
from dsf.web.access import ACT_RIGHT, READ_RIGHT, PageUser, UserAccess, allow_operators, trust_proxy
from dsf.web.kube import KubeAccess
from dsf.web.service import WebService, _make_access
from tests.support.fixtures import SettingsFactory


def recognise_user(access: UserAccess, *, trusted: bool = True, **headers: str) -> PageUser | None:
    raw = [(name.replace("_", "-").lower().encode(), text.encode()) for name, text in headers.items()]
    return access.find_user(Request({"type": "http", "headers": raw, "dsf.trusted": trusted}))


def test_either_family_of_headers_names_people() -> None:
    access = trust_proxy(allow_operators([]))
    ann = PageUser("ann", groups=("dev", "sre"))
    assert recognise_user(access, X_Forwarded_User="ann", X_Forwarded_Groups="dev, sre") == ann
    assert recognise_user(access, X_Auth_Request_User="ann", X_Auth_Request_Groups="dev,sre") == ann
    both = {"X_Auth_Request_User": "ann", "X_Auth_Request_Groups": "dev,sre"}
    assert recognise_user(access, X_Forwarded_User="ann", X_Forwarded_Groups="dev,sre", **both) == ann
    assert recognise_user(access, X_Forwarded_Email="ann@example.com") == PageUser("ann@example.com")


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Auth_Request_User": "boss"},
        {"X_Auth_Request_Groups": "system:masters"},
        {"X_Auth_Request_User": "ann", "X_Auth_Request_Groups": "system:masters"},
        {"X_Auth_Request_Email": "boss@example.com"},
    ],
)
def test_identity_headers_that_the_proxy_does_not_remove_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(AccessError, match="must remove"):
        recognise_user(trust_proxy(allow_operators([])), X_Forwarded_User="ann", **headers)


@pytest.mark.parametrize("header", ["X_Forwarded_User", "X_Auth_Request_User", "Remote_User"])
def test_untrusted_peer_cannot_name_a_user(header: str) -> None:
    with pytest.raises(AccessError, match="use the proxy") as raised:
        recognise_user(trust_proxy(allow_operators(["bob"])), trusted=False, **{header: "bob"})
    assert raised.value.status == 401


@pytest.mark.parametrize("header", ["User", "Email", "Groups"])
@pytest.mark.parametrize("family", ["X-Forwarded", "X-Auth-Request"])
def test_duplicate_identity_header_is_refused(family: str, header: str) -> None:
    lines = [(f"{family}-User", "ann"), (f"{family}-{header}", "boss"), (f"{family}-{header}", "ann")]
    raw = [(name.lower().encode(), text.encode()) for name, text in lines]
    request = Request({"type": "http", "headers": raw, "dsf.trusted": True})
    with pytest.raises(AccessError, match="must replace") as raised:
        trust_proxy(allow_operators([])).find_user(request)
    assert raised.value.status == 401


def test_listed_operators_act_also_where_there_is_an_api_server(settings_factory: SettingsFactory) -> None:
    settings = settings_factory(
        role="hub", web_auth="proxy", web_trusted_proxies=["10.0.0.0/8"], web_operators=["sre"], namespace="ocm"
    )
    # Rights are checked at the API server, which does not exist here.
    access = _make_access(settings, cast("Session", object()))
    assert access.allows(PageUser("ann", groups=("sre",)), ACT_RIGHT)
    assert not access.allows(PageUser("bob", groups=("dev",)), ACT_RIGHT)
    assert access.allows(PageUser("bob"), READ_RIGHT)


def test_login_is_valid_while_the_token_is_unchanged(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the-first-token-of-all")
    access = _make_access(settings_factory(role="hub", web_auth="token", client_token_file=file), None)
    assert access.allows(access.login("the-first-token-of-all", "10.0.0.1"), ACT_RIGHT)
    file.write_text("the-second-token-of-all")
    with pytest.raises(AccessError):
        access.login("the-first-token-of-all", "10.0.0.1")
    for short in ("", "4711", "x" * 15):
        file.write_text(short)
        with pytest.raises(SettingsError, match="at least 16"):
            access.login(short, "10.0.0.1")
    file.unlink()
    with pytest.raises(SettingsError, match="DSF_CLIENT_TOKEN_FILE"):
        access.login("the-second-token-of-all", "10.0.0.1")


def test_wrong_tokens_of_one_address_are_limited(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the-token-of-all-users")
    login = _make_access(settings_factory(role="hub", web_auth="token", client_token_file=file), None).login
    assert login is not None
    for number in range(MAX_BURST):
        with pytest.raises(AccessError, match="not the token"):
            login(f"{number}", "10.0.0.1")
    with pytest.raises(AccessError, match="too many wrong tokens") as raised:
        login("the-token-of-all-users", "10.0.0.1")
    assert raised.value.status == 429
    assert login("the-token-of-all-users", "10.0.0.2").name == "token"


class Reviewer:
    """Reviews tokens instead of the API server."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Semaphore(0), threading.Event()
        self.calls = 0

    def review_token(self, token: str) -> dict[str, Any]:
        self.calls += 1
        self.inside.release()
        assert self.go_on.wait(30)
        return {"username": token}

    def allows(self, user: dict[str, Any], *_: object) -> bool:
        return not user["extra"]


@pytest.fixture
def reviewer(monkeypatch: pytest.MonkeyPatch) -> Reviewer:
    reviews = Reviewer()
    monkeypatch.setattr("dsf.web.kube.Reviews", lambda _: reviews)
    return reviews


def jwt(name: str) -> str:
    return f"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.{name}"


def test_wrong_tokens_of_one_client_keep_no_other_client_out(reviewer: Reviewer) -> None:
    """Each review occupies a thread of the page."""
    holder = KubeAccess(cast("Session", None), "ocm").identify_holder
    with ThreadPoolExecutor(40) as pool:
        flood = [pool.submit(holder, jwt(f"wrong{number}"), "10.0.0.1") for number in range(25)]
        assert all(reviewer.inside.acquire(timeout=30) for _ in range(4))
        other_clients = [pool.submit(holder, jwt(f"token{number}"), f"10.0.1.{number}") for number in range(4)]
        assert all(reviewer.inside.acquire(timeout=30) for _ in range(4))
        # Requests that wait too long, or find the queue full, are refused.
        refused_statuses = [
            future for future in flood if isinstance(future.exception(30) if future.done() else None, BackendError)
        ]
        reviewer.go_on.set()
        assert [future.result(30).name for future in other_clients] == [jwt(f"token{number}") for number in range(4)]
        assert len(refused_statuses) >= 5
    before = reviewer.calls
    assert holder(jwt("token1"), "10.0.0.9") == PageUser(jwt("token1"))
    assert reviewer.calls == before


def test_login_waits_for_a_turn(reviewer: Reviewer) -> None:
    """Users behind one proxy share the address of a flood of wrong tokens."""
    holder = KubeAccess(cast("Session", None), "ocm").identify_holder
    with ThreadPoolExecutor(20) as pool:
        flood = [pool.submit(holder, jwt(f"wrong{number}"), "10.0.0.1") for number in range(8)]
        assert all(reviewer.inside.acquire(timeout=30) for _ in range(4))
        login = pool.submit(holder, jwt("good"), "10.0.0.1")
        reviewer.go_on.set()
        assert login.result(30).name == jwt("good")
        assert all(future.result(30) for future in flood)


@pytest.mark.parametrize(
    "token", ["", "x", "a.b.c", "eyJh.eyJi.sig nature", "eyJh.eyJi.c\n", "sha256~short", "a" * 5000]
)
def test_text_that_is_no_token_is_refused_without_a_review(reviewer: Reviewer, token: str) -> None:
    holder = KubeAccess(cast("Session", None), "ocm").identify_holder
    with pytest.raises(AccessError, match="no token of a ServiceAccount") as raised:
        holder(token, "10.0.0.1")
    assert raised.value.status == 401
    assert reviewer.calls == 0


def test_token_of_openshift_is_reviewed(reviewer: Reviewer) -> None:
    reviewer.go_on.set()
    token = f"sha256~{'a' * 43}"
    assert KubeAccess(cast("Session", None), "ocm").identify_holder(token, "10.0.0.1").name == token


def test_permission_of_a_limited_token_is_cached_separately(reviewer: Reviewer) -> None:
    allows = KubeAccess(cast("Session", None), "ocm").allows
    limited = '{"scopes.authorization.openshift.io": ["user:info"]}'
    assert allows(PageUser("ann"), ACT_RIGHT)
    assert not allows(PageUser("ann", extra=limited), ACT_RIGHT)
    assert allows(PageUser("ann"), ACT_RIGHT)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"listen_host": "::"}, "DSF_WEB_AUTH is none"),
        ({"web_auth": "local", "listen_host": "::"}, "DSF_WEB_AUTH is local"),
        ({"web_auth": "token"}, "DSF_CLIENT_TOKEN_FILE"),
        ({"web_auth": "proxy"}, "DSF_WEB_TRUSTED_PROXIES"),
        ({"web_root_path": "//x"}, "DSF_WEB_ROOT_PATH"),
        ({"web_root_path": "/scorers"}, "DSF_WEB_ROOT_PATH"),
    ],
)
def test_open_access_settings_are_refused_at_start(
    settings_factory: SettingsFactory, values: dict[str, object], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        WebService(settings_factory(role="hub", backend="dir", **values))
