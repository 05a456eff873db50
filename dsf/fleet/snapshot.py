"""The rows of all pairs in memory, for one process; kept up to date by the changes since the last read.

Reads are plain commands: they work while Redis takes no writes. The snapshot does not depend on a sweep: a state that
follows from the time alone (an expired score, a pause that is over) is computed when it is asked for, and kept until
time brings another (`groups`).
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import redis

from dsf import keys
from dsf.fleet.verdict import Verdict, verdict
from dsf.store.client import batched, parsed, parsed_all
from dsf.store.entries import Entry, ScheduleOverride, pause, targets_of
from dsf.store.pairs import PairFailure, PairState, row_fields
from dsf.store.ticks import Skips

#: States by rank, worst first.
RANKS: Final = tuple(Verdict)
#: Sorts pauses without an end after all others.
NO_END: Final = 1e10
#: Failure whose reason cannot be read.
_UNKNOWN: Final = PairFailure(run="", stage="", reason="", message="", at=0.0)


@dataclass(slots=True, eq=False)
class SnapshotRow(PairState):
    """A pair of the schedule, and what may pause it."""

    #: Its entry and its overrides; None of most, which cannot be paused: their entries are not parsed.
    pausing: tuple[Entry, Mapping[str, ScheduleOverride]] | None = None
    # Cached reason: each overview needs the reasons of all rows, and parsing them takes most of its time.
    _reason: PairFailure | None = field(default=None, init=False)

    @classmethod
    def of(
        cls, pair: str, entry: str, text: str | None, skips: str | None, overrides: Mapping[str, ScheduleOverride]
    ) -> SnapshotRow:
        """From the texts of a pair's entry, row and skips; `overrides` of the schedule by target."""
        # All rows of a cluster, or of a scorer, share one text.
        cluster, scorer = map(sys.intern, keys.split_pair(pair))
        row = cls(cluster, scorer, **row_fields(pair, text), skips=Skips.of(cluster, skips))
        pair_overrides = {
            name: override
            for name in (targets_of(scorer, cluster) if overrides else ())
            if (override := overrides.get(name)) and override.paused is not None
        }
        if (pair_overrides or '"suspended"' in entry) and (paused := parsed(Entry, pair, entry)) is not None:
            row.pausing = paused, pair_overrides
        return row

    def pause_end(self, now: float) -> float | None:
        """Until when it is paused (unix seconds), infinity without an end; None while it is not."""
        if self.pausing is None:
            return None
        schedule = pause(*self.pausing, now)
        if not schedule.paused:
            return None
        return math.inf if schedule.paused_until is None else schedule.paused_until

    def state(self, now: float) -> Verdict:
        """Its state at `now` (unix seconds)."""
        return self.judged(now)[0]

    def judged(self, now: float) -> tuple[Verdict, float]:
        """Its state at `now`, and when time alone brings another one (both in unix seconds)."""
        end = self.pause_end(now)
        state = verdict(self, now, is_paused=end is not None)
        if end is None:
            end = self.valid_until if state in (Verdict.OK, Verdict.EMPTY) else math.inf
        return state, end

    def why(self, state: Verdict) -> PairFailure | None:
        """Why a pair of this state has no new score, or not all of its results; None without a reason."""
        if state in (Verdict.SKIPPED, Verdict.EXPIRED, Verdict.NEVER) and self.skips is not None:
            return PairFailure(run="", stage="", reason=self.skips.reason, message="", at=self.skips.newest)
        if state is Verdict.FAILING or (state in (Verdict.OK, Verdict.EMPTY) and self.remark_text is not None):
            if self._reason is None:
                self._reason = (self.trouble if state is Verdict.FAILING else self.remark) or _UNKNOWN
            return self._reason
        return None

    def place(self, state: Verdict, now: float) -> float:
        """Its place among the pairs of its state, worst first: a time in unix seconds."""
        if state is Verdict.FAILING:
            return self.last_success or 0.0
        if state is Verdict.SKIPPED:
            return self.skips.since if self.skips is not None else 0.0
        if state is Verdict.PAUSED:
            return min(NO_END, self.pause_end(now) or 0.0)
        # Pairs of other states are ordered by name: the end of a score moves with each cycle, and a later page would
        # have its pair again.
        return self.valid_until if state is Verdict.EXPIRED else 0.0


