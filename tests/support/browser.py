"""A real browser: Debian's Chromium, driven by Playwright. Without Chromium, tests are skipped; in CI they fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import resources
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

from dsf.errors import ToolError
from tests.support.programs import find

#: Options for root, containers and machines without a graphics card.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
#: Milliseconds; long, because the machine may be busy.
TIMEOUT = 60_000
#: Colour schemes of every page.
THEMES: Final = ("light", "dark")
#: axe's rules about colours.
_COLOURS: Final = ["color-contrast", "link-in-text-block"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start one browser for a test file. Its event loop occupies this thread, so that no other loop can run."""
    try:
        program = find("chromium")
    except ToolError as error:
        reason = f"no browser: {error}"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(program), args=list(ARGUMENTS), timeout=TIMEOUT)
        # The context that tabs share, kept open by an empty page.
        launched.new_context().new_page()
        yield launched
        launched.close()


class Tab:
    """A browser page of one visitor; records the requests to each server and the errors.

    With `options` it has a separate context, whose creation takes most of the time of a tab. All others share a
    context, without the cookies of earlier tabs.
    """

    def __init__(self, browser: Browser, base: str, *, viewport: ViewportSize | None = None, **options: object) -> None:
        self.base = base
        self._is_shared = bool(browser.contexts) and not options
        self.context: BrowserContext = browser.contexts[0] if self._is_shared else browser.new_context(**options)  # type: ignore[arg-type]
        self.context.clear_cookies()
        self.context.set_default_timeout(TIMEOUT)
        self.page: Page = self.context.new_page()
        if viewport is not None:
            self.page.set_viewport_size(viewport)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shared:
            self.page.close()
        else:
            self.context.close()

    def open(self, path: str) -> Page:
        """Open a page of the site."""
        self.page.goto(self.base + path, wait_until="load")
        return self.page

    def picture(self, name: str) -> None:
        """Save a screenshot as web-NAME.png in the folder DSF_PICTURES, if it is set: for docs/web.md."""
        if folder := os.environ.get("DSF_PICTURES"):
            self.page.screenshot(path=f"{folder}/web-{name}.png")

    @property
    def nodes(self) -> int:
        """Number of elements of the page."""
        return int(self.page.evaluate("document.querySelectorAll('*').length"))

    @property
    def foreign_requests(self) -> list[str]:
        """Return the URLs requested from other servers."""
        return [url for url in self.asked if not url.startswith((self.base + "/", "data:"))]

    def violations(self, *themes: Literal["light", "dark"]) -> list[str]:
        """Return the violations that axe reports, with their elements, in each of these colour schemes.

        The last scheme stays set. Further schemes are checked for colours only, because they change nothing else.
        """
        self.page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        violations = []
        for number, theme in enumerate(themes or (None,)):
            if theme:
                self.page.emulate_media(color_scheme=theme)
            options = {"resultTypes": ["violations"], **({"runOnly": _COLOURS} if number else {})}
            for violation in self.page.evaluate("(options) => axe.run(document, options)", options)["violations"]:
                violations.append(
                    f"{theme or ''} {violation['id']}: {[node['target'] for node in violation['nodes']][:3]}"
                )
        return violations
