"""Records pairs whose AddOnPlacementScore could not be written, and computes when each is retried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Maximum seconds between a failed write and its retry. The delay is short because the object may expire meanwhile.
#: Retries get only a share of the write rate, so that they cannot delay other scores.
MAX_BACKOFF_SECONDS: Final = 5.0

Pair = tuple[str, str]


@dataclass(frozen=True)
class Failure:
    """The newest failed attempt of a pair."""

    attempts: int
    #: Time of the first failed attempt, in unix seconds.
    first_failed_at: float
    #: Reason for the condition, and the error.
    reason: str
    message: str


class Failures:
    """The failures of pairs, with indexes by cluster and by scorer. Instances are not thread-safe."""

    def __init__(self) -> None:
        self._failures: dict[Pair, Failure] = {}
        self._by_cluster: dict[str, set[Pair]] = {}
        self._by_scorer: dict[str, set[Pair]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._failures

    def get(self, pair: Pair) -> Failure | None:
        """Return the failure of a pair, or None."""
        return self._failures.get(pair)

    def add(self, pair: Pair, reason: str, message: str, now: float) -> tuple[Failure, float]:
        """Record a failed attempt; return the failure, and the seconds until the next attempt."""
        previous_failure = self._failures.get(pair)
        attempts = previous_failure.attempts + 1 if previous_failure is not None else 1
        failure = Failure(
            attempts, previous_failure.first_failed_at if previous_failure is not None else now, reason, message
        )
        self._failures[pair] = failure
        self._by_cluster.setdefault(pair[0], set()).add(pair)
        self._by_scorer.setdefault(pair[1], set()).add(pair)
        return failure, min(MAX_BACKOFF_SECONDS, 2.0 ** min(attempts - 1, 10))

    def remove(self, pair: Pair) -> set[Pair]:
        """Forget the failure of a pair that has been written; return the other failed pairs of its cluster and scorer.

        Failures of related pairs often have the same cause, so the caller retries them immediately: after an outage the
        first success triggers the writes of all other pairs.
        """
        if self._failures.pop(pair, None) is None:
            return set()
        related_pairs: set[Pair] = set()
        for index, name in ((self._by_cluster, pair[0]), (self._by_scorer, pair[1])):
            members = index[name]
            members.discard(pair)
            related_pairs |= members
            if not members:
                del index[name]
        return related_pairs
