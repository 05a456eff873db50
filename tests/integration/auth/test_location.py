"""Routes to scoring APIs: Internal without a proxy, External through one; for agents and for the hub."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dsf.api.summary import ScorerSummary
from dsf.api.types import ConfigSyncMode
from dsf.auth.authenticator import Authenticator
from dsf.errors import HttpError
from dsf.http.access import DIRECT, Access
from dsf.hub.health import HealthTarget, check
from tests.integration.http.test_proxies import Proxy, clean
from tests.support.authenticatedquery import SourceAccessHarness
from tests.support.httpserver import ScriptedServer, answer
from tests.support.wait import PATIENCE

# The proxies of this shell are not used.
__all__ = ["clean"]

BOUND = {"methods": {}, "authentication": "a", "allowedHosts": ["127.0.0.1"], "proxyURL": "http://proxy.example:3128"}


def access(bed: SourceAccessHarness, stage: str, **summary_fields: object) -> Access:
    """Return the access with which an agent sends its requests."""
    summary = bed.summary("http://127.0.0.1:1", None).model_dump(by_alias=True, exclude_none=True, mode="json")
    summary.pop("sourceAccess")
    scorer_summary = ScorerSummary.model_validate({**summary, **summary_fields})
    return Authenticator(bed.secrets).make_access(scorer_summary, stage, time.monotonic() + 30)  # type: ignore[arg-type]


def test_agent_access_uses_the_proxy_for_external_scoring_apis_only(bed: SourceAccessHarness) -> None:
    assert access(bed, "score", location="Internal").is_direct
    assert not access(bed, "score", location="External").is_direct
    # The location concerns the scoring API: for sources there is NO_PROXY.
    assert not access(bed, "fetch", location="Internal").is_direct
    external_access = access(bed, "score", location="External", scoringAccess=BOUND)
    assert (external_access.proxy, external_access.is_direct) == ("http://proxy.example:3128", False)
    assert access(bed, "score", location="Internal", scoringAccess=BOUND).is_direct
    assert access(bed, "fetch", sourceAccess=BOUND).proxy == "http://proxy.example:3128"


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("location", ["Internal", "External"])
def test_token_server_uses_the_proxy_of_the_scoring_api_location(
    bed: SourceAccessHarness, monkeypatch: pytest.MonkeyPatch, location: str, is_named: bool
) -> None:
    """The token server is accessed like the server for which the token is."""
    bed.put("client", usable_for="sso.test, 127.0.0.1", secret="s3cret")
    with Proxy(refuse=502) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        scoring_access: dict[str, object] = {
            "methods": {
                "oauth2": {
                    "tokenURL": "https://sso.test/token",
                    "clientID": {"value": "a"},
                    "clientSecret": {"name": "client", "key": "secret"},
                }
            },
            "authentication": "a",
            "allowedHosts": ["127.0.0.1"],
        }
        if is_named:
            scoring_access["proxyURL"] = f"http://{proxy.address}"
            monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
        # The host does not resolve, so either the proxy or the machine reports it.
        with pytest.raises(HttpError, match="no token from the OAuth2 server"):
            access(bed, "score", location=location, scoringAccess=scoring_access)
        assert bool(proxy.asked) == (location == "External")


@pytest.fixture
def api() -> Iterator[ScriptedServer]:
    """A scoring API."""
    with ScriptedServer(answer("ok")) as running:
        yield running


def test_hub_health_check_uses_the_proxy_for_external_scoring_apis(api: ScriptedServer) -> None:
    with Proxy() as proxy:
        url = f"http://scorer.test:{api.port}/config"
        external = HealthTarget(url, ConfigSyncMode.None_, Access(proxy=f"http://{proxy.address}"))
        assert check(external, timeout=PATIENCE).health_failure is None
        assert proxy.asked == [f"GET http://scorer.test:{api.port}/healthz"]
        # Without a proxy, this name does not resolve.
        failure = check(HealthTarget(url, ConfigSyncMode.None_, DIRECT), timeout=PATIENCE).health_failure
        assert failure is not None
        assert "cannot be resolved" in failure.message
        assert len(proxy.asked) == 1
