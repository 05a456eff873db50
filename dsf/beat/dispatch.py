"""Turns due times into ticks: one batch in three round trips, one more if results wait.

Read due pairs; read their entries, overrides and queue lengths; decide; commit all in one script (`lua/dispatch.lua`).
Every due pair ends in one of: a tick, a skip with its reason, a later due time (rate limit), or out of the schedule (no
entry). Times are unix seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import redis

import dsf.log
from dsf import keys
from dsf.beat.limiter import RateLimiter
from dsf.messages import new_run_id
from dsf.process import hubclock, tracing
from dsf.store import ticks
from dsf.store.client import at_once, lua, parsed, parsed_all
from dsf.store.entries import (
    CLOCK_SKEW,
    Effective,
    Entry,
    ScheduleOverride,
    effective,
    next_due,
    next_tick_time,
    scheduled_time,
    scorer_target,
)
from dsf.store.schedule import SPREAD_RATE
from dsf.store.ticks import run_deadline

log = dsf.log.get(__name__)

_SEND, _DEFER, _DROP = "send", "defer", "drop"
#: Seconds before retry of a pair that cannot be read or decided: a newer hub may have written its entry.
_UNREADABLE_RETRY = 60.0


class _TickArguments(NamedTuple):
    """Arguments of dispatch.lua for one pair."""

    pair: str
    due: float
    next_due: float
    action: str
    run: str = ""
    deadline: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class _Batch:
    """Data of one batch; `waiting` is each queue's length, including this batch's ticks, `full` the clusters with a
    result in every slot of their mailbox."""

    now: float
    due: Sequence[tuple[str, float]]
    entries: Mapping[str, str | None]
    overrides: Mapping[str, ScheduleOverride]
    waiting: dict[str, int]
    full: Set[str]


class Dispatcher:
    """Sends due ticks. Methods raise redis.RedisError; uncommitted pairs then stay due."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        queue_limit: int,
        batch: int = 500,
        spread_rate: float = SPREAD_RATE,
        clock: Callable[[], float] = hubclock.now,
    ) -> None:
        """`queue_limit` messages per queue, `batch` pairs per round trip, `spread_rate` late pairs per second."""
        self._redis = client
        self._batch = batch
        self._queue_limit = queue_limit
        self._gap = 1 / spread_rate
        self._clock = clock
        self._commit = client.register_script(lua("dispatch"))
        self._limiter = RateLimiter()
        self._prune_at = 0.0
        self._complain_at = 0.0
        self._newest = 0.0
        # Time up to which late pairs are scheduled.
        self._late_free = 0.0

    def run(self) -> float | None:
        """Dispatch one batch. Returns when to run again, None if nothing is scheduled at all."""
        now = self._clock()
        if now < self._newest - CLOCK_SKEW:
            # Its turns are times that are still to come.
            self._limiter = RateLimiter()
        self._newest = now
        if time.monotonic() >= self._prune_at:
            self._limiter.prune(now)
            self._prune_at = time.monotonic() + 60.0
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrangebyscore(keys.DUE, "-inf", repr(now), start=0, num=self._batch, withscores=True)
            pipe.zrange(keys.DUE, 0, 0, withscores=True)
            due, first = pipe.execute()
        batch = self._read(now, [(str(pair), float(at)) for pair, at in due]) if due else None
        if batch is not None:
            rows = [self._row(batch, pair, at) for pair, at in batch.due]
            self._write(rows)
            tracing.ticks_sent([(row.run, row.due) for row in rows if row.run], self._clock())
        if batch is None:
            return float(first[0][1]) if first else None
        # At 1,000 ticks a second something is always due; handling each alone would cost a core, and batching costs at
        # most this lag. The three round trips dominate a batch's cost, so many ticks are cheap.
        return now if len(due) == self._batch else now + 0.1

    def _read(self, now: float, due: list[tuple[str, float]]) -> _Batch:
        pairs = [pair for pair, _ in due]
        names = [keys.split_pair(pair) for pair in pairs]
        targets = [*pairs, *{scorer_target(scorer) for _, scorer in names}]
        clusters = list({cluster for cluster, _ in names})
        queues = [keys.spoke_queue(cluster) for cluster in clusters]
        # A mailbox is full if all of its slots are; checking the last ones together rules out most.
        texts, override_texts, *counts = at_once(
            self._redis,
            ("HMGET", keys.ENTRIES, *pairs),
            ("HMGET", keys.OVERRIDES, *targets),
            *(("LLEN", queue) for queue in queues),
            ("EXISTS", *(keys.mail_slots(cluster)[-1] for cluster in clusters)),
            is_strict=False,
        )
        *lengths, used_last_slots = counts
        for answer in (texts, override_texts, used_last_slots):
            if isinstance(answer, redis.RedisError):
                raise answer
        return _Batch(
            now=now,
            due=due,
            entries=dict(zip(pairs, texts, strict=True)),
            overrides=parsed_all(ScheduleOverride, dict(zip(targets, override_texts, strict=True))),
            # A pair whose queue is no queue takes no tick, and stops no other.
            waiting={
                queue: length if isinstance(length, int) else self._queue_limit
                for queue, length in zip(queues, lengths, strict=True)
            },
            full=self._full(clusters if used_last_slots else ()),
        )

    def _full(self, clusters: Sequence[str]) -> Set[str]:
        """The clusters with a result in every slot of their mailbox."""
        if not clusters:
            return frozenset()
        with self._redis.pipeline(transaction=False) as pipe:
            for cluster in clusters:
                pipe.exists(*keys.mail_slots(cluster))
            numbers = pipe.execute()
        return {name for name, number in zip(clusters, numbers, strict=True) if number >= keys.MAIL_SLOTS}

    def _row(self, batch: _Batch, pair: str, due: float) -> _TickArguments:
        """The decision for this pair. An unexpected error must not stop the others."""
        try:
            return self._decide(batch, pair, due)
        except Exception:
            if time.monotonic() >= self._complain_at:
                self._complain_at = time.monotonic() + 1.0
                log.exception("pair cannot be scheduled", pair=pair, retry_seconds=_UNREADABLE_RETRY)
            return _TickArguments(pair, due, batch.now + _UNREADABLE_RETRY, _DEFER)

    def _decide(self, batch: _Batch, pair: str, due: float) -> _TickArguments:
        text = batch.entries[pair]
        if text is None:
            return _TickArguments(pair, due, 0.0, _DROP)
        cluster, scorer = keys.split_pair(pair)
        entry = parsed(Entry, pair, text)
        if entry is None or not (keys.is_name(cluster) and keys.is_name(scorer)):
            return _TickArguments(pair, due, batch.now + _UNREADABLE_RETRY, _DEFER)
        runs = effective(entry, batch.overrides, batch.now)
        slot = next_tick_time(pair, runs.interval, batch.now)
        queue = keys.spoke_queue(cluster)
        if not entry.runnable:
            return _TickArguments(pair, due, slot, ticks.INACTIVE)
        if runs.paused:
            return _TickArguments(pair, due, slot, ticks.PAUSED)
        if batch.now - due > runs.interval:
            return _TickArguments(pair, due, self._late(batch.now, slot), ticks.EXPIRED)
        if batch.waiting[queue] >= self._queue_limit:
            return _TickArguments(pair, due, slot, ticks.QUEUE_FULL)
        if cluster in batch.full:
            return _TickArguments(pair, due, slot, ticks.RESULTS_BEHIND)
        if entry.rate_limit is not None:
            waited = self._limiter.waits(scorer, pair)
            moment = self._limiter.ticket(scorer, pair, entry.rate_limit, batch.now)
            if moment > batch.now:
                # The ticket stays valid either way: a pair that misses a slot is earlier in the next.
                return (
                    _TickArguments(pair, due, moment, _DEFER)
                    if moment < slot
                    else _TickArguments(pair, due, slot, ticks.RATE_LIMIT)
                )
            self._limiter.use(scorer, pair, slot)
            if waited:
                # The tick was postponed within its slot: the next slot is its own again, however near.
                batch.waiting[queue] += 1
                return self._send(batch.now, pair, due, slot, runs)
        batch.waiting[queue] += 1
        return self._send(batch.now, pair, due, next_due(pair, runs.interval, due, batch.now), runs)

    def _send(self, now: float, pair: str, due: float, next_due: float, runs: Effective) -> _TickArguments:
        cluster, scorer = keys.split_pair(pair)
        scheduled = scheduled_time(pair, runs.interval, due, now)
        expires = scheduled + runs.interval
        run_id = new_run_id(scheduled)
        return _TickArguments(
            pair,
            due,
            next_due,
            _SEND,
            keys.run_member(cluster, scorer, run_id),
            run_deadline(expires),
            ticks.tick_message(cluster, scorer, run_id, expires),
        )

    def _late(self, now: float, slot: float) -> float:
        """Run time of a pair whose slot passed while no beat was active: soon, but spread."""
        moment = max(now, self._late_free)
        if moment > slot:
            return slot
        self._late_free = moment + self._gap
        return moment

    def _write(self, rows: Sequence[_TickArguments]) -> None:
        names = [keys.split_pair(row.pair) for row in rows]
        touched = [key for name in names for key in (keys.pair_key(*name), keys.spoke_queue(name[0]))]
        arguments: list[str | int] = [len(keys.LAG_BOUNDS), *keys.LAG_BOUNDS]
        for row in rows:
            # The script compares due times: repr reproduces exactly the number read.
            arguments += [repr(field) if isinstance(field, float) else field for field in row]
        # Time of sending, for the lag: as late as possible.
        arguments.insert(0, repr(self._clock()))
        skipped_count, *spoilt = self._commit(
            keys=[keys.DUE, keys.OPEN_RUNS, keys.BEAT_STATS, keys.BEAT_LAGS, keys.SKIPS, *touched], args=arguments
        )
        if skipped_count:
            log.info("pairs were dispatched or changed by another process", pairs=skipped_count)
        if spoilt:
            log.error("pairs get no tick: what Redis has of them is spoilt", count=len(spoilt), first=spoilt[:5])