#: Scorer -> cluster -> row.
Rows = Mapping[str, Mapping[str, SnapshotRow]]


class Snapshot:
    """The rows of all pairs. Thread-safe: what it returned does not change."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, SnapshotRow]] = {}
        self._total = 0
        self._overrides: dict[str, str] = {}
        # Number of the newest change that was read; None before the first read.
        self._sequence: int | None = None
        self._reload_at = 0.0

    def read(self) -> tuple[Rows, int]:
        """Return the rows as they are now, and the number of the newest change in them. Raises redis.RedisError."""
        with self._lock:
            if self._sequence is None or time.monotonic() >= self._reload_at or not self._follow(self._sequence):
                self._load()
            return self._rows, self._sequence or 0

    def _load(self) -> None:
        self._sequence = None
        with self._redis.pipeline(transaction=False) as pipe:
            # First: a change meanwhile is then read twice rather than never.
            pipe.get(keys.SEQUENCE)
            pipe.hgetall(keys.OVERRIDES)
            pipe.hkeys(keys.ENTRIES)
            sequence, overrides, pairs = pipe.execute()
        self._rows, self._total, self._overrides = {}, 0, overrides
        self._read_pairs(pairs, parsed_all(ScheduleOverride, overrides))
        self._sequence = int(sequence or 0)
        # A replica that took over may lack changes that were seen here, and count further: all rows are read again.
        self._reload_at = time.monotonic() + 600.0

    def _follow(self, since: int) -> bool:
        """Read what changed; False if all has to be read."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.get(keys.SEQUENCE)
            pipe.zrange(keys.CHANGED, f"({since}", "+inf", byscore=True)
            pipe.hgetall(keys.OVERRIDES)
            pipe.hlen(keys.ENTRIES)
            sequence, pairs, overrides, total = pipe.execute()
        if int(sequence or 0) < since or overrides != self._overrides:
            # Redis was emptied, or is an older copy of itself; or a user has paused or resumed a scorer.
            return False
        if pairs:
            self._read_pairs(pairs, parsed_all(ScheduleOverride, overrides))
        self._sequence = int(sequence or 0)
        # Differs if a removal left the change log before this reader saw it.
        return self._total == int(total)

    def _read_pairs(self, pairs: list[str], overrides: Mapping[str, ScheduleOverride]) -> None:
        rows, copied = dict(self._rows), set()
        for batch in batched(pairs, 1000):
            with self._redis.pipeline(transaction=False) as pipe:
                for key in (keys.ENTRIES, keys.ROWS, keys.SKIPS):
                    pipe.hmget(key, batch)
                answers: list[list[str | None]] = pipe.execute()
            for pair, entry, text, skips in zip(batch, *answers, strict=True):
                cluster, scorer = keys.split_pair(pair)
                if scorer not in copied:
                    # The map that was returned before is still in use, so it is copied.
                    rows[scorer] = dict(rows.get(scorer, ()))
                    copied.add(scorer)
                scorer_rows = rows[scorer]
                self._total -= cluster in scorer_rows
                scorer_rows.pop(cluster, None)
                if entry is not None:
                    scorer_rows[cluster] = SnapshotRow.of(pair, entry, text, skips, overrides)
                    self._total += 1
        self._rows = {scorer: scorer_rows for scorer, scorer_rows in rows.items() if scorer_rows}


def every(rows: Rows) -> Iterator[SnapshotRow]:
    """All rows."""
    for scorer_rows in rows.values():
        yield from scorer_rows.values()
