"""Keeps the rows of all pairs in the memory of a process. Each read applies the changes since the previous read.

Reads work while Redis rejects writes, because they are plain commands. States that depend on the time (an expired
score, the end of a pause) are computed on request, and cached until the time changes them
(`dsf.fleet.rowgroups.RowGroups`).
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
from dsf.fleet.verdict import Verdict, compute_verdict
from dsf.store.client import parse_all_stored, parse_stored, split_into_batches
from dsf.store.entries import Entry, ScheduleOverride, compute_pause, list_targets
from dsf.store.pairs import PairFailure, PairState, parse_row_fields
from dsf.store.ticks import Skips

#: States by rank, worst first.
RANKS: Final = tuple(Verdict)
#: Sort value (unix seconds) of pauses without an end, which come after all other pauses.
NO_END: Final = 1e10
#: Seconds after which all rows are read again. A replica that has taken over may lack changes that this process has
#: read, and may reuse their sequence numbers.
_RELOAD_SECONDS: Final = 600.0
#: Number of pairs per round trip.
_BATCH_SIZE: Final = 1000
#: Failure whose reason cannot be read.
_UNKNOWN_FAILURE: Final = PairFailure(run="", stage="", reason="", message="", at=0.0)


@dataclass(slots=True, eq=False)
class SnapshotRow(PairState):
    """Row of a pair in the schedule, with the entry and the overrides that may pause the pair."""

    #: The entry and the overrides by target; None for a pair without a pausing override and without a suspended scorer.
    #: The entries of such pairs, which are most pairs, are not parsed.
    pause_sources: tuple[Entry, Mapping[str, ScheduleOverride]] | None = None
    # Parsed failure. Each overview needs the failures of all rows, and parsing them would take most of its time.
    _failure: PairFailure | None = field(default=None, init=False)

    @classmethod
    def from_texts(
        cls, pair: str, entry: str, text: str | None, skips: str | None, overrides: Mapping[str, ScheduleOverride]
    ) -> SnapshotRow:
        """Return the row of a pair from the texts of its entry, row and skips in Redis.

        `overrides` are the overrides of the schedule by target.
        """
        # Intern the names, so that all rows of a cluster or a scorer share one string.
        cluster, scorer = map(sys.intern, keys.split_pair(pair))
        row = cls(cluster, scorer, **parse_row_fields(pair, text), skips=Skips.parse(cluster, skips))
        pair_overrides = {
            name: override
            for name in (list_targets(scorer, cluster) if overrides else ())
            if (override := overrides.get(name)) and override.paused is not None
        }
        if (pair_overrides or '"suspended"' in entry) and (
            parsed_entry := parse_stored(Entry, pair, entry)
        ) is not None:
            row.pause_sources = parsed_entry, pair_overrides
        return row

    def find_pause_end(self, now: float) -> float | None:
        """Return the end of the current pause (unix seconds): infinity without an end, and None without a pause."""
        if self.pause_sources is None:
            return None
        schedule = compute_pause(*self.pause_sources, now)
        if not schedule.paused:
            return None
        return math.inf if schedule.paused_until is None else schedule.paused_until

    def find_state(self, now: float) -> Verdict:
        """Return the state at `now` (unix seconds)."""
        return self.find_state_and_end(now)[0]

    def find_state_and_end(self, now: float) -> tuple[Verdict, float]:
        """Return the state at `now`, and the time at which it ends even if the row does not change.

        Times are unix seconds. The end is infinity if only a change of the row ends the state.
        """
        end = self.find_pause_end(now)
        state = compute_verdict(self, now, is_paused=end is not None)
        if end is None:
            end = self.valid_until if state in (Verdict.OK, Verdict.EMPTY) else math.inf
        return state, end

    def find_failure(self, state: Verdict) -> PairFailure | None:
        """Return the reason why a pair in this state has no new score or lacks results; None without a reason."""
        if state in (Verdict.SKIPPED, Verdict.EXPIRED, Verdict.NEVER_SUCCEEDED) and self.skips is not None:
            return PairFailure(run="", stage="", reason=self.skips.reason, message="", at=self.skips.newest_at)
        if state is Verdict.FAILING or (state in (Verdict.OK, Verdict.EMPTY) and self.remark_text is not None):
            if self._failure is None:
                self._failure = (self.current_failure if state is Verdict.FAILING else self.remark) or _UNKNOWN_FAILURE
            return self._failure
        return None

    def compute_sort_value(self, state: Verdict, now: float) -> float:
        """Return a time (unix seconds) by which pairs in this state are sorted, worst first."""
        if state is Verdict.FAILING:
            return self.last_success or 0.0
        if state is Verdict.SKIPPED:
            return self.skips.first_at if self.skips is not None else 0.0
        if state is Verdict.PAUSED:
            return min(NO_END, self.find_pause_end(now) or 0.0)
        # Sort pairs in other states by name. The end of a valid score's validity changes with each cycle, so that a
        # pair could appear on two pages.
        return self.valid_until if state is Verdict.EXPIRED else 0.0


#: Scorer -> cluster -> row.
Rows = Mapping[str, Mapping[str, SnapshotRow]]


class Snapshot:
    """The rows of all pairs. Thread-safe: returned mappings are not changed."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, SnapshotRow]] = {}
        self._total = 0
        self._overrides: dict[str, str] = {}
        # Sequence number of the newest change in the rows; None before the first read.
        self._sequence: int | None = None
        self._reload_at = 0.0

    def read(self) -> tuple[Rows, int]:
        """Return the current rows, and the sequence number of the newest change in them. Raises redis.RedisError."""
        with self._lock:
            is_reload_due = self._sequence is None or time.monotonic() >= self._reload_at
            if is_reload_due or not self._apply_changes(self._sequence or 0):
                self._load()
            return self._rows, self._sequence or 0

    def _load(self) -> None:
        """Read all rows."""
        self._sequence = None
        with self._redis.pipeline(transaction=False) as pipe:
            # Read the sequence number before the rows, so that a concurrent change is read twice instead of never.
            pipe.get(keys.SEQUENCE)
            pipe.hgetall(keys.OVERRIDES)
            pipe.hkeys(keys.ENTRIES)
            sequence, overrides, pairs = pipe.execute()
        self._rows, self._total, self._overrides = {}, 0, overrides
        self._read_pairs(pairs, parse_all_stored(ScheduleOverride, overrides))
        self._sequence = int(sequence or 0)
        self._reload_at = time.monotonic() + _RELOAD_SECONDS

    def _apply_changes(self, last_sequence: int) -> bool:
        """Read the pairs that changed after the number `last_sequence`. Return False if all rows must be read."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.get(keys.SEQUENCE)
            pipe.zrange(keys.CHANGED, f"({last_sequence}", "+inf", byscore=True)
            pipe.hgetall(keys.OVERRIDES)
            pipe.hlen(keys.ENTRIES)
            sequence, pairs, overrides, total = pipe.execute()
        if int(sequence or 0) < last_sequence or overrides != self._overrides:
            # The sequence number decreases if Redis was emptied or restored. The overrides differ if a user has paused
            # or resumed a scorer, which also affects rows without a change.
            return False
        if pairs:
            self._read_pairs(pairs, parse_all_stored(ScheduleOverride, overrides))
        self._sequence = int(sequence or 0)
        # The totals differ if a removal was dropped from the list of changes before this process read it.
        return self._total == int(total)

    def _read_pairs(self, pairs: list[str], overrides: Mapping[str, ScheduleOverride]) -> None:
        """Read these pairs, and replace their rows. Removes the rows of pairs without an entry."""
        rows, copied_scorers = dict(self._rows), set()
        for batch in split_into_batches(pairs, _BATCH_SIZE):
            with self._redis.pipeline(transaction=False) as pipe:
                for key in (keys.ENTRIES, keys.ROWS, keys.SKIPS):
                    pipe.hmget(key, batch)
                responses: list[list[str | None]] = pipe.execute()
            for pair, entry, text, skips in zip(batch, *responses, strict=True):
                cluster, scorer = keys.split_pair(pair)
                if scorer not in copied_scorers:
                    # Copy the mapping, because a caller may still use it.
                    rows[scorer] = dict(rows.get(scorer, ()))
                    copied_scorers.add(scorer)
                scorer_rows = rows[scorer]
                self._total -= cluster in scorer_rows
                scorer_rows.pop(cluster, None)
                if entry is not None:
                    scorer_rows[cluster] = SnapshotRow.from_texts(pair, entry, text, skips, overrides)
                    self._total += 1
        self._rows = {scorer: scorer_rows for scorer, scorer_rows in rows.items() if scorer_rows}


def iter_rows(rows: Rows) -> Iterator[SnapshotRow]:
    """Yield the rows of all scorers and clusters."""
    for scorer_rows in rows.values():
        yield from scorer_rows.values()
