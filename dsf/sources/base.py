"""Input and output types of a source."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.http.access import PLAIN, Access
from dsf.sources.held import Held

#: The beginning and the end of every scoring request; in between is an array's inside.
HEAD = b'{"data":['
TAIL = b"]}"


@dataclass(slots=True)
class Question:
    """One question to a source or a scoring API, and what came of it."""

    #: As the scorer has it; empty where there is none.
    query: str
    #: Without `params`; words where no server is asked.
    url: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    #: How long it took, how many bytes came, and how many series are in them.
    seconds: float = 0.0
    received: int = 0
    series: int = 0
    #: What goes on of the answer.
    pieces: Sequence[bytes | memoryview] = ()
    #: Why there is no good answer.
    error: HttpError | None = None
    #: The name of the source; None where it has none.
    source: str | None = None
    method: str = "GET"

    def answered(self, received: int, pieces: Sequence[bytes | memoryview], series: int = 0) -> None:
        """There is a good answer."""
        self.received, self.pieces, self.series = received, pieces, series

    @contextmanager
    def asked_for(self, observe: Callable[[Question], None]) -> Iterator[None]:
        """It is asked meanwhile; `observe` gets it at the end, whatever comes of it."""
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
class Context:
    """What a source needs besides the summary."""

    #: When the whole fetch must be over, on the clock of time.monotonic().
    deadline: float
    #: Bytes that all answers together may have, decompressed.
    max_bytes: int
    #: The end of the range of time that is asked for, in unix seconds.
    now: float
    #: What goes along with each request.
    access: Access = PLAIN
    #: What an agent keeps between cycles; None outside of an agent.
    held: Held | None = None
    #: Whether the scorer is still to run on this cluster.
    is_wanted: Callable[[], bool] = lambda: True
    #: Gets each question to the source, and what came of it.
    observe: Callable[[Question], None] = lambda _: None
    #: The name of the source, where a scorer has several.
    source: str | None = None

    @contextmanager
    def asking(
        self, query: str, url: str, params: Mapping[str, str | int] | None = None, *, method: str = "GET"
    ) -> Iterator[Question]:
        """A question, to be filled in with the answer."""
        question = Question(query, url, params or {}, source=self.source, method=method)
        with question.asked_for(self.observe):
            yield question

    def check(self) -> None:
        """For work between the bytes, which no socket's timeout ends. Raises HttpError (timeout, unknown_scorer)."""
        if time.monotonic() >= self.deadline:
            raise HttpError("timeout", "the source's answer took longer to take apart than there was time")
        if not self.is_wanted():
            raise HttpError("unknown_scorer", "the scorer was removed while its source was read")


@dataclass(frozen=True, slots=True)
class Payload:
    """A scoring request, ready to be sent: `{"data":[...]}` in pieces, so that large answers are not copied.

    The first piece is HEAD and the last one TAIL, until several are joined."""

    pieces: tuple[bytes | memoryview, ...]
    #: Number of time series in it.
    series: int = 0
    #: Bytes that came from the source, decompressed.
    received: int = 0

    @property
    def inside(self) -> tuple[bytes | memoryview, ...]:
        """The inside of the array of series."""
        return self.pieces[1:-1]

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(len(piece) for piece in self.pieces)


def joined(payloads: Mapping[str, Payload]) -> Payload:
    """The scoring request of several sources: `data` is of the first, `sources` of each by its name."""
    pieces: list[bytes | memoryview] = [HEAD, *next(iter(payloads.values())).inside, b'],"sources":{']
    for index, (name, payload) in enumerate(payloads.items()):
        pieces += [b"," * (index > 0) + json.dumps(name).encode() + b":[", *payload.inside, b"]"]
    return Payload(
        (*pieces, b"}}"),
        sum(payload.series for payload in payloads.values()),
        sum(payload.received for payload in payloads.values()),
    )


#: Asks a source. Raises HttpError, whose reason and message tell the person who wrote the scorer what to change.
Source = Callable[[ScorerSummary, Context], Payload]
