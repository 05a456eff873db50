"""Somebody with a browser where the nodes are: logs in to the page with a token and prints what is seen.

    python -m tests.node.look URL [PICTURE] < token

A program of its own, because a browser sees the network that its process is in.
"""

from __future__ import annotations

import json
import sys

from playwright.sync_api import sync_playwright

from tests.support.browser import ARGUMENTS, TIMEOUT, Tab
from tests.support.programs import find


def main() -> None:
    """Prints JSON: the status of the login's answer, that of the first page and its text, and what went wrong in the
    browser."""
    url, *picture = sys.argv[1:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find("chromium")), args=list(ARGUMENTS), timeout=TIMEOUT
        )
        with Tab(browser, url) as tab:
            page = tab.open("/")
            page.get_by_label("Token").fill(sys.stdin.read().strip())
            with page.expect_response(lambda answer: answer.url.endswith("/login")) as answered:
                page.get_by_role("button", name="Log in").click()
            page.wait_for_load_state("load")
            first = page.goto(url + "/", wait_until="load")
            assert first is not None
            if picture:
                page.screenshot(path=picture[0])
            said = {
                "login": answered.value.status,
                "status": first.status,
                "text": page.inner_text("main"),
                "wrong": tab.wrong,
            }
        browser.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
