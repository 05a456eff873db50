"""Page `/docs` of the HTTP services, which displays their OpenAPI document without external resources."""

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
_MEDIA_TYPES: Final = {_SCRIPT: "text/javascript", _STYLE: "text/css", _START: "text/javascript"}
#: Paths of the files that the page loads. They need no token, even in services that require one.
ASSETS: Final = tuple(f"{PATH}/{name}" for name in _MEDIA_TYPES)
# Content of `start.js`. The script is a separate file, because a content security policy may forbid inline scripts.
_START_SCRIPT: Final = b"""const dark = matchMedia("(prefers-color-scheme: dark)");
const applyTheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
applyTheme();
dark.addEventListener("change", applyTheme);
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""
# Links are relative, so that a proxy can serve the page and its files below a path. The icon is empty, because the
# default icon of FastAPI is external.
_PAGE: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{title}}</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="docs/{_STYLE}">
</head>
<body><div id="swagger-ui"></div><script src="docs/{_SCRIPT}"></script><script src="docs/{_START}"></script></body>
</html>
"""


def add_docs(app: FastAPI, needs: Sequence[Callable[..., Any]] = ()) -> None:
    """Serve the page at /docs. The `docs_url` and `redoc_url` of the application must be None.

    `needs` are FastAPI dependencies of the page, such as authentication. They do not apply to its public assets.
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
        content, compressed_content = _read_asset(name)
        accepts_gzip = gzip_accepted(accept_encoding)
        if accepts_gzip:
            headers["Content-Encoding"] = "gzip"
        body = compressed_content if accepts_gzip else content
        return Response(body, media_type=_MEDIA_TYPES[name], headers=headers)


@cache
def _read_asset(name: str) -> tuple[bytes, bytes]:
    """Return the content of a file, plain and compressed with gzip.

    The result is cached, because many clients may request the file at the same time without a login.
    """
    if name == _START:
        return _START_SCRIPT, gzip.compress(_START_SCRIPT)
    compressed_content = resources.files("dsf.http").joinpath("swagger", f"{name}.gz").read_bytes()
    return gzip.decompress(compressed_content), compressed_content
