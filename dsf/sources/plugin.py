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
from dsf.http.failures import EXCERPT
from dsf.sources.base import HEAD, TAIL, FetchContext, Payload, RequestRecord, time_range
from dsf.sources.memory import History, Start
from dsf.sources.window import Series, compact, number
from dsf.text import cleaned, masked

__all__ = ["PROTOCOL", "Options", "Plugin", "Request", "Series", "SourceError"]

#: Version of the protocol; plug-ins of others are refused.
PROTOCOL: Final = 1


class Options(SpecModel):
    """Base of a plug-in's model of `options`: camelCase outside, and a field that is not in the model is refused."""


OptionsT = TypeVar("OptionsT", bound=Options)


class Request(Generic[OptionsT]):
    """A scorer's request to a source, and access to its server."""

    def __init__(self, summary: ScorerSummary, options: OptionsT, context: FetchContext) -> None:
        """For plug-in tests: `summary` is of a scorer, `context` of a cycle."""
        self.options = options
        #: `params.query`, unchanged; may be empty.
        self.query = summary.source_query
        #: The requested time range, in whole unix seconds, and seconds between two samples (0: unset). With a step,
        #: both ends are multiples of it.
        self.start, self.end = time_range(context.now, summary.source_range, summary.source_step)
        self.step = summary.source_step
        #: Seconds between two cycles of the scorer.
        self.interval = summary.scoring_interval
        #: `host` and `path`; configURL's host if there is none.
        self.url = summary.source_endpoint
        #: For what is asked without `get` and `post`: the end of the time for it, by time.monotonic(), and the bytes of
        #: all answers.
        self.deadline = context.deadline
        self.max_bytes = context.max_bytes
        #: For types of this project: result of `Plugin.start`; None outside of an agent.
        self.running: Any = None
        self._summary = summary
        self._context = context
        #: The last request, and the bytes of all answers.
        self._question: RequestRecord | None = None
        self._received = 0

    def get(
        self, path: str | None = None, params: Mapping[str, str | int] | None = None, *, accept: str | None = None
    ) -> bytes:
        """The body of the answer to a GET of `url`, or of another path of that server.

        `accept` is the header Accept, for a server that has several media types; by default JSON before any other.
        Raises HttpError, which a plug-in must not catch: it has the cause and whether a retry may help.
        """
        return self._send("GET", path, params, lambda url, **way: http.get(url, params=params, accept=accept, **way))

    def post(
        self,
        body: bytes,
        path: str | None = None,
        *,
        content_type: str = "application/json",
        accept: str | None = None,
    ) -> bytes:
        """The body of the answer to a POST of `body`; as `get`."""
        return self._send(
            "POST",
            path,
            None,
            lambda url, **way: http.post(url, body, content_type=content_type, accept=accept, **way),
        )

    @contextmanager
    def asking(self, what: str) -> Iterator[RequestRecord]:
        """For what is asked without `get` and `post`: `dsf explain` shows `what`, and says how it ends."""
        with self._context.asking(self.query, what) as question:
            yield question
        self._received += question.received
        self._question = question

    def history(self) -> History:
        """For a source that knows only the present: the agent keeps what it says, for the range of the scorer."""
        return History(self._summary, self._context.memory, self._context.now)

    def check(self) -> None:
        """For long work between requests: raises HttpError after the deadline."""
        self._context.check()

    def _send(
        self, method: str, path: str | None, params: Mapping[str, str | int] | None, send: Callable[..., bytes]
    ) -> bytes:
        context, url = self._context, self._at(path)
        with context.asking(self.query, url, params, method=method) as question:
            remaining_bytes = context.max_bytes - self._received
            pieces: list[bytes] = []

            def keep(piece: bytes) -> None:
                context.room.take(len(piece))
                pieces.append(piece)

            send(url, access=context.access, deadline=context.deadline, max_bytes=remaining_bytes, sink=keep)
            body = b"".join(pieces)
            pieces.clear()
            self._received += len(body)
            question.answered(len(body), (body,))
        self._question = question
        return body

    def _at(self, path: str | None) -> str:
        """A URL on the same server, whatever the path: the credentials are for this server alone."""
        if path is None:
            return self.url
        if not path.startswith("/"):
            raise ValueError(f"the path {path!r} does not begin with /")
        server = urlsplit(self.url)
        return urlunsplit((server.scheme, server.netloc, path, "", ""))

    def made(self, fetched: Iterable[Series]) -> Payload:
        """The scoring request of these series. For the framework. Raises HttpError (too_large, timeout)."""
        pieces: list[bytes] = []
        series, remaining_bytes = 0, self._context.max_bytes
        for item in fetched:
            self.check()
            head = b'%s{"metric":%s,"values":[' % (b"," * bool(pieces), _labels(item))
            samples = []
            remaining_bytes -= len(head)
            for sample in _samples(item):
                samples.append(sample)
                remaining_bytes -= len(sample) + 1
                if remaining_bytes < 0:
                    text = f"the series are more than the {self._context.max_bytes} bytes allowed; ask for less"
                    raise HttpError("too_large", text)
            if samples:
                pieces.append(b"%s%s]}" % (head, ",".join(samples).encode()))
                self._context.room.take(len(pieces[-1]))
                series += 1
        payload = Payload((HEAD, *pieces, TAIL), series, self._received)
        if self._question is not None:
            # For `dsf explain`: the outcome.
            self._question.answered(self._question.received, payload.inside, series)
        else:
            with self._context.asking(self.query, "what the plug-in knows without a request") as question:
                question.answered(0, payload.inside, series)
        return payload


