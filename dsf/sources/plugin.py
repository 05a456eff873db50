"""The protocol for third-party source types. docs/sources.md explains it.

    from dsf.sources.plugin import Options, Plugin, Request, Series, SourceError

The protocol is stable within one PROTOCOL. The agent applies credentials, TLS, deadline and limits, as for built-in
types.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError

from dsf import http
from dsf.api.meta import SpecModel
from dsf.api.problems import explain
from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError, SourceError
from dsf.http.failures import EXCERPT_CHARACTERS
from dsf.sources.base import HEAD, TAIL, FetchContext, Payload, RequestRecord, compute_time_range
from dsf.sources.memory import History, Start
from dsf.sources.responsestorage import Spool
from dsf.sources.window import Series, compact, format_number
from dsf.text import clean, mask_secrets

__all__ = ["PROTOCOL", "Options", "Plugin", "Request", "Series", "SourceError"]

#: Version of the protocol. Plug-ins for other versions are refused.
PROTOCOL: Final = 1


class Options(SpecModel):
    """Base class of a plug-in's `options`. Fields are camelCase in manifests, and unknown fields are refused."""


OptionsT = TypeVar("OptionsT", bound=Options)


class Request(Generic[OptionsT]):
    """A scorer's request to a source, and access to its server."""

    def __init__(self, summary: ScorerSummary, options: OptionsT, context: FetchContext) -> None:
        """Tests of plug-ins may create one, with the summary of a scorer and the context of a cycle."""
        self.options = options
        #: `params.query` unchanged, possibly empty.
        self.query = summary.source_query
        #: The requested time range in whole unix seconds, and the step in seconds (0 if unset). With a step, both ends
        #: are multiples of it.
        self.start, self.end = compute_time_range(context.now, summary.source_range, summary.source_step)
        self.step = summary.source_step
        #: Seconds between two cycles of the scorer.
        self.interval = summary.scoring_interval
        #: URL from `host` (default: that of configURL) and `path`.
        self.url = summary.source_endpoint
        #: Limits that a plug-in must keep if it sends requests itself: the deadline by time.monotonic(), and the bytes
        #: of all responses.
        self.deadline = context.deadline
        self.max_bytes = context.max_bytes
        #: Result of `Plugin.start`, for types of this project, or None outside of an agent.
        self.running: Any = None
        self._summary = summary
        self._context = context
        #: The last request, and the bytes of all responses.
        self._last_record: RequestRecord | None = None
        self._received = 0

    def get(
        self, path: str | None = None, params: Mapping[str, str | int] | None = None, *, accept: str | None = None
    ) -> bytes:
        """Return the body of the response to a GET of `url`, or of another path on that server.

        `accept` is the header Accept, which prefers JSON by default. Raises HttpError, which a plug-in must not catch,
        because it has the cause and whether a retry may help.
        """
        return self._send(
            "GET", path, params, lambda url, **options: http.get(url, params=params, accept=accept, **options)
        )

    def post(
        self,
        body: bytes,
        path: str | None = None,
        *,
        content_type: str = "application/json",
        accept: str | None = None,
    ) -> bytes:
        """Return the body of the response to a POST of `body`. See `get`."""
        return self._send(
            "POST",
            path,
            None,
            lambda url, **options: http.post(url, body, content_type=content_type, accept=accept, **options),
        )

    @contextmanager
    def asking(self, description: str) -> Iterator[RequestRecord]:
        """Record a request that is made without `get` and `post`. `dsf explain` shows `description` and the outcome."""
        with self._context.record_request(self.query, description) as record:
            yield record
        self._received += record.received
        self._last_record = record

    def history(self) -> History:
        """Return the values recorded over the scorer's range, for a source that only has current ones."""
        return History(self._summary, self._context.memory, self._context.now)

    def reserve(self, size: int) -> None:
        """Reserve memory in bytes for data derived from a response, until the cycle ends. Raises HttpError."""
        self._context.storage.reserve(size)

    def check(self) -> None:
        """Raise HttpError after the deadline. Call it during long work between requests."""
        self._context.check()

    def _send(
        self, method: str, path: str | None, params: Mapping[str, str | int] | None, send: Callable[..., bytes]
    ) -> bytes:
        context, url = self._context, self._make_url(path)
        with context.record_request(self.query, url, params, method=method) as record:
            remaining_bytes = context.max_bytes - self._received
            # Joining pieces in memory would take twice the reserved memory.
            spool = Spool(context.storage.folder)

            def store_piece(piece: bytes) -> None:
                context.storage.reserve(len(piece))
                spool.write(piece)

            send(url, access=context.access, deadline=context.deadline, max_bytes=remaining_bytes, sink=store_piece)
            body = spool.read_bytes()
            self._received += len(body)
            record.record_response(len(body), (body,))
        self._last_record = record
        return body

    def _make_url(self, path: str | None) -> str:
        """Return a URL on the same server for any path, because the credentials are for this server only."""
        if path is None:
            return self.url
        if not path.startswith("/"):
            raise ValueError(f"the path {path!r} does not begin with /")
        server = urlsplit(self.url)
        return urlunsplit((server.scheme, server.netloc, path, "", ""))

    def make_payload(self, fetched: Iterable[Series]) -> Payload:
        """Return the scoring request of these series, for the framework. Raises HttpError (too_large, timeout)."""
        pieces: list[bytes] = []
        series_count, remaining_bytes = 0, self._context.max_bytes
        for item in fetched:
            self.check()
            series_prefix = b'%s{"metric":%s,"values":[' % (b"," * bool(pieces), _format_labels(item))
            samples = []
            remaining_bytes -= len(series_prefix)
            for sample in _format_samples(item):
                samples.append(sample)
                remaining_bytes -= len(sample) + 1
                if remaining_bytes < 0:
                    text = f"the series are more than the {self._context.max_bytes} bytes allowed; ask for less"
                    raise HttpError("too_large", text)
            if samples:
                pieces.append(b"%s%s]}" % (series_prefix, ",".join(samples).encode()))
                self._context.storage.reserve(len(pieces[-1]))
                series_count += 1
        payload = Payload((HEAD, *pieces, TAIL), series_count, self._received)
        if self._last_record is not None:
            # `dsf explain` shows the outcome.
            self._last_record.record_response(self._last_record.received, payload.series_pieces, series_count)
        else:
            with self._context.record_request(self.query, "what the plug-in knows without a request") as record:
                record.record_response(0, payload.series_pieces, series_count)
        return payload


