"""`/docs`: description of the service, as a page without scripts and external resources."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

PATH: Final = "/docs"
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
)
_STYLE: Final = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto}pre{background:#eee;padding:1em;overflow:auto}"
)


def add_page(api: FastAPI) -> None:
    """Serve the page. The application's `docs_url` must be None, because FastAPI's page loads external scripts."""

    @api.get(PATH, include_in_schema=False)
    def docs(request: Request) -> HTMLResponse:
        parts = _iterate_parts(api.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse("\n".join(parts), headers={"Content-Security-Policy": _CONTENT_SECURITY_POLICY})


def _iterate_parts(document: dict[str, Any], base: str) -> Iterator[str]:
    title = html.escape(document["info"]["title"])
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
    yield "<p>With all schemas: <a href='openapi.json'>openapi.json</a></p>"
    for tag in document.get("tags", ()):
        yield f"<p><b>{html.escape(tag['name'])}</b>: {html.escape(tag.get('description', ''))}</p>"
    for path, operations in document["paths"].items():
        for method in ("get", "post", "put", "patch", "delete"):
            if method in operations:
                yield from _render_operation(method.upper(), path, operations[method], base)
    yield "</body></html>"


def _render_operation(method: str, path: str, operation: dict[str, Any], base: str) -> Iterator[str]:
    yield f"<h2><code>{method} {html.escape(path)}</code></h2>"
    yield f"<p>{html.escape(operation.get('description') or operation.get('summary', ''))}</p>"
    words = ["curl", "-s", base + path, *(() if method in ("GET", "POST") else ("-X", method))]
    if operation.get("security"):
        words += ["-H", "Authorization: Bearer TOKEN"]
    example = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    if method != "GET":
        words += ["-H", "Content-Type: application/json", "-d", json.dumps({} if example is None else example)]
    yield f"<pre>{html.escape(shlex.join(words))}</pre>"
