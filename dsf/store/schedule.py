"""The schedule in Redis: entries by the hub controller, overrides by users, due times.

An entry defines how often a pair runs; an override is a user's change and survives rewrites of the entry by the
controller. Due times are in a sorted set read by beat. Times are unix seconds, intervals seconds. A pair is named by
its member string `<cluster>/<scorer>` (`Entry.pair`, `dsf.keys.pair`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import redis

from dsf import keys
from dsf.api.types import MAX_SECONDS
from dsf.process.hubclock import hub_time
from dsf.store.client import Condition, at_once, at_once_if, batched, lua, parsed, parsed_all
from dsf.store.entries import (
    ALL_CLUSTERS,
    Effective,
    Entry,
    ScheduleOverride,
    effective,
    next_tick_time,
    pause,
    scorer_target,
)
from dsf.store.registry import Registry
from dsf.store.runs import Runs

#: First runs per second when many entries are created at once; hub and beat use the same.
SPREAD_RATE: Final = 100.0
#: How a due time moves; see lua/reschedule.lua.
_How = Literal["early", "now"]


class _Move(NamedTuple):
    pair: str
    text: str
    how: _How
    slot: float


class ScheduleStore:
    """Reads and writes the schedule. Methods raise redis.RedisError if Redis is unreachable.

    `now` is for tests only; it defaults to the clock.
    """

    #: Entries read or written per round trip.
    _BATCH = 1000
    #: Attempts to change an override under concurrent changes.
    _ATTEMPTS = 10

    def __init__(self, client: redis.Redis, *, spread_rate: float = SPREAD_RATE) -> None:
        """`spread_rate` is the number of first runs per second."""
        self._redis = client
        self._spread_rate = spread_rate
        self._reschedule = client.register_script(lua("reschedule"))

    # --- entries -------------------------------------------------------------------------------------------------

    def upsert(self, entries: Iterable[Entry], now: float | None = None) -> int:
        """Write new or changed entries; returns how many. Beat sees them at once. Overrides are kept.

        A new entry is due at once, many are spread. A changed one is due at its next slot or its previous due time,
        whichever is earlier; one no longer suspended is due at once.
        """
        at = hub_time(self._redis) if now is None else now
        changed = 0
        for batch in batched(entries, self._BATCH):
            pairs = [entry.pair for entry in batch]
            targets = [*pairs, *{scorer_target(entry.scorer) for entry in batch}]
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.hmget(keys.ENTRIES, pairs)
                pipe.zmscore(keys.DUE, pairs)
                pipe.hmget(keys.OVERRIDES, targets)
                stored_entries, due, changes = pipe.execute()
            overrides = parsed_all(ScheduleOverride, dict(zip(targets, changes, strict=True)))
            moves = []
            for entry, before, was_due in zip(batch, stored_entries, due, strict=True):
                text = entry.dump()
                if text == before and was_due is not None:
                    continue
                old = parsed(Entry, entry.pair, before)
                was = effective(old, overrides, at) if old is not None else None
                moves.append(_moved(entry, was, effective(entry, overrides, at), at, text))
            changed += self._move(moves, at)
        return changed

    def remove(self, pairs: Iterable[str]) -> int:
        """Remove pairs: entry, due time, state, books, history and open runs; returns how many had an entry.

        Open runs are closed uncounted: their books are gone. Overrides are kept, because pairs also disappear
        temporarily while a scorer is unhealthy or masked; `forget` removes those of a deleted scorer.
        """
        removed_pairs = sorted(set(pairs))
        removed = 0
        for batch in batched(removed_pairs, self._BATCH):
            # First the schedule: beat and rescore open no more runs after this.
            answers = at_once(
                self._redis,
                ("HDEL", keys.ENTRIES, *batch),
                ("ZREM", keys.DUE, *batch),
            )
            removed += answers[0]
        if removed_pairs:
            self._close_runs(set(removed_pairs))
        Runs(self._redis).forget(removed_pairs)
        return removed

    def entries(self, pairs: Iterable[str] | None = None) -> list[Entry]:
        """The entries of these pairs, in their order; by default all, sorted by pair.

        Unreadable ones are logged and left out, missing ones left out.
        """
        if pairs is not None:
            return list(self._read(pairs))
        return list(parsed_all(Entry, dict(sorted(self.stored().items()))).values())

    def stored(self) -> dict[str, str]:
        """All entries by pair as their texts."""
        return self._redis.hgetall(keys.ENTRIES)  # type: ignore[return-value]

    def entries_of(self, scorer: str) -> list[Entry]:
        """The entries of one scorer, sorted by cluster; others are not parsed."""
        entry_texts = sorted(self.stored().items())
        mine = {pair: text for pair, text in entry_texts if keys.split_pair(pair)[1] == scorer}
        return list(parsed_all(Entry, mine).values())

    def entry(self, pair: str) -> Entry | None:
        """Return an entry, or None if the pair is not scheduled."""
        text: str | None = self._redis.hget(keys.ENTRIES, pair)  # type: ignore[assignment]
        return parsed(Entry, pair, text)

    def due_times(self, pairs: Iterable[str]) -> dict[str, float]:
        """Next due times of these pairs (unix seconds), without unscheduled ones."""
        times: dict[str, float] = {}
        for batch in batched(pairs, self._BATCH):
            due = self._redis.zmscore(keys.DUE, batch)
            times |= {pair: float(at) for pair, at in zip(batch, due, strict=True) if at is not None}
        return times

    # --- overrides -----------------------------------------------------------------------------------------------

    def overrides(self) -> dict[str, ScheduleOverride]:
        """All overrides by target: a pair, or `*/<scorer>` for all clusters. Unreadable ones are left out, logged."""
        return parsed_all(ScheduleOverride, self._redis.hgetall(keys.OVERRIDES))

    def overrides_of(self, scorer: str, clusters: Iterable[str]) -> dict[str, ScheduleOverride]:
        """The overrides for a scorer on these clusters, by target as for `overrides`."""
        overrides: dict[str, ScheduleOverride] = {}
        for batch in batched((scorer_target(scorer), *(keys.pair(name, scorer) for name in clusters)), self._BATCH):
            overrides |= parsed_all(
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
        """Change the given fields, keep the rest, and move the due times of affected pairs; returns the result.

        `interval` in seconds. `paused=True` pauses until `paused_until` (or without an end), `paused=False` resumes,
        even if the DynamicScorer itself is suspended. With a new interval the next run is at its next slot or when it
        was due before, whichever is earlier; a resumed pair runs at once. Raises UnknownScorerError,
        UnknownClusterError, and ValueError for an interval that is not 1..MAX_SECONDS (`dsf.api.types`) or an end of
        the pause that is no time; nothing is stored then.
        """
        if interval is not None and interval > MAX_SECONDS:
            raise ValueError(f"interval: should be less than or equal to {MAX_SECONDS}, not {interval}")
        at = hub_time(self._redis) if now is None else now
        self._check(target)

        def merged(old: ScheduleOverride) -> ScheduleOverride:
            return ScheduleOverride(
                interval=old.interval if interval is None else interval,
                paused=old.paused if paused is None else paused,
                paused_until=old.paused_until if paused is None else paused_until if paused else None,
                # The note of the last change, even if it gave none: who and why belong together.
                note=note,
                by=by,
                at=at,
            )

        return self._change(target, merged, at) or ScheduleOverride()

    def resume(self, target: str, *, note: str = "", by: str = "", now: float | None = None) -> ScheduleOverride:
        """End the pause of a target; its pairs run at once. Returns the remaining override, possibly empty.

        Only if something else still pauses a pair (a pause of the whole scorer, or `suspend` in the DynamicScorer) the
        override stays as "not paused": so it does not overrule a later `suspend`. Raises UnknownScorerError and
        UnknownClusterError.
        """
        at = hub_time(self._redis) if now is None else now
        self._check(target)
        # The override that applies to a pair instead: none in place of that of the whole scorer, as a pair's own goes
        # before it.
        is_whole = keys.split_pair(target)[0] == ALL_CLUSTERS
        other_overrides = {} if is_whole else self._others(target)
        still_paused = any(pause(entry, other_overrides, at).paused for entry in self._touched(target))

        def resumed(old: ScheduleOverride) -> ScheduleOverride | None:
            new = ScheduleOverride(
                interval=old.interval, paused=False if still_paused else None, note=note, by=by, at=at
            )
            return new if still_paused or new.interval is not None else None

        return self._change(target, resumed, at) or ScheduleOverride()

    def reset(self, target: str, now: float | None = None) -> bool:
        """Remove the override of exactly this target; returns whether there was one. Due times move as in set_override.

        Raises UnknownScorerError and UnknownClusterError for a target that neither exists nor has an override.
        """
        if self._redis.hget(keys.OVERRIDES, target) is None:
            self._check(target)
            return False
        self._change(target, lambda _: None, hub_time(self._redis) if now is None else now)
        return True

    def targets(self, scorer: str) -> list[str]:
        """The targets of all overrides of a scorer, including unreadable ones."""
        return [str(name) for name in self._redis.hkeys(keys.OVERRIDES) if keys.split_pair(str(name))[1] == scorer]

    def forget(self, scorer: str) -> int:
        """Remove all overrides of a deleted scorer, so that a new one of that name starts without them.

        Returns their number.
        """
        targets = self.targets(scorer)
        return int(self._redis.hdel(keys.OVERRIDES, *targets)) if targets else 0

    # --- helpers -------------------------------------------------------------------------------------------------

    def _check(self, target: str) -> None:
        cluster, scorer = keys.split_pair(target)
        registry = Registry(self._redis)
        registry.scorer(scorer)
        if cluster != ALL_CLUSTERS:
            registry.cluster(cluster)

    def _change(
        self, target: str, change: Callable[[ScheduleOverride], ScheduleOverride | None], now: float
    ) -> ScheduleOverride | None:
        """Replace an override by the result of `change`, and move the due times of affected pairs."""
        for _ in range(self._ATTEMPTS):
            text: str | None = self._redis.hget(keys.OVERRIDES, target)  # type: ignore[assignment]
            new = change(parsed(ScheduleOverride, target, text) or ScheduleOverride())
            override_text = new.model_dump_json() if new else ""
            # Compare-and-set: concurrent users must not undo each other's change.
            unmet = at_once_if(
                self._redis,
                [Condition("=", text or "", ("HGET", keys.OVERRIDES, target))],
                ("HSET", keys.OVERRIDES, target, override_text) if override_text else ("HDEL", keys.OVERRIDES, target),
                ("SADD", keys.HUB_CHANGED, keys.split_pair(target)[1]),
                ("LPUSH", keys.BEAT_WAKE, "1"),
                ("LTRIM", keys.BEAT_WAKE, 0, 0),
                ("LPUSH", keys.HUB_WAKE, "1"),
                ("LTRIM", keys.HUB_WAKE, 0, 0),
            )
            if unmet is None:
                break
        else:
            raise redis.WatchError(f"the override of {target} is being changed by others all the time; try again")
        other_overrides = self._others(target)
        old = parsed(ScheduleOverride, target, text)
        before = {**other_overrides, target: old} if old else other_overrides
        after = {**other_overrides, target: new} if new else other_overrides
        for batch in batched(self._touched(target), self._BATCH):
            runs = [(entry, effective(entry, before, now), effective(entry, after, now)) for entry in batch]
            moves = [
                _moved(entry, was, will, now)
                for entry, was, will in runs
                if (was.paused, was.interval) != (will.paused, will.interval)
            ]
            self._move(moves, now)
        return new

    def _others(self, target: str) -> dict[str, ScheduleOverride]:
        """The overrides that matter to the pairs of a target, without its own."""
        cluster, scorer = keys.split_pair(target)
        overrides = self.overrides() if cluster == ALL_CLUSTERS else self.overrides_of(scorer, [cluster])
        return {name: override for name, override in overrides.items() if name != target}

    def _read(self, pairs: Iterable[str]) -> Iterator[Entry]:
        for batch in batched(pairs, self._BATCH):
            texts: list[str | None] = self._redis.hmget(keys.ENTRIES, batch)  # type: ignore[assignment]
            yield from parsed_all(Entry, dict(zip(batch, texts, strict=True))).values()

    def _touched(self, target: str) -> list[Entry]:
        cluster, scorer = keys.split_pair(target)
        return self.entries_of(scorer) if cluster == ALL_CLUSTERS else self.entries([target])

    def _move(self, moves: Sequence[_Move], now: float) -> int:
        if not moves:
            return 0
        gap = 1 / self._spread_rate
        fields = (field for move in moves for field in (move.pair, move.text, move.how, repr(move.slot)))
        return int(
            self._reschedule(
                keys=[keys.ENTRIES, keys.DUE, keys.FIRST_RUNS, keys.BEAT_WAKE],
                args=[repr(now), repr(gap), *fields],
            )
        )

    def _close_runs(self, pairs: set[str]) -> None:
        # Redis picks those of the cluster: when a scorer goes, this is done for each cluster.
        for cluster in {keys.split_pair(pair)[0] for pair in pairs}:
            runs = self._redis.zscan_iter(keys.OPEN_RUNS, match=keys.pair(cluster, "*"), count=1000)
            for members in batched([run for run, _ in runs if run.rpartition("/")[0] in pairs], self._BATCH):
                self._redis.zrem(keys.OPEN_RUNS, *members)


def _moved(entry: Entry, was: Effective | None, will: Effective, now: float, text: str = "") -> _Move:
    """How the due time of a pair moves whose schedule in force changes; `text` is its new entry, if it has one."""
    # Never later than before: the score in force may end before the first slot of a longer interval.
    how: _How = "now" if was is not None and was.paused and not will.paused else "early"
    return _Move(entry.pair, text, how, next_tick_time(entry.pair, will.interval, now))
