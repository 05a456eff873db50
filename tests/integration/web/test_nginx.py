"""The page behind nginx, with TLS and a path before all addresses, as docs/web.md has it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import redis
import requests
from playwright.sync_api import Browser, expect
from urllib3.exceptions import InsecureRequestWarning

from tests.integration.docs import pages
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.integration.web.visitor import TOKEN
from tests.support.browser import TIMEOUT, Tab
from tests.support.nginx import nginx
from tests.support.redisserver import RedisServer
from tests.support.tlsca import TestCa
from tests.support.webprocess import WebProcess

expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def proxied(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page behind nginx; it wants a token."""
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "token").write_text(TOKEN)
    [location] = [block.text for block in pages.blocks(pages.ROOT / "docs" / "web.md") if block.language == "nginx"]
    settings = {"web_root_path": "/scores", "web_trusted_proxies": '["127.0.0.1"]', "web_auth": "token"}
    with WebProcess(redis_server.url, folder / "log", client_token_file=folder / "token", **settings) as page:
        certificate = TestCa(folder / "ca").issue("127.0.0.1")
        documented = "127.0.0.1:8080"
        assert documented in location
        lines = location.replace(documented, f"127.0.0.1:{page.port}")
        with nginx(folder, lines, certificate) as url:
            yield url


def test_page_behind_nginx_supports_login_polling_and_actions(
    proxied: str, browser: Browser, redis_client: redis.Redis
) -> None:
    fleet = good_fleet(redis_client)
    with Tab(browser, proxied, ignore_https_errors=True) as tab:
        page = tab.open("/scores/")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("h1")).to_contain_text("All 2 scores are fresh")
        [cookie] = tab.context.cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Lax")
        # The proxy does not buffer streamed responses.
        expect(page.locator("html")).to_have_attribute("data-polled", "yes")
        fleet.failure("worker02", message="unknown metric")
        expect(page.locator("h1")).to_contain_text("sample-scorer fails on worker02: bad_query")
        tab.open(f"/scores/act/rescore?scorer={SAMPLE}")
        page.get_by_role("button", name="Score now on 2 clusters").click()
        expect(page.locator("h1")).to_contain_text("under way")
        assert all(url.startswith(f"{proxied}/scores/") for url in tab.asked), tab.asked
        assert tab.wrong == []


def test_host_name_unknown_to_the_proxy_is_refused(proxied: str) -> None:
    with requests.Session() as session:
        session.trust_env, session.verify = False, False
        with warnings.catch_warnings(action="ignore", category=InsecureRequestWarning):
            assert session.get(f"{proxied}/scores/login").status_code == 200
            assert session.get(f"{proxied}/scores/login", headers={"Host": "evil.example"}).status_code == 421


def test_metrics_behind_the_proxy_require_a_login(proxied: str, redis_client: redis.Redis) -> None:
    """No NetworkPolicy restricts the clients of the proxy."""
    good_fleet(redis_client)
    with requests.Session() as session, warnings.catch_warnings(action="ignore", category=InsecureRequestWarning):
        session.trust_env, session.verify = False, False
        response = session.get(f"{proxied}/scores/metrics")
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert SAMPLE not in response.text
        response = session.get(f"{proxied}/scores/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (response.status_code, "sample_score" in response.text) == (200, True)
