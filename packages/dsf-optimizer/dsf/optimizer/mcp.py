"""Serves the optimiser to assistants by the Model Context Protocol: over HTTP at /mcp, and over standard input/output.

The official SDK implements the protocol; this module has the tool calls and transports.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import reprlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self, TextIO, cast
from urllib.parse import urlsplit

import anyio
import redis
from anyio import from_thread
from anyio.to_thread import run_sync
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

import dsf.log
from dsf.boundedjson import serialize_parsing
from dsf.errors import DsfError, JsonBoundsError, ManifestError, OutputError
from dsf.http.hosts import is_loopback
from dsf.optimizer.access import by_tool, current_caller
from dsf.optimizer.mcp_tools import TOOLS, Arguments, Tool
from dsf.optimizer.middleware import make_problem
from dsf.optimizer.requestbody import MAX_BODY, format_errors, load_json
from dsf.optimizer.service import OptimizerService

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream, WriteStream

log = dsf.log.get(__name__)

#: Path over HTTP.
PATH: Final = "/mcp"
# Bytes that are read at a time to skip a line that is too long.
_PIECE_BYTES: Final = 64 * 1024
_NO_MESSAGE: Final = "it is no JSON-RPC message"

_INSTRUCTIONS: Final = (
    "Scores say how well clusters suit a purpose. A plan chooses a policy for each cluster and a cluster for each "
    "workload so that the sum of the preferred scores is greatest.\n"
    "To optimise: list_scores to find the matching score; propose_plan; show the user the proposal; and only if they "
    "agree, apply_plan with its plan_id as planId. reset removes a plan.\n"
    "Expired scores are not used in plans: explain_scorer says why one is not renewed, rescore asks for a new one."
)


class McpMount:
    """The server within the HTTP service; see `dsf.optimizer.app.Mounted`."""

    def __init__(self, service: OptimizerService) -> None:
        _silence_sdk()
        self._server = make_server(service)
        self._app = self._server.streamable_http_app(
            streamable_http_path=PATH,
            # Stateless, so that any replica can handle a request, with the rights of its sender.
            stateless_http=True,
            json_response=True,
            max_request_body_size=MAX_BODY,
            # `asgi` and the middleware of the service check hosts and origins.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """Return a context that runs while the server is served."""
        return self._server.session_manager.run()

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, unless it is a cross-site request of a web page.

        The protocol requires this check. Requests from pages of this machine and of this service, and from clients
        other than web pages are allowed. Without tokens, `dsf.optimizer.middleware` also checks the host name. A
        service with tokens does not need that check, because a web page does not have a token.
        """
        refusal = _find_refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)


def _find_refusal(scope: Scope) -> JSONResponse | None:
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is not None and not _is_allowed_origin(origin, headers.get("host", "")):
        return make_problem(
            403, f"requests of the web page {origin!r} are refused; use an MCP client that is not a web page"
        )
    if scope["path"] != PATH:
        return make_problem(404, f"there is no {scope['path']}; see /docs")
    if scope["method"] != "POST":
        # Refuse GET, because its stream would stay open without any event.
        detail = f"{scope['method']} is not for {PATH}: every message is a POST, there are no sessions"
        return make_problem(405, detail, headers={"Allow": "POST"})
    return None


def _is_allowed_origin(origin: str, host: str) -> bool:
    """Return True if the origin is this machine or the host of the request."""
    try:
        parts = urlsplit(origin)
        return is_loopback(parts.hostname or "") or (bool(host) and parts.netloc == host)
    except ValueError:
        return False


def run_stdio(service: OptimizerService) -> None:
    """Serve one client over standard input and output until it closes them.

    Only the protocol may write to standard output: logging goes to standard error, the solver has its own process, and
    meanwhile file descriptor 1 is standard error for all other code. Raises OutputError and BrokenPipeError.
    """
    _silence_sdk()
    # Replace standard input by /dev/null, so that child processes and other code do not read the protocol's messages.
    with os.fdopen(os.dup(0), "rb") as requests:
        null_device = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_device, 0)
        os.close(null_device)
        try:
            anyio.run(serve, make_server(service), requests, None)
        except* OSError as errors:
            failed_writes = errors
        else:
            return
    error = _get_first(failed_writes)
    if isinstance(error, BrokenPipeError):
        # The client closed the connection.
        raise error
    raise OutputError(f"cannot write to standard output: {error.strerror or error}")


def _get_first(errors: BaseExceptionGroup[OSError]) -> OSError:
    error = errors.exceptions[0]
    return _get_first(error) if isinstance(error, BaseExceptionGroup) else error


