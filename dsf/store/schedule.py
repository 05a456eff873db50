"""Stores the schedule in Redis: entries of the hub controller, overrides of users, and due times.

An entry defines how often a pair runs. An override is a user's change, which survives when the controller rewrites the
entry. Beat reads the due times from a sorted set. Times are unix seconds, and intervals are seconds. A pair is a string
`<cluster>/<scorer>` (`Entry.pair`, `dsf.keys.pair`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import redis

from dsf import keys
from dsf.api.types import MAX_SECONDS
from dsf.process.hubclock import read_hub_time
from dsf.store.client import (
    Condition,
    load_lua,
    parse_all_stored,
    parse_stored,
    run_atomically,
    run_atomically_if,
    split_into_batches,
)
from dsf.store.entries import (
    ALL_CLUSTERS,
    EffectiveSchedule,
    Entry,
    ScheduleOverride,
    apply_overrides,
    compute_next_tick_time,
    compute_pause,
    find_interval,
    make_scorer_target,
)
from dsf.store.registry import Registry
from dsf.store.runs import Runs

#: First runs per second when many entries are created at once. Hub and beat use the same rate.
SPREAD_RATE: Final = 100.0
#: Kinds of moves of a due time, described in lua/reschedule.lua.
_MoveKind = Literal["early", "now"]


class _Move(NamedTuple):
    """A change of a pair's due time, as lua/reschedule.lua describes it."""

    pair: str
    #: The pair's new entry as JSON, or an empty string.
    text: str
    kind: _MoveKind
    #: Unix seconds.
    slot: float


