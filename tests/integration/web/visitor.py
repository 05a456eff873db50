"""A browser without JavaScript, and the token that `closed` wants of it."""

from __future__ import annotations

import re

from tests.support.webprocess import WebProcess

TOKEN = "t" * 40


class Visitor:
    """A browser without JavaScript: keeps its cookie and fills in forms."""

    def __init__(self, page: WebProcess, **headers: str) -> None:
        self.page = page
        self.cookies: dict[str, str] = {}
        self.headers = headers

    def get(self, path: str) -> str:
        """Return the text of a page."""
        response = self.page.request("GET", path, cookies=self.cookies, headers=self.headers)
        self.cookies.update(response.cookies.get_dict())
        self.status = response.status_code
        return response.text

    def post(self, path: str, html: str, **fields: str) -> tuple[int, str, str]:
        """Send the form of a page with these fields; status, text and where it leads to."""
        hidden = dict(re.findall(r'name="(\w+)" value="([^"]*)"', html))
        data = {**hidden, **fields}
        response = self.page.request("POST", path, data=data, cookies=self.cookies, headers=self.headers)
        self.cookies.update(response.cookies.get_dict())
        return response.status_code, response.text, response.headers.get("location", "")