async def serve(server: Server[Any], requests: BinaryIO, responses: TextIO | None) -> None:
    """Serve one client, one message per line. `responses` defaults to standard output."""
    lines = _CheckedLines(requests)
    stdout = None if responses is None else anyio.wrap_file(responses)
    async with stdio_server(anyio.wrap_file(cast("TextIO", lines)), stdout) as (incoming, outgoing):
        lines.send = outgoing.send
        open_requests = _OpenRequests()
        await server.run(
            _TrackedRequests(incoming, open_requests),
            _TrackedResponses(outgoing, open_requests),
            server.create_initialization_options(),
        )


class _OpenRequests:
    """Counts the requests without a response, by id."""

    def __init__(self) -> None:
        # The SDK treats the ids 1 and "1" as equal.
        self._counts: Counter[str] = Counter()
        self._all_closed = anyio.Event()
        self._all_closed.set()

    def record_received(self, message: types.JSONRPCMessage) -> None:
        """Record a message of the client. A cancelled request gets no response."""
        if isinstance(message, types.JSONRPCRequest):
            if not self._counts:
                self._all_closed = anyio.Event()
            self._counts[str(message.id)] += 1
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._close(str((message.params or {}).get("requestId")), are_all_closed=True)

    def record_sent(self, message: types.JSONRPCMessage) -> None:
        """Record a message to the client."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._close(str(message.id))

    async def wait_until_closed(self) -> None:
        """Wait until each request has its response."""
        await self._all_closed.wait()

    def _close(self, request_id: str, *, are_all_closed: bool = False) -> None:
        self._counts[request_id] = 0 if are_all_closed else self._counts[request_id] - 1
        self._counts = +self._counts
        if not self._counts:
            self._all_closed.set()


class _TrackedRequests:
    """The messages of the client. They end after the last response, because the SDK aborts open requests at their end.

    A client may close its output after its last request, as a pipe does.
    """

    def __init__(self, stream: ReadStream[SessionMessage | Exception], open_requests: _OpenRequests) -> None:
        self._stream = stream
        self._open_requests = open_requests

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message. Raises anyio.EndOfStream."""
        try:
            item = await self._stream.receive()
        except anyio.EndOfStream:
            await self._open_requests.wait_until_closed()
            raise
        if isinstance(item, SessionMessage):
            self._open_requests.record_received(item.message)
        return item

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _TrackedResponses:
    """The messages to the client."""

    def __init__(self, stream: WriteStream[SessionMessage], open_requests: _OpenRequests) -> None:
        self._stream = stream
        self._open_requests = open_requests

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        await self._stream.send(item)
        self._open_requests.record_sent(item.message)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _CheckedLines:
    """Reads lines with messages, within the bounds of a request over HTTP.

    The client gets an error for each other line, because the SDK would drop the line while the client waits for the
    response.
    """

    #: Sends a message to the client; set before the first line is read.
    send: Callable[[SessionMessage], Coroutine[Any, Any, None]]

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> str:
        """Return the next line, empty at the end. Blocks, so anyio calls it in a thread."""
        while line := self._stream.readline(MAX_BODY + 1):
            if line.isspace():
                continue
            document: Any = None
            try:
                if len(line) > MAX_BODY:
                    self._skip_line(line)
                    raise JsonBoundsError(f"it has more than {MAX_BODY} bytes")
                with serialize_parsing(len(line)):
                    document = load_json(line)
                    _check_fields(document)
                    text = line.decode("utf-8-sig")
                    # Validate the message as the SDK does afterwards.
                    types.jsonrpc_message_adapter.validate_json(text, by_name=False)
            except JsonBoundsError as error:
                self._refuse(str(error))
            except ValidationError:
                self._refuse(_NO_MESSAGE, types.INVALID_REQUEST, _find_id(document))
            except ManifestError as error:
                self._refuse(str(error), types.INVALID_REQUEST, _find_id(document or json.loads(line)))
            except ValueError:
                self._refuse("it is no JSON")
            else:
                return text
        return ""

    def _skip_line(self, start: bytes) -> None:
        piece = start
        while piece and not piece.endswith(b"\n"):
            piece = self._stream.readline(_PIECE_BYTES)

    def _refuse(self, reason: str, code: int = types.PARSE_ERROR, request_id: str | int | None = None) -> None:
        log.warning("message refused", reason=reason)
        data = types.ErrorData(code=code, message=f"the message is refused: {reason}")
        refusal = types.JSONRPCError(jsonrpc="2.0", id=request_id, error=data)
        # Suppress these errors, because the client may have closed the connection.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            from_thread.run(self.send, SessionMessage(refusal))


