"""Who somebody is, and what they may do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from dsf.errors import AccessError, BackendError, SettingsError
from dsf.kube.session import Session
from dsf.web.access import PageUser, UserAccess, behind_proxy, listed
from dsf.web.kube import KubeAccess
from dsf.web.service import WebService, _access
from tests.conftest import SettingsFactory


def recognised(access: UserAccess, *, trusted: bool = True, **headers: str) -> PageUser | None:
    raw = [(name.replace("_", "-").lower().encode(), text.encode()) for name, text in headers.items()]
    return access.recognise(Request({"type": "http", "headers": raw, "dsf.trusted": trusted}))


def test_either_family_of_headers_names_people() -> None:
    access = behind_proxy(listed([]))
    ann = PageUser("ann", groups=("dev", "sre"))
    assert recognised(access, X_Forwarded_User="ann", X_Forwarded_Groups="dev, sre") == ann
    assert recognised(access, X_Auth_Request_User="ann", X_Auth_Request_Groups="dev,sre") == ann
    both = {"X_Auth_Request_User": "ann", "X_Auth_Request_Groups": "dev,sre"}
    assert recognised(access, X_Forwarded_User="ann", X_Forwarded_Groups="dev,sre", **both) == ann
    assert recognised(access, X_Forwarded_Email="ann@example.com") == PageUser("ann@example.com")


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Auth_Request_User": "boss"},
        {"X_Auth_Request_Groups": "system:masters"},
        {"X_Auth_Request_User": "ann", "X_Auth_Request_Groups": "system:masters"},
        {"X_Auth_Request_Email": "boss@example.com"},
    ],
)
def test_headers_that_the_proxy_lets_pass_name_nobody(headers: dict[str, str]) -> None:
    with pytest.raises(AccessError, match="must remove"):
        recognised(behind_proxy(listed([])), X_Forwarded_User="ann", **headers)


@pytest.mark.parametrize("header", ["X_Forwarded_User", "X_Auth_Request_User", "Remote_User"])
def test_nobody_but_a_trusted_proxy_names_people(header: str) -> None:
    with pytest.raises(AccessError, match="use the proxy") as refused:
        recognised(behind_proxy(listed(["bob"])), trusted=False, **{header: "bob"})
    assert refused.value.status == 401


@pytest.mark.parametrize("header", ["User", "Email", "Groups"])
@pytest.mark.parametrize("family", ["X-Forwarded", "X-Auth-Request"])
def test_a_header_that_the_proxy_adds_to_its_client_s_names_nobody(family: str, header: str) -> None:
    lines = [(f"{family}-User", "ann"), (f"{family}-{header}", "boss"), (f"{family}-{header}", "ann")]
    raw = [(name.lower().encode(), text.encode()) for name, text in lines]
    request = Request({"type": "http", "headers": raw, "dsf.trusted": True})
    with pytest.raises(AccessError, match="must replace") as refused:
        behind_proxy(listed([])).recognise(request)
    assert refused.value.status == 401


def test_listed_operators_act_also_where_there_is_an_api_server(settings_factory: SettingsFactory) -> None:
    settings = settings_factory(
        role="hub", web_auth="proxy", web_trusted_proxies=["10.0.0.0/8"], web_operators=["sre"], namespace="ocm"
    )
    # It would be asked for rights, and cannot be.
    access = _access(settings, cast("Session", object()))
    assert access.allows(PageUser("ann", groups=("sre",)), "act")
    assert not access.allows(PageUser("bob", groups=("dev",)), "act")
    assert access.allows(PageUser("bob"), "look")


def test_a_login_counts_while_the_token_is_the_same(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    access = _access(settings_factory(role="hub", web_auth="token", client_token_file=file), None)
    assert access.allows(access.login("one"), "act")
    file.write_text("two")
    with pytest.raises(AccessError):
        access.login("one")
    file.unlink()
    with pytest.raises(SettingsError, match="DSF_CLIENT_TOKEN_FILE"):
        access.login("two")


class Reviewer:
    """In place of the API server."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Semaphore(0), threading.Event()

    def holder(self, token: str) -> dict[str, Any]:
        self.inside.release()
        assert self.go_on.wait(30)
        return {"username": token}

    def allows(self, user: dict[str, Any], *_: object) -> bool:
        return not user["extra"]


@pytest.fixture
def reviewer(monkeypatch: pytest.MonkeyPatch) -> Reviewer:
    made = Reviewer()
    monkeypatch.setattr("dsf.web.kube.Reviews", lambda _: made)
    return made


def test_only_so_many_tokens_are_checked_at_a_time(reviewer: Reviewer) -> None:
    """Each takes a thread of the page, and logins of a good user and a flood of wrong tokens have the same address."""
    holder = KubeAccess(cast("Session", None), "ocm").holder
    with ThreadPoolExecutor(8) as pool:
        checks = [pool.submit(holder, f"token{number}") for number in range(8)]
        assert all(reviewer.inside.acquire(timeout=30) for _ in checks)
        with pytest.raises(BackendError, match="too much at a time"):
            holder("another")
        reviewer.go_on.set()
        assert [one.result().name for one in checks] == [f"token{number}" for number in range(8)]
    assert holder("token1") == PageUser("token1")
    assert not reviewer.inside.acquire(blocking=False)


def test_what_a_token_may_not_is_not_remembered_for_another_one(reviewer: Reviewer) -> None:
    allows = KubeAccess(cast("Session", None), "ocm").allows
    limited = '{"scopes.authorization.openshift.io": ["user:info"]}'
    assert allows(PageUser("ann"), "act")
    assert not allows(PageUser("ann", extra=limited), "act")
    assert allows(PageUser("ann"), "act")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"listen_host": "::"}, "DSF_WEB_AUTH is none"),
        ({"web_auth": "local", "listen_host": "::"}, "DSF_WEB_AUTH is local"),
        ({"web_auth": "token"}, "DSF_CLIENT_TOKEN_FILE"),
        ({"web_auth": "proxy"}, "DSF_WEB_TRUSTED_PROXIES"),
        ({"web_root_path": "//x"}, "DSF_WEB_ROOT_PATH"),
        ({"web_root_path": "/scorers"}, "DSF_WEB_ROOT_PATH"),
    ],
)
def test_what_would_be_open_to_others_does_not_start(
    settings_factory: SettingsFactory, values: dict[str, object], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        WebService(settings_factory(role="hub", backend="dir", **values))
