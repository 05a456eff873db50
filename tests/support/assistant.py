"""An assistant: the official client of the Model Context Protocol, over both transports, in both protocol versions."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import httpx2
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, Tool

_Value = TypeVar("_Value")
#: `legacy` begins with the handshake of versions until 2025, `auto` uses the newest version that both sides support.
Mode = Literal["legacy", "auto"]


class Assistant:
    """Calls tools. Each call is a separate conversation, so that calls are independent."""

    def __init__(
        self,
        url: str = "",
        *,
        token: str | None = None,
        environment: Mapping[str, str] | None = None,
        errors: str = "",
        mode: Mode = "auto",
    ) -> None:
        """Prepare an assistant: with `url` over HTTP, otherwise by `dsf mcp` with that environment.

        The standard error of `dsf mcp` goes to the file `errors`.
        """
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._environment = dict(environment or {})
        self._errors = errors
        self._mode: Mode = mode

    def run(self, work: Callable[[Client], Awaitable[_Value]]) -> _Value:
        """Run a conversation with the server."""

        async def talk() -> _Value:
            async with AsyncExitStack() as stack:
                if self._url:
                    # Without TLS verification: loading all CAs of the system would take longer than a call over plain
                    # HTTP.
                    without_tls = httpx2.AsyncClient(headers=self._headers, timeout=300, verify=False)
                    http = await stack.enter_async_context(without_tls)
                    transport: Any = streamable_http_client(self._url, http_client=http)
                else:
                    log = stack.enter_context(Path(self._errors).open("a", encoding="utf-8"))  # noqa: SIM115
                    command = StdioServerParameters(
                        command=sys.executable, args=["-m", "dsf.cli", "mcp"], env=self._environment
                    )
                    transport = stdio_client(command, errlog=log)
                client = await stack.enter_async_context(Client(transport, mode=self._mode, read_timeout_seconds=60))
                return await work(client)

        return anyio.run(talk)

    def tools(self) -> dict[str, Tool]:
        """Return the tools that the server offers."""

        async def work(client: Client) -> dict[str, Tool]:
            return {tool.name: tool for tool in (await client.list_tools()).tools}

        return self.run(work)

    def call(self, tool: str, **arguments: Any) -> CallToolResult:
        """Return the raw result of one tool."""

        async def work(client: Client) -> CallToolResult:
            return await client.call_tool(tool, arguments)

        return self.run(work)

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the response of one tool."""
        return answer(self.call(tool, **arguments))

    def problem(self, tool: str, **arguments: Any) -> str:
        """Call a tool and return its error message."""
        return problem(self.call(tool, **arguments))


def answer(result: CallToolResult) -> dict[str, Any]:
    """Return the data of a successful response, after checking that its text has the same data."""
    text = result.content[0].text  # type: ignore[union-attr]
    assert not result.is_error, text
    assert result.structured_content is not None
    assert json.loads(text) == result.structured_content
    return result.structured_content


def problem(result: CallToolResult) -> str:
    """Return the text of an error, as the assistant reads it."""
    assert result.is_error, result.content
    assert result.structured_content is None
    (content,) = result.content
    return str(content.text)  # type: ignore[union-attr]
