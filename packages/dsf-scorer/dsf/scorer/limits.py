"""Limits on the size and concurrency of requests."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dsf.scorer.errors import ScorerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one scorer. A request beyond them is refused with 413, or with 503 for concurrency."""

    #: Bytes of a request. Agents read at most 64 MiB from a source, so none of their requests is refused.
    bytes: int = 65 * 1024 * 1024
    #: Time series of a request.
    series: int = 100_000
    #: Samples of all series of a request together.
    samples: int = 5_000_000
    #: Labels of all series of a request together. Each takes some 100 bytes of memory. If a scorer has several sources,
    #: those of the first one count twice.
    labels: int = 2_000_000
    #: Scores of a response. More would not fit into one AddOnPlacementScore, and the framework refuses them.
    results: int = 10_000
    #: Seconds to receive a complete request.
    read_seconds: float = 30.0
    #: Requests that are read and scored at a time; None: limited only by the thread pool.
    concurrency: int | None = None
    #: Seconds that a request waits for its turn before it is refused with 503.
    wait_seconds: float = 10.0

    def __post_init__(self) -> None:
        """Raise ScorerError for a limit that is not positive."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value <= 0:
                raise ScorerError(f"Limits({field.name}={value!r}): must be more than 0")
