"""The documentation site in a real browser: commands to copy, search, version, themes and widths."""

from __future__ import annotations

import functools
import http.server
import re
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.support.browser import THEMES, TIMEOUT, Tab

ROOT = Path(__file__).resolve().parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
#: Pages with a diagram, with long commands, with wide tables.
PAGES = ("index.html", "docs/install.html", "docs/network.html")

expect.set_options(timeout=TIMEOUT)


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Serve the site as GitHub's pages do: every version is a folder."""
    handler = functools.partial(_QuietHandler, directory=str(built / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _read_clipboard(page: Page) -> str:
    """Return the text on the clipboard."""
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_each_command_has_a_button_that_copies_it_alone(browser: Browser, address: str) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    with Tab(browser, address, viewport=DESKTOP, permissions=permissions) as tab:
        page = tab.open("/latest/docs/install.html")
        block = page.locator(".language-console", has_text="helm repo add").first
        expect(block.locator(".copy-command")).to_have_count(3)
        expect(block.locator(".md-code__button")).not_to_be_visible()
        block.locator(".copy-command").nth(0).click()
        expect(page.locator(".md-dialog")).to_contain_text("Copied")
        copied = _read_clipboard(page)
        # A continued command is one; prompt and other commands are not in it.
        assert re.fullmatch(r"helm upgrade --install .* \\\n +--namespace \S+ --create-namespace", copied), copied
        block.locator(".copy-command").nth(1).click()
        page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('helm repo add ')")
        assert "\n" not in _read_clipboard(page)


def test_code_without_prompts_keeps_the_button_of_its_block(browser: Browser, address: str) -> None:
    with Tab(browser, address, viewport=DESKTOP) as tab:
        page = tab.open("/latest/index.html")
        block = page.locator(".language-yaml").first
        expect(block.locator(".md-code__button").first).to_be_visible()
        expect(block.locator(".copy-command")).to_have_count(0)


def test_search_for_firewall_finds_the_page_of_the_network(browser: Browser, address: str) -> None:
    with Tab(browser, address, viewport=DESKTOP) as tab:
        page = tab.open("/latest/index.html")
        page.locator(".md-search__button").click()
        page.get_by_role("combobox").fill("firewall")
        expect(page.get_by_role("option").first).to_contain_text("Network and firewall")
        page.keyboard.press("Enter")
        page.wait_for_url("**/docs/network.html*")


def test_version_and_edit_link_are_shown(browser: Browser, address: str) -> None:
    with Tab(browser, address, viewport=DESKTOP) as tab:
        page = tab.open("/latest/docs/install.html")
        expect(page.locator(".md-header")).to_contain_text(f"Version {VERSION}")
        expect(page.locator(".md-version__current")).to_have_text(VERSION)
        expect(page.locator(".md-footer")).to_contain_text(f"Version {VERSION}")
        expect(page.locator("a[rel=edit]")).to_have_attribute("href", re.compile(r"/edit/main/docs/install\.md$"))


def test_theme_is_the_systems_until_it_is_switched(browser: Browser, address: str) -> None:
    for scheme, first in (("light", "default"), ("dark", "slate")):
        with Tab(browser, address, viewport=DESKTOP, color_scheme=scheme) as tab:
            page = tab.open("/latest/index.html")
            expect(page.locator("body")).to_have_attribute("data-md-color-scheme", first)
            schemes = set()
            for _ in range(3):
                page.locator("[data-md-component=palette] label:visible").click()
                schemes.add(page.locator("body").get_attribute("data-md-color-scheme"))
            assert schemes == {"default", "slate"}


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_cut_off_and_no_request_leaves_the_site(
    browser: Browser, address: str, viewport: ViewportSize
) -> None:
    with Tab(browser, address, viewport=viewport) as tab:
        for name in PAGES:
            page = tab.open(f"/latest/{name}")
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], name
            if name == "index.html":
                diagram = page.locator(".language-text code").first
                expect(diagram).to_contain_text("MANAGED CLUSTER")
                assert diagram.evaluate("code => code.scrollWidth <= code.clientWidth")
        assert tab.foreign_requests == []
        assert tab.wrong == []


def test_pages_have_no_axe_violations(browser: Browser, address: str) -> None:
    with Tab(browser, address, viewport=DESKTOP) as tab:
        tab.open("/latest/docs/network.html")
        assert tab.violations(*THEMES) == []
