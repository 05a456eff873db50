"""The readers of foreign bytes, each a function of the document."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, cast

import anyio
from starlette.requests import Request

from dsf import http
from dsf.api.manifest import parse_documents
from dsf.api.remoteconfig import parse_remote_config
from dsf.api.scoringresponse import parse_response
from dsf.auth import oauth2
from dsf.backtest.recording import Recording
from dsf.messages import derive_key, make_frame, verify
from dsf.optimizer.params import OptimizeParams
from dsf.optimizer.requestbody import load_json
from dsf.otlp import receiver
from dsf.otlp.scrape import select_samples
from dsf.otlp.selector import Selector
from dsf.scorer import Limits, requestbody
from dsf.sources.prometheus import extract_series
from dsf.web import forms
from dsf.worker import flower, remotecontrol

_SECRET = bytes(32)
#: First lines of an assistant.
_GREETINGS: Final = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
)


def result(data: bytes) -> None:
    """Read a result that is signed by its agent, or by somebody with its credentials."""
    verify(make_frame(data, derive_key(_SECRET, "c1", 1), "c1"), _SECRET)


def unsigned_result(data: bytes) -> None:
    """Bytes in a slot of a mailbox."""
    verify(data, _SECRET)


def later_result(data: bytes) -> None:
    """A result of a schema that this hub does not know."""
    verify(make_frame(data, derive_key(_SECRET, "c1", 1), "c1", 9), _SECRET)


remote_config = parse_remote_config
scoring_response = parse_response


def scoring_request(data: bytes) -> None:
    """A request to a scorer of the library."""
    requestbody.parse(data, Limits())


def scoring_request_of_sources(data: bytes) -> None:
    """A request to a scorer with several sources."""
    requestbody.parse_sources(data, Limits(), ["load"])


def matrix(data: bytes) -> None:
    """Prometheus' response."""
    extract_series(data)


def scrape(data: bytes) -> None:
    """A page of metrics."""
    select_samples(data, [Selector(""), Selector("a")], 2e9, 0.0)


def pushed(data: bytes) -> None:
    """A push of OpenTelemetry, as JSON."""
    receiver._parse_request(data, as_json=True)


def pushed_protobuf(data: bytes) -> None:
    """The same bytes as protobuf."""
    receiver._parse_request(data, as_json=False)


def recording(data: bytes) -> None:
    """A file of `dsf backtest -o jsonl`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recording.jsonl")
        path.write_bytes(data + b"\n")
        with Recording(path):
            pass


def manifests(data: bytes) -> None:
    """A file of manifests."""
    [*parse_documents(data.decode(errors="replace"), "f.yaml")]


def plan_request(data: bytes) -> None:
    """A request to the optimiser, as the service and as the tools for assistants read it."""
    OptimizeParams.model_validate(load_json(data))


def assistant(data: bytes) -> None:
    """Read a line on the standard input of `dsf mcp`, after the first ones of a client."""
    # Here, because all test processes load this module and one reads with MCP.
    from dsf.optimizer import mcp

    lines = b"\n".join([*(json.dumps(message).encode() for message in _GREETINGS), data, b""])
    anyio.run(mcp.serve, mcp.make_server(cast("Any", None)), io.BytesIO(lines), io.StringIO())


def page_form(data: bytes) -> None:
    """The body of a form of the page."""
    anyio.run(forms.read_form, Request({"type": "http", "method": "POST", "headers": []}, _pieces(data)))


def _pieces(data: bytes, size: int = 16384) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Return a body as it arrives."""
    stream = io.BytesIO(data)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": stream.read(size), "more_body": stream.tell() < len(data)}

    return receive


def control_reply(data: bytes) -> None:
    """A reply to `dsf inspect`, which any agent may send."""
    remotecontrol._parse_reply({"channel": b"dsf:control:reply:a", "data": data}, "t")


def event(data: bytes) -> None:
    """An event for Flower."""
    flower.filter_message(data, cast("flower.KnownWorkers", None))


def token(data: bytes) -> None:
    """The response of a token server."""
    oauth2._parse_token(http.Response(200, data), "http://t/")