class ScheduleStore:
    """Reads and writes the schedule. Methods raise redis.RedisError if Redis is unreachable.

    The parameter `now` of its methods is for tests. It defaults to the hub's time.
    """

    #: Entries read or written per round trip.
    _BATCH_SIZE = 1000
    #: Attempts to change an override under concurrent changes.
    _ATTEMPTS = 10

    def __init__(self, client: redis.Redis, *, spread_rate: float = SPREAD_RATE) -> None:
        """`spread_rate` is the number of first runs per second."""
        self._redis = client
        self._spread_rate = spread_rate
        self._reschedule_script = client.register_script(load_lua("reschedule"))

    # --- entries -------------------------------------------------------------------------------------------------

    def upsert(self, entries: Iterable[Entry], now: float | None = None) -> int:
        """Write new or changed entries, wake beat, and return their number. Overrides remain.

        A new entry is due at once; many new ones are spread over time. A changed entry is due at its next slot or at
        its previous due time, whichever is earlier. An entry that is no longer suspended is due at once.
        """
        at = read_hub_time(self._redis) if now is None else now
        change_count = 0
        for batch in split_into_batches(entries, self._BATCH_SIZE):
            pairs = [entry.pair for entry in batch]
            targets = [*pairs, *{make_scorer_target(entry.scorer) for entry in batch}]
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.hmget(keys.ENTRIES, pairs)
                pipe.zmscore(keys.DUE, pairs)
                pipe.hmget(keys.OVERRIDES, targets)
                stored_entries, due_times, override_texts = pipe.execute()
            overrides = parse_all_stored(ScheduleOverride, dict(zip(targets, override_texts, strict=True)))
            moves = []
            for entry, stored_text, previous_due in zip(batch, stored_entries, due_times, strict=True):
                text = entry.dump()
                if text == stored_text and previous_due is not None:
                    continue
                stored_entry = parse_stored(Entry, entry.pair, stored_text)
                previous_schedule = apply_overrides(stored_entry, overrides, at) if stored_entry is not None else None
                moves.append(_move_due_time(entry, previous_schedule, apply_overrides(entry, overrides, at), at, text))
            change_count += self._move(moves, at)
        return change_count

    def remove(self, pairs: Iterable[str]) -> int:
        """Remove the entry, due time, state, books, history and open runs of pairs.

        Returns the number of removed entries. Open runs are closed without counting them, because their books are gone.
        Overrides remain, because pairs also disappear temporarily while a scorer is unhealthy or masked. `forget`
        removes the overrides of a deleted scorer.
        """
        removed_pairs = sorted(set(pairs))
        removed_count = 0
        for batch in split_into_batches(removed_pairs, self._BATCH_SIZE):
            # Remove the entries first, so that beat and rescore open no more runs.
            responses = run_atomically(
                self._redis,
                ("HDEL", keys.ENTRIES, *batch),
                ("ZREM", keys.DUE, *batch),
            )
            removed_count += responses[0]
        if removed_pairs:
            self._close_runs(set(removed_pairs))
        Runs(self._redis).forget(removed_pairs)
        return removed_count

    def read_entries(self, pairs: Iterable[str] | None = None) -> list[Entry]:
        """Return the entries of these pairs in their order, or by default all entries sorted by pair.

        Missing entries are skipped. Unreadable ones are logged and skipped.
        """
        if pairs is not None:
            return list(self._read(pairs))
        return list(parse_all_stored(Entry, dict(sorted(self.read_texts().items()))).values())

    def read_texts(self) -> dict[str, str]:
        """Return the texts of all entries by pair."""
        return self._redis.hgetall(keys.ENTRIES)  # type: ignore[return-value]

    def read_entries_of(self, scorer: str) -> list[Entry]:
        """Return the entries of one scorer, sorted by cluster. Other entries are not parsed."""
        entry_texts = sorted(self.read_texts().items())
        scorer_texts = {pair: text for pair, text in entry_texts if keys.split_pair(pair)[1] == scorer}
        return list(parse_all_stored(Entry, scorer_texts).values())

    def read_entry(self, pair: str) -> Entry | None:
        """Return an entry, or None if the pair is not scheduled."""
        text: str | None = self._redis.hget(keys.ENTRIES, pair)  # type: ignore[assignment]
        return parse_stored(Entry, pair, text)

    def read_interval(self, cluster: str, scorer: str) -> int | None:
        """Return the interval in force of a pair in seconds, or None if the pair is not scheduled."""
        entry = self.read_entry(keys.pair(cluster, scorer))
        if entry is None:
            return None
        return find_interval(scorer, cluster, entry.interval, self.read_overrides_of(scorer, [cluster]))

    def read_due_times(self, pairs: Iterable[str]) -> dict[str, float]:
        """Return pair -> next due time (unix seconds) for the pairs that are scheduled."""
        times: dict[str, float] = {}
        for batch in split_into_batches(pairs, self._BATCH_SIZE):
            due_times = self._redis.zmscore(keys.DUE, batch)
            times |= {pair: float(due_at) for pair, due_at in zip(batch, due_times, strict=True) if due_at is not None}
        return times

    # --- overrides -----------------------------------------------------------------------------------------------

    def read_overrides(self) -> dict[str, ScheduleOverride]:
        """Return all overrides by target: a pair, or `*/<scorer>` for all clusters. Unreadable ones are logged."""
        return parse_all_stored(ScheduleOverride, self._redis.hgetall(keys.OVERRIDES))

    def read_overrides_of(self, scorer: str, clusters: Iterable[str]) -> dict[str, ScheduleOverride]:
        """Return the overrides for a scorer on these clusters, by target. See `read_overrides`."""
        overrides: dict[str, ScheduleOverride] = {}
        for batch in split_into_batches(
            (make_scorer_target(scorer), *(keys.pair(name, scorer) for name in clusters)), self._BATCH_SIZE
        ):
            overrides |= parse_all_stored(
                ScheduleOverride, dict(zip(batch, self._redis.hmget(keys.OVERRIDES, batch), strict=True))
            )
        return overrides

    def set_override(
        self,
        target: str,
        *,
        interval: int | None = None,
        paused: bool | None = None,
        paused_until: float | None = None,
        note: str = "",
        by: str = "",
        now: float | None = None,
    ) -> ScheduleOverride:
        """Change the given fields of an override, move the due times of its pairs, and return the new override.

        `interval` is in seconds. `paused=True` pauses until `paused_until`, or without an end. `paused=False` resumes,
        even if the DynamicScorer itself is suspended. With a new interval the next run is at the next slot or at the
        previous due time, whichever is earlier. A resumed pair runs at once.

        Raises UnknownScorerError, UnknownClusterError, and ValueError for an interval outside of 1..MAX_SECONDS
        (`dsf.api.types`) or an invalid `paused_until`. Nothing is stored then.
        """
        if interval is not None and interval > MAX_SECONDS:
            raise ValueError(f"interval: should be less than or equal to {MAX_SECONDS}, not {interval}")
        at = read_hub_time(self._redis) if now is None else now
        self._check_registered(target)

        def merge(old_override: ScheduleOverride) -> ScheduleOverride:
            return ScheduleOverride(
                interval=old_override.interval if interval is None else interval,
                paused=old_override.paused if paused is None else paused,
                paused_until=old_override.paused_until if paused is None else paused_until if paused else None,
                # Replace the note even with an empty one, so that it always belongs to the author.
                note=note,
                by=by,
                at=at,
            )

        return self._change_override(target, merge, at) or ScheduleOverride()

    def resume(self, target: str, *, note: str = "", by: str = "", now: float | None = None) -> ScheduleOverride:
        """End the pause of a target, so that its pairs run at once. Return the remaining override, which may be empty.

        The override becomes `paused: false` only if another pause remains: a pause of the whole scorer, or `suspend` in
        the DynamicScorer. In all other cases, `paused: false` would overrule a later `suspend`. Raises
        UnknownScorerError and UnknownClusterError.
        """
        at = read_hub_time(self._redis) if now is None else now
        self._check_registered(target)
        # The overrides that apply without this one. An override of the whole scorer does not need them, because the
        # pairs' own overrides take precedence over it.
        is_for_all_clusters = keys.split_pair(target)[0] == ALL_CLUSTERS
        other_overrides = {} if is_for_all_clusters else self._read_other_overrides(target)
        is_still_paused = any(
            compute_pause(entry, other_overrides, at).paused for entry in self._read_affected_entries(target)
        )

        def make_resumed(old_override: ScheduleOverride) -> ScheduleOverride | None:
            new_override = ScheduleOverride(
                interval=old_override.interval, paused=False if is_still_paused else None, note=note, by=by, at=at
            )
            return new_override if is_still_paused or new_override.interval is not None else None

        return self._change_override(target, make_resumed, at) or ScheduleOverride()

    def reset(self, target: str, now: float | None = None) -> bool:
        """Remove the override of this target, and return True if there was one.

        Due times move as in `set_override`. Raises UnknownScorerError and UnknownClusterError for a target that neither
        exists nor has an override.
        """
        if self._redis.hget(keys.OVERRIDES, target) is None:
            self._check_registered(target)
            return False
        self._change_override(target, lambda _: None, read_hub_time(self._redis) if now is None else now)
        return True

    def read_targets(self, scorer: str) -> list[str]:
        """Return the targets of all overrides of a scorer, including unreadable ones."""
        return [str(name) for name in self._redis.hkeys(keys.OVERRIDES) if keys.split_pair(str(name))[1] == scorer]

    def forget(self, scorer: str) -> int:
        """Remove all overrides of a deleted scorer, so that a new scorer of that name starts without them.

        Returns the number of removed overrides.
        """
        targets = self.read_targets(scorer)
        return int(self._redis.hdel(keys.OVERRIDES, *targets)) if targets else 0

    # --- helpers -------------------------------------------------------------------------------------------------

    def _check_registered(self, target: str) -> None:
        """Raise UnknownScorerError or UnknownClusterError unless the scorer and the cluster exist."""
        cluster, scorer = keys.split_pair(target)
        registry = Registry(self._redis)
        registry.read_scorer(scorer)
        if cluster != ALL_CLUSTERS:
            registry.read_cluster(cluster)

    def _change_override(
        self, target: str, change: Callable[[ScheduleOverride], ScheduleOverride | None], now: float
    ) -> ScheduleOverride | None:
        """Replace an override by the result of `change`, and move the due times of affected pairs."""
        for _ in range(self._ATTEMPTS):
            text: str | None = self._redis.hget(keys.OVERRIDES, target)  # type: ignore[assignment]
            new_override = change(parse_stored(ScheduleOverride, target, text) or ScheduleOverride())
            override_text = new_override.model_dump_json() if new_override else ""
            # Compare and set, so that concurrent users do not undo each other's changes.
            unmet_condition = run_atomically_if(
                self._redis,
                [Condition("=", text or "", ("HGET", keys.OVERRIDES, target))],
                ("HSET", keys.OVERRIDES, target, override_text) if override_text else ("HDEL", keys.OVERRIDES, target),
                ("SADD", keys.HUB_CHANGED, keys.split_pair(target)[1]),
                ("LPUSH", keys.BEAT_WAKE, "1"),
                ("LTRIM", keys.BEAT_WAKE, 0, 0),
                ("LPUSH", keys.HUB_WAKE, "1"),
                ("LTRIM", keys.HUB_WAKE, 0, 0),
            )
            if unmet_condition is None:
                break
        else:
            raise redis.WatchError(f"too many concurrent changes of the override of {target}; try again")
        other_overrides = self._read_other_overrides(target)
        old_override = parse_stored(ScheduleOverride, target, text)
        overrides_before = {**other_overrides, target: old_override} if old_override else other_overrides
        overrides_after = {**other_overrides, target: new_override} if new_override else other_overrides
        for batch in split_into_batches(self._read_affected_entries(target), self._BATCH_SIZE):
            schedules = [
                (entry, apply_overrides(entry, overrides_before, now), apply_overrides(entry, overrides_after, now))
                for entry in batch
            ]
            moves = [
                _move_due_time(entry, previous_schedule, new_schedule, now)
                for entry, previous_schedule, new_schedule in schedules
                if (previous_schedule.paused, previous_schedule.interval)
                != (new_schedule.paused, new_schedule.interval)
            ]
            self._move(moves, now)
        return new_override

    def _read_other_overrides(self, target: str) -> dict[str, ScheduleOverride]:
        """Return the other overrides that apply to the pairs of a target."""
        cluster, scorer = keys.split_pair(target)
        overrides = self.read_overrides() if cluster == ALL_CLUSTERS else self.read_overrides_of(scorer, [cluster])
        return {name: override for name, override in overrides.items() if name != target}

    def _read(self, pairs: Iterable[str]) -> Iterator[Entry]:
        for batch in split_into_batches(pairs, self._BATCH_SIZE):
            texts: list[str | None] = self._redis.hmget(keys.ENTRIES, batch)  # type: ignore[assignment]
            yield from parse_all_stored(Entry, dict(zip(batch, texts, strict=True))).values()

    def _read_affected_entries(self, target: str) -> list[Entry]:
        cluster, scorer = keys.split_pair(target)
        return self.read_entries_of(scorer) if cluster == ALL_CLUSTERS else self.read_entries([target])

    def _move(self, moves: Sequence[_Move], now: float) -> int:
        if not moves:
            return 0
        gap = 1 / self._spread_rate
        fields = (field for move in moves for field in (move.pair, move.text, move.kind, repr(move.slot)))
        return int(
            self._reschedule_script(
                keys=[keys.ENTRIES, keys.DUE, keys.FIRST_RUNS, keys.BEAT_WAKE],
                args=[repr(now), repr(gap), *fields],
            )
        )

    def _close_runs(self, pairs: set[str]) -> None:
        """Remove the open runs of these pairs."""
        # Let Redis select the runs by cluster, so that not all open runs are transferred.
        for cluster in {keys.split_pair(pair)[0] for pair in pairs}:
            runs = self._redis.zscan_iter(keys.OPEN_RUNS, match=keys.pair(cluster, "*"), count=1000)
            for members in split_into_batches(
                [run for run, _ in runs if run.rpartition("/")[0] in pairs], self._BATCH_SIZE
            ):
                self._redis.zrem(keys.OPEN_RUNS, *members)


def _move_due_time(
    entry: Entry,
    previous_schedule: EffectiveSchedule | None,
    new_schedule: EffectiveSchedule,
    now: float,
    text: str = "",
) -> _Move:
    """Return the move of a pair's due time after its effective schedule changed. `text` is its new entry, if any."""
    # "early" never moves a due time to a later time, because the current score may expire before the first slot of a
    # longer interval.
    kind: _MoveKind = (
        "now" if previous_schedule is not None and previous_schedule.paused and not new_schedule.paused else "early"
    )
    return _Move(entry.pair, text, kind, compute_next_tick_time(entry.pair, new_schedule.interval, now))
