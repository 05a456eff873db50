"""Input and output types of a source, and the choice of a scorer's source."""

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
from dsf.sources.responsestorage import ResponseStorage

#: The beginning and the end of every scoring request, around the items of an array.
HEAD = b'{"data":['
TAIL = b"]}"
#: The path of OTLP/HTTP, and the plug-in for a source `OpenTelemetry` with this path.
OTLP_PATH: Final = "/v1/metrics"
OTLP: Final = "otlp.dynamic-scoring.open-cluster-management.io"
# A pattern instead of urlsplit, which raises for an invalid address. The request to such an address fails later, and
# only for its scorer.
_PUSHED_URL_PATTERN: Final = re.compile(rf"(?:[^/?#]*//[^/?#]*)?{OTLP_PATH}/*(?:[?#]|\Z)")
#: Built-in types that are implemented by plug-ins.
PLUGIN_BY_BUILTIN_TYPE: Final[Mapping[str, str]] = {
    name: f"{name.lower()}.dynamic-scoring.open-cluster-management.io"
    for name in (SourceType.OpenTelemetry, SourceType.Kubernetes, SourceType.Object)
}


@dataclass(slots=True)
class RequestRecord:
    """A request to a source or a scoring API, and its outcome."""

    #: The query in the scorer, or an empty string.
    query: str
    #: URL without `params`, or a description if no server is queried.
    url: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    #: Duration, bytes received, and number of series in them.
    seconds: float = 0.0
    received: int = 0
    series: int = 0
    #: Pieces of the response that contain the series.
    pieces: Sequence[bytes | memoryview] = ()
    #: Warnings in a successful response, without secrets.
    warnings: Sequence[str] = ()
    #: Why the request failed.
    error: HttpError | None = None
    #: Name of the source, or None.
    source: str | None = None
    method: str = "GET"

    def record_response(self, received: int, pieces: Sequence[bytes | memoryview], series: int = 0) -> None:
        """Record a successful response."""
        self.received, self.pieces, self.series = received, pieces, series

    @contextmanager
    def measure_request(self, observe: Callable[[RequestRecord], None]) -> Iterator[None]:
        """Measure the request made in the block, and then pass the record to `observe`, even after an error."""
        started_at = time.monotonic()
        try:
            yield
        except HttpError as error:
            self.error = error
            raise
        finally:
            self.seconds = time.monotonic() - started_at
            observe(self)


@dataclass(frozen=True, slots=True)
class FetchContext:
    """Inputs of a source besides the summary."""

    #: Deadline of the whole fetch, on the clock of time.monotonic().
    deadline: float
    #: Maximum bytes of all responses together, decompressed.
    max_bytes: int
    #: Time of the cycle in unix seconds, at which the time range ends.
    now: float
    #: Credentials of each request.
    access: Access = PLAIN
    #: An agent's state between cycles, or None outside of an agent.
    memory: SourceMemory | None = None
    #: Returns True while the scorer runs on this cluster.
    is_wanted: Callable[[], bool] = lambda: True
    #: Called with each request and its outcome.
    observe: Callable[[RequestRecord], None] = lambda _: None
    #: Name of the source, if a scorer has several.
    source: str | None = None
    #: Keeps the responses until the scoring request is complete.
    storage: ResponseStorage = field(default_factory=ResponseStorage)

    @contextmanager
    def record_request(
        self, query: str, url: str, params: Mapping[str, str | int] | None = None, *, method: str = "GET"
    ) -> Iterator[RequestRecord]:
        """Yield the record of a request, which the block makes and whose response it adds to the record."""
        record = RequestRecord(query, url, params or {}, source=self.source, method=method)
        with record.measure_request(self.observe):
            yield record

    def check(self) -> None:
        """Raise HttpError (timeout, unknown_scorer) if the cycle must end. Call it regularly while processing data."""
        if time.monotonic() >= self.deadline:
            raise HttpError("timeout", "processing the source's response took longer than the time left")
        if not self.is_wanted():
            raise HttpError("unknown_scorer", "the scorer was removed while its source was read")


def compute_time_range(now: float, length: int, step: int) -> tuple[int, int]:
    """Return first and last point of a range query, in whole unix seconds, as multiples of `step`.

    The last point is at most one step before `now`. Cycles within one step thus read the same points. Otherwise
    consecutive cycles would read different samples, and a series with a period of one step would have a different score
    each time. Grafana and VictoriaMetrics align in the same way. `length` is reduced to whole steps, so that the last
    point is on the grid. A step of 0 disables the alignment.
    """
    end = int(now)
    if step <= 0:
        return end - length, end
    end -= end % step
    return end - length // step * step, end


@dataclass(frozen=True, slots=True)
class Payload:
    """A scoring request `{"data":[...]}` as pieces, so that large responses are not copied.

    The first piece is HEAD and the last one is TAIL, until several payloads are joined.
    """

    pieces: tuple[bytes | memoryview, ...]
    #: Number of time series in the request.
    series: int = 0
    #: Bytes received from the source, decompressed.
    received: int = 0
    #: Number of series of each query; empty if all belong to one query.
    queries: tuple[int, ...] = ()

    @property
    def series_pieces(self) -> tuple[bytes | memoryview, ...]:
        """The pieces with the series, without HEAD and TAIL."""
        return self.pieces[1:-1]

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(len(piece) for piece in self.pieces)


def concatenate_payloads(payloads: Sequence[Payload]) -> Payload:
    """Return the scoring request with the series of all payloads, for an expression."""
    pieces: list[bytes | memoryview] = []
    for payload in payloads:
        if payload.series_pieces:
            pieces += [b","] if pieces else []
            pieces += payload.series_pieces
    return Payload(
        (HEAD, *pieces, TAIL),
        sum(payload.series for payload in payloads),
        sum(payload.received for payload in payloads),
        tuple(count for payload in payloads for count in payload.queries or (payload.series,)),
    )


def join_payloads(payloads: Mapping[str, Payload]) -> Payload:
    """Return the scoring request of several sources, by name.

    Its field `data` has the series of the first source, and `sources` the series of each source by name.
    """
    pieces: list[bytes | memoryview] = [HEAD, *next(iter(payloads.values())).series_pieces, b'],"sources":{']
    for index, (name, payload) in enumerate(payloads.items()):
        pieces += [b"," * (index > 0) + json.dumps(name).encode() + b":[", *payload.series_pieces, b"]"]
    return Payload(
        (*pieces, b"}}"),
        sum(payload.series for payload in payloads.values()),
        sum(payload.received for payload in payloads.values()),
    )


#: Queries a source. Raises HttpError, whose reason and message tell the author of the scorer what to change.
Source = Callable[[ScorerSummary, FetchContext], Payload]


def get_source_type(source: ScorerSummary) -> str:
    """Return the type of a source in `dsf.sources.registry`, which may be a plug-in's."""
    if source.source_type == SourceType.OpenTelemetry and _PUSHED_URL_PATTERN.match(source.source_endpoint):
        return OTLP
    return PLUGIN_BY_BUILTIN_TYPE.get(source.source_type, source.source_type)