@dataclass(frozen=True, slots=True)
class Plugin(Generic[OptionsT]):
    """The object of an entry point in the group `dsf.sources`; its name is the source type."""

    #: The protocol version that the plug-in was written for, as a number, not as PROTOCOL.
    protocol: int
    #: The model of `options` of a source.
    options: type[OptionsT]
    #: Returns the requested series; called by several threads. Raises SourceError.
    fetch: Callable[[Request[OptionsT]], Iterable[Series]]
    #: For types of this project, not part of the protocol: starts background activity when an agent gets its
    #: first scorer with such a source.
    start: Start | None = None


def ask(plugin: Plugin[Any], who: str, summary: ScorerSummary, context: FetchContext) -> Payload:
    """A cycle's request to a plug-in named `who`. Raises HttpError."""
    try:
        request = Request(summary, _options(plugin, who, summary.source_options or {}), context)
        if plugin.start is not None and context.memory is not None:
            request.running = context.memory.begun(plugin.start)
        return request.made(plugin.fetch(request))
    except (HttpError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 (third-party code, even sys.exit(); must be reported)
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = cleaned(masked(str(error), *context.access.secrets), EXCERPT)
        raise HttpError(
            "plugin_failed", f"{who}: {type(error).__name__} in {PurePath(last.filename).name}:{last.lineno}: {text}"
        ) from None


def _options(plugin: Plugin[OptionsT], who: str, options: Mapping[str, Any]) -> OptionsT:
    try:
        return plugin.options.model_validate(options, by_alias=True, by_name=False)
    except ValidationError as error:
        mistakes = "; ".join(f"options.{mistake}" for mistake in explain(error, plugin.options, options))
        raise HttpError("bad_options", f"{who}: {mistakes}") from None


def _samples(series: Series) -> Iterator[str]:
    for time, value in series.samples:
        if not math.isfinite(time):
            raise ValueError(f"{time!r} is the time of a sample")
        # Whole seconds are most: they need no look at what a float is called.
        moment = time if type(time) is int and abs(time) < 2**53 else number(float(time))
        yield f'[{moment},"{number(float(value))}"]'


def _labels(series: Series) -> bytes:
    labels = dict(series.labels)
    if not all(issubclass(kind, str) for kind in {*map(type, labels), *map(type, labels.values())}):
        raise TypeError(f"the labels {labels!r} are not all texts")
    return compact(labels).encode()
