"""Every parser of outside input returns data or raises its own error for any input, in bounded time.

The seed is fixed, so that all runs are the same; `--hypothesis-seed=random` tries other inputs.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from dsf.agent import config
from dsf.api.manifest import parse_documents
from dsf.api.promql import split_queries
from dsf.api.remoteconfig import parse_remote_config
from dsf.api.scoringresponse import parse_response
from dsf.api.summary import parse_summaries
from dsf.errors import HttpError, ManifestError, MessageRejectedError, RemoteConfigError, ScoringResponseError
from dsf.http import failures
from dsf.http.client import decompress
from dsf.http.deadline import Exchange, watch_exchange
from dsf.http.transport import BoundedResponse
from dsf.messages import derive_key, make_frame, verify
from dsf.otlp.scrape import ScrapeError, select_samples
from dsf.otlp.selector import Selector, SelectorError, parse_selectors
from dsf.sources.prometheus import MatrixError, extract_series
from dsf.text import clean, describe_request, mask_secrets

MASTER = bytes(32)

#: Parts of these formats: combinations of them reach more code than arbitrary bytes.
_PIECES = st.sampled_from(
    [b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b";", b"\n", b"\r\n", b" ", b"a", b"1", b"-", b"1e999", b"NaN",
     b"\\ud800", b"\xff", b"\x00", b"\x1b", b"\xe2\x80\xae", b"=", b"~", b"(", b")", b"*", b"${", b"!!int ", b"&a ",
     b"*a", b"<<: ", b"- ", b'"result":[', b'{"metric":{', b'"values":[', b"null", b'{"results":[', b'"score":',
     b'{"status":"success","data":{"resultType":"matrix","result":[', b'{"scoring":{"host":"http://', b"https://[:]",
     b"HTTP/1.1 200 OK\r\n", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"5\r\n", b"0\r\n\r\n",
     b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", b"a{x=\"", b"} 1\n"]
)  # fmt: skip
_DATA = st.lists(_PIECES | st.binary(max_size=6), max_size=40).map(b"".join)


class _Wire:
    """The part of a socket that http.client reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object, buffering: int = -1) -> Any:
        raw = io.BytesIO(self._data)
        return raw if buffering == 0 else io.BufferedReader(cast("Any", raw))

    def settimeout(self, _: float) -> None:
        """Ignore time-outs."""


def _http(data: bytes) -> None:
    wire = cast("socket.socket", _Wire(data))
    try:
        with watch_exchange(Exchange(time.monotonic() + 60, 10_000)):
            answer = BoundedResponse(wire, method="GET")
            answer.begin()
            while answer.read(100):
                pass
    except Exception as error:  # noqa: BLE001
        # Every exception of http.client becomes an HttpError with a known reason.
        http_error = failures.make_exchange_error("GET http://x/", error, 10_000)
        assert isinstance(http_error, HttpError)
        raise HttpError(http_error.reason, str(http_error)) from None


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _verify(data: bytes) -> None:
    verify(make_frame(data, derive_key(MASTER, "c", 1), "c"), MASTER)


def _remote(data: bytes) -> None:
    parse_remote_config(data)


PARSERS: dict[str, tuple[Callable[[bytes], object], tuple[type[Exception], ...]]] = {
    "http answer": (_http, (HttpError,)),
    "gzip": (lambda data: list(decompress([data[:9], data[9:]])), (HTTPException,)),
    "matrix": (extract_series, (MatrixError,)),
    "scrape": (lambda data: select_samples(data, [Selector(""), Selector("a")], 2e9, 0.0), (ScrapeError,)),
    "scoring answer": (parse_response, (ScoringResponseError,)),
    "/config": (_remote, (RemoteConfigError,)),
    "manifests": (lambda data: parse_documents(_text(data), "f.yaml"), ()),
    "agent's file": (config._parse, (ManifestError,)),
    "summaries": (lambda data: parse_summaries(_text(data)), (ManifestError,)),
    "result": (_verify, (MessageRejectedError,)),
    "queries": (lambda data: split_queries(_text(data)), ()),
    "selectors": (lambda data: parse_selectors(_text(data)), (SelectorError,)),
    "url in a message": (lambda data: describe_request("GET", _text(data)), ()),
    "Retry-After": (lambda data: failures.parse_retry_after(_text(data)), ()),
    "text": (lambda data: clean(mask_secrets(_text(data), "canary-token-4f1e"), 200), ()),
}


def _outcome(parser: Callable[[bytes], object], errors: tuple[type[Exception], ...], data: bytes) -> str:
    """Return the error text for an input; empty if it is accepted."""
    try:
        parser(data)
    except errors as error:
        return str(error)
    return ""


@seed(11)
@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(_DATA)
def test_any_input_gives_data_or_a_documented_error(data: bytes) -> None:
    """Making an input costs more than parsing it, so all parsers get the same inputs."""
    for name, (parser, errors) in PARSERS.items():
        assert len(_outcome(parser, errors, data)) < 5000, name


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("piece", [b"[", b'{"a":', b"(", b'"', b"\\", b"a{", b"- ", b" ", b"9", b"\x00", b"\xff"])
def test_long_repetitions_end(name: str, piece: bytes) -> None:
    parser, errors = PARSERS[name]
    # Error texts do not repeat the input.
    assert len(_outcome(parser, errors, piece * 20_000)) < 5000