def _check_fields(document: Any) -> None:
    """Raise ManifestError for JSON that is no message.

    The SDK's own check follows. It stores a wrong value once for each kind of message, which may take a hundred times
    the memory of the text.
    """
    if not isinstance(document, dict) or document.get("jsonrpc") != "2.0":
        raise ManifestError(_NO_MESSAGE)
    if not isinstance(document.get("method", ""), str):
        raise ManifestError(_NO_MESSAGE)
    if any(not isinstance(document.get(name) or {}, dict) for name in ("params", "result", "error")):
        raise ManifestError(_NO_MESSAGE)
    # The SDK would treat a request with an id of another type as a notification.
    if "id" in document and "method" in document and type(document["id"]) not in (str, int):
        raise ManifestError("its id is neither text nor an integer")
    if type(document.get("id", 0)) not in (str, int, type(None)):
        raise ManifestError(_NO_MESSAGE)


def _find_id(document: Any) -> str | int | None:
    """Return the id of a request, so that its sender does not wait; None without one."""
    request_id = document.get("id") if isinstance(document, dict) and "method" in document else None
    if type(request_id) is str:
        # An id with lone surrogates cannot be sent.
        return request_id if request_id.isprintable() else None
    return request_id if type(request_id) is int else None


def _silence_sdk() -> None:
    """Silence the SDK's two log lines per request, because `_call` logs one line with more data."""
    logging.getLogger("mcp").setLevel(logging.WARNING)
    logging.getLogger("mcp.server.streamable_http").addFilter(_is_worth_logging)


def make_server(service: OptimizerService) -> Server[Any]:
    """Return the server with all tools. With access control, each call checks the caller's rights."""
    # Do not use the threads of the HTTP API, because they must stay free for probes.
    limiter = anyio.CapacityLimiter(16)

    async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe_tool(tool) for tool in TOOLS.values()])

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            return _make_error_result(f"there is no tool {reprlib.repr(params.name)}; there are: {', '.join(TOOLS)}")
        # Call the tool in a thread, because it blocks for milliseconds to seconds. The thread's context has the caller.
        return await run_sync(partial(_call, service, tool, params.arguments or {}), limiter=limiter)

    return Server(
        "dynamic-scoring",
        version=metadata.version("dynamic-scoring-framework"),
        title="Dynamic scoring",
        description="Scores of clusters, and plans that place workloads by them.",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _describe_tool(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=_drop_notes(tool.arguments.model_json_schema(by_alias=True)),
        output_schema=_drop_notes(tool.response.model_json_schema(mode="serialization")),
        annotations=tool.annotations,
    )


def _drop_notes(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without its model's name and docstring, because the tool has better ones."""
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


def _call(service: OptimizerService, tool: Tool, raw_arguments: dict[str, Any]) -> types.CallToolResult:
    """Call a tool. Every error becomes a response for the assistant; internal details are only logged."""
    started_at = time.monotonic()
    problem = ""
    # This sets the variable only in the thread's copy of the context.
    by_tool.set(True)
    try:
        response = tool.call(service, tool.arguments.model_validate(_decode_arguments(tool.arguments, raw_arguments)))
    except ValidationError as error:
        problem = f"wrong arguments: {format_errors(error.errors(include_url=False, include_input=False))}"
    except DsfError as error:
        problem = str(error)
    except redis.RedisError as error:
        problem = f"the hub's Redis cannot be used ({' '.join(str(error).split())}); check DSF_REDIS_URL"
    except Exception:
        log.exception("tool crashed", tool=tool.name)
        problem = "an internal error of the optimiser; see its log"
    caller = current_caller.get(None)
    log.info(
        "tool called",
        tool=tool.name,
        caller=caller.name if caller is not None else "",
        seconds=round(time.monotonic() - started_at, 3),
        problem=problem,
    )
    return _make_error_result(problem) if problem else _make_result(response)


def _decode_arguments(arguments: type[Arguments], raw_arguments: dict[str, Any]) -> dict[str, Any]:
    """Decode lists and objects that some clients send as JSON strings. Raises ManifestError."""
    decoded_arguments = dict(raw_arguments)
    for name, field in arguments.model_fields.items():
        for key in {name, field.alias or name} & raw_arguments.keys():
            value = raw_arguments[key]
            if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
                try:
                    decoded_arguments[key] = load_json(value)
                except ValueError:
                    continue
    return decoded_arguments


def _make_result(response: BaseModel) -> types.CallToolResult:
    content = response.model_dump(mode="json")
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=content)


def _make_error_result(problem: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=problem)], is_error=True)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False for the SDK's report that a client disconnected, or was refused, before its body arrived."""
    return not (record.exc_info and isinstance(record.exc_info[1], ClientDisconnect))