@dataclass(frozen=True, slots=True)
class Plugin(Generic[OptionsT]):
    """The object behind an entry point in the group `dsf.sources`, whose name is the source type."""

    #: The protocol version for which the plug-in was written, as a number instead of PROTOCOL.
    protocol: int
    #: The model of `options` of a source.
    options: type[OptionsT]
    #: Returns the requested series. Several threads may call it. Raises SourceError.
    fetch: Callable[[Request[OptionsT]], Iterable[Series]]
    #: Starts background activity when an agent gets its first scorer with this source type. Not part of the protocol.
    start: Start | None = None


def query_plugin(plugin: Plugin[Any], name: str, summary: ScorerSummary, context: FetchContext) -> Payload:
    """Query a plug-in, whose messages begin with `name`. Raises HttpError."""
    try:
        request = Request(summary, _parse_options(plugin, name, summary.source_options or {}), context)
        if plugin.start is not None and context.memory is not None:
            request.running = context.memory.start_once(plugin.start)
        return request.make_payload(plugin.fetch(request))
    except (HttpError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 (third-party code, even sys.exit(); must be reported)
        last_frame = traceback.extract_tb(error.__traceback__)[-1]
        text = clean(mask_secrets(str(error), *context.access.secrets), EXCERPT_CHARACTERS)
        raise HttpError(
            "plugin_failed",
            f"{name}: {type(error).__name__} in {PurePath(last_frame.filename).name}:{last_frame.lineno}: {text}",
        ) from None


def _parse_options(plugin: Plugin[OptionsT], name: str, options: Mapping[str, Any]) -> OptionsT:
    try:
        return plugin.options.model_validate(options, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = "; ".join(f"options.{problem}" for problem in explain(error, plugin.options, options))
        raise HttpError("bad_options", f"{name}: {problems}") from None


def _format_samples(series: Series) -> Iterator[str]:
    for time, value in series.samples:
        if not math.isfinite(time):
            raise ValueError(f"{time!r} is the time of a sample")
        # Most times are whole seconds, which need no conversion of a float.
        moment = time if type(time) is int and abs(time) < 2**53 else format_number(float(time))
        yield f'[{moment},"{format_number(float(value))}"]'


def _format_labels(series: Series) -> bytes:
    labels = dict(series.labels)
    if not all(issubclass(kind, str) for kind in {*map(type, labels), *map(type, labels.values())}):
        raise TypeError(f"the labels {labels!r} are not all texts")
    return compact(labels).encode()
