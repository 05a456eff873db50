"""Log in to the page with a token, in a browser on the nodes' network, and print the result.

    python -m tests.node.look URL [--picture FILE] [--compare SCORER OTHER] < token

A program of its own, because a browser sees the network that its process is in.
"""

from __future__ import annotations

import argparse
import json
import sys

from playwright.sync_api import Page, expect, sync_playwright

from tests.support.browser import ARGUMENTS, TIMEOUT, Tab
from tests.support.programs import find


def main() -> None:
    """Print JSON: status of the login, status and text of the first page, errors in the browser, and with --compare
    the final page, or null if the page does not offer a comparison.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--picture")
    parser.add_argument("--compare", nargs=2)
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find("chromium")), args=list(ARGUMENTS), timeout=TIMEOUT
        )
        with Tab(browser, arguments.url) as tab:
            page = tab.open("/")
            page.get_by_label("Token").fill(sys.stdin.read().strip())
            with page.expect_response(lambda response: response.url.endswith("/login")) as answered:
                page.get_by_role("button", name="Log in").click()
            page.wait_for_load_state("load")
            first = page.goto(arguments.url + "/", wait_until="load")
            assert first is not None
            if arguments.picture:
                page.screenshot(path=arguments.picture)
            report = {
                "login": answered.value.status,
                "status": first.status,
                "text": page.inner_text("main"),
                "wrong": tab.wrong,
            }
            if arguments.compare:
                report["compared"] = _compared(
                    tab.open(f"/scorers/{arguments.compare[0]}/backtests"), arguments.compare[1]
                )
        browser.close()
    print(json.dumps(report))


def _compared(page: Page, other: str) -> str | None:
    """Start a comparison of the current scores, wait for its end, and return the text of the page."""
    link = page.get_by_role("link", name="Compare", exact=True)
    if not link.count():
        return None
    link.click()
    page.get_by_label("The other scorer").select_option(other)
    page.get_by_role("button", name="Run a comparison").click()
    # The page follows it by itself.
    expect(page.locator("#chosen")).to_contain_text("scores as they were", timeout=TIMEOUT)
    return page.inner_text("main")


if __name__ == "__main__":
    main()
