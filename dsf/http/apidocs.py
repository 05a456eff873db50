"""`/docs` of the HTTP services: their OpenAPI document, without external resources."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, FastAPI, Header, Response
from fastapi.responses import HTMLResponse
from prometheus_client.exposition import gzip_accepted

PATH: Final = "/docs"
_SCRIPT: Final = "swagger-ui-bundle.js"
_STYLE: Final = "swagger-ui.css"
_START: Final = "start.js"
_TYPES: Final = {_SCRIPT: "text/javascript", _STYLE: "text/css", _START: "text/javascript"}
#: Files that the page loads; needs no token in services that require one.
ASSETS: Final = tuple(f"{PATH}/{name}" for name in _TYPES)
# A file: a content security policy may forbid inline scripts.
_BEGIN: Final = b"""SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""
# Relative links, so that a proxy may serve all of it below a path. An empty icon: the default one is external.
_PAGE: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="docs/{_STYLE}">
</head>
<body><div id="swagger-ui"></div><script src="docs/{_SCRIPT}"></script><script src="docs/{_START}"></script></body>
</html>
"""


def add_docs(app: FastAPI, needs: Sequence[Callable[..., Any]] = ()) -> None:
    """Serve the page at /docs. The application's own `docs_url` and `redoc_url` must be None.

    `needs` are dependencies of the page, such as authentication; its assets are public.
    """

    @app.get(PATH, include_in_schema=False, dependencies=[Depends(dependency) for dependency in needs])
    def docs() -> HTMLResponse:
        return HTMLResponse(_PAGE.format(title=escape(app.title)))

    @app.get(f"{PATH}/{{name}}", include_in_schema=False)
    def asset(
        name: Literal["swagger-ui-bundle.js", "swagger-ui.css", "start.js"],
        accept_encoding: Annotated[str, Header()] = "",
    ) -> Response:
        headers = {"Cache-Control": "max-age=86400", "Vary": "Accept-Encoding"}
        plain, squeezed = _asset(name)
        is_squeezed = gzip_accepted(accept_encoding)
        if is_squeezed:
            headers["Content-Encoding"] = "gzip"
        return Response(squeezed if is_squeezed else plain, media_type=_TYPES[name], headers=headers)


@cache
def _asset(name: str) -> tuple[bytes, bytes]:
    """Return a file as it is and as gzip, read once: many clients may ask for it at a time, without a login."""
    if name == _START:
        return _BEGIN, gzip.compress(_BEGIN)
    squeezed = resources.files("dsf.http").joinpath("swagger", f"{name}.gz").read_bytes()
    return gzip.decompress(squeezed), squeezed
