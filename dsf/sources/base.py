"""What a source is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsf.api.summary import ScorerSummary

if TYPE_CHECKING:
    from dsf.sources.held import Held

#: The beginning and the end of every scoring request; in between is an array's inside.
HEAD = b'{"data":['
TAIL = b"]}"


@dataclass(frozen=True, slots=True)
class Context:
    """What a source needs besides the summary."""

    #: When the whole fetch must be over, on the clock of time.monotonic().
    deadline: float
    #: Bytes that all answers together may have, decompressed.
    max_bytes: int
    #: The end of the range of time that is asked for, in unix seconds.
    now: float
    #: Bearer token, or None.
    token: str | None = None
    #: What an agent keeps between cycles; None outside of an agent.
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """A scoring request, ready to be sent: `{"data":[...]}` in pieces, so that large answers are not copied."""

    pieces: tuple[bytes | memoryview, ...]
    #: Number of time series in it.
    series: int = 0
    #: Bytes that came from the source, decompressed.
    received: int = 0

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(len(piece) for piece in self.pieces)


#: Asks a source. Raises HttpError, whose reason and message tell the person who wrote the scorer what to change.
Source = Callable[[ScorerSummary, Context], Payload]
