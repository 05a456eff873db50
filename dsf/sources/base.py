"""Input and output types of a source, and which source a scorer has."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType
from dsf.errors import HttpError
from dsf.http.access import PLAIN, Access
from dsf.sources.memory import SourceMemory
from dsf.sources.room import Room

#: The beginning and the end of every scoring request; in between are an array's items.
HEAD = b'{"data":['
TAIL = b"]}"
#: The path of OTLP/HTTP, and the plug-in that serves a source `OpenTelemetry` with this path.
OTLP_PATH: Final = "/v1/metrics"
OTLP: Final = "otlp.dynamic-scoring.open-cluster-management.io"
# A pattern instead of urlsplit, which raises for an address that cannot be one: the request refuses that, of this
# scorer alone.
_PUSHED: Final = re.compile(rf"(?:[^/?#]*//[^/?#]*)?{OTLP_PATH}/*(?:[?#]|\Z)")
#: Built-in types behind which there are plug-ins, too.
BEHIND: Final[Mapping[str, str]] = {
    name: f"{name.lower()}.dynamic-scoring.open-cluster-management.io"
    for name in (SourceType.OpenTelemetry, SourceType.Kubernetes, SourceType.Object)
}


@dataclass(slots=True)
class RequestRecord:
    """A request to a source or a scoring API, and its outcome."""

    #: As set in the scorer; empty if there is none.
    query: str
    #: Without `params`; a text if no server is asked.
    url: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    #: Duration, bytes received, and number of series in them.
    seconds: float = 0.0
    received: int = 0
    series: int = 0
    #: Used part of the answer.
    pieces: Sequence[bytes | memoryview] = ()
    #: Warnings of the source about its good answer, without secrets.
    warnings: Sequence[str] = ()
    #: Why the request failed.
    error: HttpError | None = None
    #: Name of the source; None if it has none.
    source: str | None = None
    method: str = "GET"

    def answered(self, received: int, pieces: Sequence[bytes | memoryview], series: int = 0) -> None:
        """Record a good answer."""
        self.received, self.pieces, self.series = received, pieces, series

    @contextmanager
    def asked_for(self, observe: Callable[[RequestRecord], None]) -> Iterator[None]:
        """Measure the request; `observe` gets it at the end, whatever its outcome."""
        started = time.monotonic()
        try:
            yield
        except HttpError as error:
            self.error = error
            raise
        finally:
            self.seconds = time.monotonic() - started
            observe(self)


@dataclass(frozen=True, slots=True)
class FetchContext:
    """Inputs of a source besides the summary."""

    #: Deadline of the whole fetch, on the clock of time.monotonic().
    deadline: float
    #: Maximum bytes of all answers together, decompressed.
    max_bytes: int
    #: The moment of the cycle in unix seconds, by which the time range ends.
    now: float
    #: Credentials of each request.
    access: Access = PLAIN
    #: An agent's state between cycles; None outside of an agent.
    memory: SourceMemory | None = None
    #: Whether the scorer still runs on this cluster.
    is_wanted: Callable[[], bool] = lambda: True
    #: Called with each request and its outcome.
    observe: Callable[[RequestRecord], None] = lambda _: None
    #: Name of the source, if a scorer has several.
    source: str | None = None
    #: For the answers.
    room: Room = field(default_factory=Room)

    @contextmanager
    def asking(
        self, query: str, url: str, params: Mapping[str, str | int] | None = None, *, method: str = "GET"
    ) -> Iterator[RequestRecord]:
        """A question, to be filled in with the answer."""
        question = RequestRecord(query, url, params or {}, source=self.source, method=method)
        with question.asked_for(self.observe):
            yield question

    def check(self) -> None:
        """For processing, which no socket's timeout ends. Raises HttpError (timeout, unknown_scorer)."""
        if time.monotonic() >= self.deadline:
            raise HttpError("timeout", "the source's answer took longer to take apart than there was time")
        if not self.is_wanted():
            raise HttpError("unknown_scorer", "the scorer was removed while its source was read")


def time_range(now: float, length: int, step: int) -> tuple[int, int]:
    """Return first and last point of a range query, in whole unix seconds, as multiples of `step`.

    The last point is at most one step before `now`. Cycles within one step thus read the same points; otherwise two
    cycles in turn would read different halves of the samples, and a series with a period of the step would score
    differently each time. Grafana and VictoriaMetrics align the same way. `length` counts in whole steps, so that the
    last point is part of the grid. A step of 0 aligns nothing.
    """
    end = int(now)
    if step <= 0:
        return end - length, end
    end -= end % step
    return end - length // step * step, end


@dataclass(frozen=True, slots=True)
class Payload:
    """A scoring request, ready to be sent: `{"data":[...]}` in pieces, so that large answers are not copied.

    The first piece is HEAD and the last one TAIL, until several are joined."""

    pieces: tuple[bytes | memoryview, ...]
    #: Number of time series in it.
    series: int = 0
    #: Bytes that came from the source, decompressed.
    received: int = 0
    #: Number of series of each query; empty: all are of one.
    queries: tuple[int, ...] = ()

    @property
    def inside(self) -> tuple[bytes | memoryview, ...]:
        """The items of the array of series."""
        return self.pieces[1:-1]

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(len(piece) for piece in self.pieces)


def concatenated(payloads: Sequence[Payload]) -> Payload:
    """Return the scoring request with the series of all payloads, for an expression."""
    pieces: list[bytes | memoryview] = []
    for payload in payloads:
        if payload.inside:
            pieces += [b","] if pieces else []
            pieces += payload.inside
    return Payload(
        (HEAD, *pieces, TAIL),
        sum(payload.series for payload in payloads),
        sum(payload.received for payload in payloads),
        tuple(count for payload in payloads for count in payload.queries or (payload.series,)),
    )


def joined(payloads: Mapping[str, Payload]) -> Payload:
    """The scoring request of several sources: `data` is the first's, `sources` has each by name."""
    pieces: list[bytes | memoryview] = [HEAD, *next(iter(payloads.values())).inside, b'],"sources":{']
    for index, (name, payload) in enumerate(payloads.items()):
        pieces += [b"," * (index > 0) + json.dumps(name).encode() + b":[", *payload.inside, b"]"]
    return Payload(
        (*pieces, b"}}"),
        sum(payload.series for payload in payloads.values()),
        sum(payload.received for payload in payloads.values()),
    )


#: Asks a source. Raises HttpError, whose reason and message tell the author of the scorer what to change.
Source = Callable[[ScorerSummary, FetchContext], Payload]


def type_of(source: ScorerSummary) -> str:
    """The type of a source in `dsf.sources.registry`, where some built-in types have a plug-in behind them."""
    if source.source_type == SourceType.OpenTelemetry and _PUSHED.match(source.source_endpoint):
        return OTLP
    return BEHIND.get(source.source_type, source.source_type)
