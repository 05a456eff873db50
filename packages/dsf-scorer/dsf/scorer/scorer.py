"""A scorer that serves itself."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from dsf.scorer.app import ScorerApp
from dsf.scorer.definition import Definition

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Scorer(Definition):
    """A scorer of one score. It is an ASGI application by itself; several go into one `ScorerApp`.

    Its arguments are those of `Definition`. Raises ScorerError for an invalid value.
    """

    @cached_property
    def app(self) -> ScorerApp:
        """The service with only this scorer, created at first use."""
        return ScorerApp(self)

    def run(self, *, host: str = "127.0.0.1", port: int = 8000) -> None:
        """Serve until Ctrl-C. In a container use host="0.0.0.0", or use `uvicorn module:app`."""
        self.app.run(host=host, port=port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        await self.app(scope, receive, send)
