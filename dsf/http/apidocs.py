"""`/docs` of our HTTP services: their OpenAPI document for people, with nothing loaded from other machines."""

from __future__ import annotations

import gzip
from importlib import resources
from typing import Annotated, Final, Literal

from fastapi import FastAPI, Header, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from prometheus_client.exposition import gzip_accepted

PATH: Final = "/docs"
_SCRIPT: Final = "swagger-ui-bundle.js"
_STYLE: Final = "swagger-ui.css"
_TYPES: Final = {_SCRIPT: "text/javascript", _STYLE: "text/css"}
#: What the page loads, for services that ask for a token: these need none.
ASSETS: Final = tuple(f"{PATH}/{name}" for name in _TYPES)
#: Seconds that a browser keeps them.
_CACHED: Final = 86_400


def add_docs(app: FastAPI) -> None:
    """Serve the page at /docs. The application's own `docs_url` and `redoc_url` must be None."""

    @app.get(PATH, include_in_schema=False)
    def docs() -> HTMLResponse:
        # Relative, so that a proxy may serve all of it below a path. An empty icon: the default one is on the web.
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=app.title,
            swagger_js_url=f"docs/{_SCRIPT}",
            swagger_css_url=f"docs/{_STYLE}",
            swagger_favicon_url="data:,",
        )

    @app.get(f"{PATH}/{{name}}", include_in_schema=False)
    def asset(
        name: Literal["swagger-ui-bundle.js", "swagger-ui.css"], accept_encoding: Annotated[str, Header()] = ""
    ) -> Response:
        body = resources.files("dsf.http").joinpath("swagger", f"{name}.gz").read_bytes()
        headers = {"Cache-Control": f"max-age={_CACHED}", "Vary": "Accept-Encoding"}
        if gzip_accepted(accept_encoding):
            headers["Content-Encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
        return Response(body, media_type=_TYPES[name], headers=headers)
