"""Decides about due pairs, and sends their ticks. Times are unix seconds.

A batch consists of these steps: read the due pairs; read their entries, overrides and queue lengths; decide; commit all
decisions in one script (`lua/dispatch.lua`). Each due pair gets a tick, a skip with a reason, or a later due time if a
rate limit defers it. A pair without an entry is removed from the schedule. A batch takes three round trips to Redis,
and a fourth if the last slot of a mailbox is filled.
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
from dsf.beat.queueshares import QueueShares
from dsf.messages import make_run_id
from dsf.process import hubclock, tracing
from dsf.store import ticks
from dsf.store.client import load_lua, parse_all_stored, run_atomically
from dsf.store.entries import (
    CLOCK_SKEW,
    EffectiveSchedule,
    Entry,
    ScheduleOverride,
    apply_overrides,
    compute_next_due,
    compute_next_tick_time,
    compute_scheduled_time,
    make_scorer_target,
)
from dsf.store.schedule import SPREAD_RATE
from dsf.store.ticks import compute_run_deadline

log = dsf.log.get(__name__)

_SEND, _DEFER, _DROP = "send", "defer", "drop"
#: Seconds between two batches, unless a batch is full. At 1,000 ticks a second a pair is always due, and a batch for
#: each pair would use a whole core, because the three round trips dominate the cost of a batch.
_BATCH_PERIOD_SECONDS = 0.1
#: Seconds between two removals of expired tickets of rate limits.
_PRUNE_PERIOD_SECONDS = 60.0
#: Seconds until a pair with an unreadable entry is retried. A newer hub may have written the entry.
_UNREADABLE_RETRY_SECONDS = 60.0


class _Decision(NamedTuple):
    """Decision about one due pair. The fields, in this order, are arguments of dispatch.lua."""

    pair: str
    #: The due time that was read; the script skips the pair if another process has changed it since.
    due: float
    next_due: float
    #: `_SEND`, `_DEFER`, `_DROP`, or the reason of a skip.
    action: str
    #: Run (`dsf.keys.run_member`), its deadline, and the message of the tick; empty unless a tick is sent.
    run: str = ""
    deadline: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class _Batch:
    """The stored data on which the decisions of one batch depend."""

    now: float
    #: Pairs and their due times.
    due_pairs: Sequence[tuple[str, float]]
    #: Valid entries by pair.
    entries: Mapping[str, Entry]
    #: Pairs without an entry.
    removed_pairs: Set[str]
    #: Overrides by target: a pair, or a scorer on all clusters.
    overrides: Mapping[str, ScheduleOverride]
    #: Clusters with a result in every slot of their mailbox.
    full_mailboxes: Set[str]


class Dispatcher:
    """Sends due ticks. Methods raise redis.RedisError; pairs whose decisions were not committed then stay due."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        queue_limit: int,
        batch: int = 500,
        spread_rate: float = SPREAD_RATE,
        clock: Callable[[], float] = hubclock.now,
        home: str = "",
    ) -> None:
        """Create a dispatcher.

        `queue_limit` is the maximum number of ticks in a queue, `batch` the maximum number of pairs in a batch, and
        `spread_rate` the maximum number of late pairs per second. `home` is the hub's own namespace.
        """
        self._redis = client
        self._batch_size = batch
        self._queue_limit = queue_limit
        self._late_gap_seconds = 1 / spread_rate
        self._clock = clock
        self._dispatch_script = client.register_script(load_lua("dispatch"))
        self._limiter = RateLimiter()
        self._shares = QueueShares(queue_limit, home)
        self._next_prune_at = 0.0
        self._next_error_log_at = 0.0
        self._last_run_at = 0.0
        # Earliest run time of the next late pair.
        self._next_late_run_at = 0.0

    def run(self) -> float | None:
        """Dispatch one batch, and return the time at which to call this again; None if the schedule is empty."""
        now = self._clock()
        if now < self._last_run_at - CLOCK_SKEW:
            # Discard all tickets after the clock was set back, because their times may be far in the future.
            self._limiter = RateLimiter()
        self._last_run_at = now
        if time.monotonic() >= self._next_prune_at:
            self._limiter.remove_expired_tickets(now)
            self._next_prune_at = time.monotonic() + _PRUNE_PERIOD_SECONDS
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrangebyscore(keys.DUE, "-inf", repr(now), start=0, num=self._batch_size, withscores=True)
            pipe.zrange(keys.DUE, 0, 0, withscores=True)
            due_pairs, earliest_entries = pipe.execute()
        batch = self._read_batch(now, [(str(pair), float(due_at)) for pair, due_at in due_pairs]) if due_pairs else None
        if batch is not None:
            decisions = [self._decide_or_defer(batch, pair, due_at) for pair, due_at in batch.due_pairs]
            self._commit(decisions)
            tracing.record_ticks(
                [(decision.run, decision.due) for decision in decisions if decision.run], self._clock()
            )
        if batch is None:
            return float(earliest_entries[0][1]) if earliest_entries else None
        return now if len(due_pairs) == self._batch_size else now + _BATCH_PERIOD_SECONDS

    def _read_batch(self, now: float, due_pairs: list[tuple[str, float]]) -> _Batch:
        """Read the data for the decisions about these pairs, and begin a batch of the queue shares."""
        pairs = [pair for pair, _ in due_pairs]
        cluster_scorer_pairs = [keys.split_pair(pair) for pair in pairs]
        targets = [*pairs, *{make_scorer_target(scorer) for _, scorer in cluster_scorer_pairs}]
        clusters = list({cluster for cluster, _ in cluster_scorer_pairs})
        queues = [keys.spoke_queue(cluster) for cluster in clusters]
        # A mailbox is full if all its slots are filled. Usually one EXISTS of the last slots shows that none is full.
        entry_texts, override_texts, *counts = run_atomically(
            self._redis,
            ("HMGET", keys.ENTRIES, *pairs),
            ("HMGET", keys.OVERRIDES, *targets),
            *(("LLEN", queue) for queue in queues),
            ("EXISTS", *(keys.mail_slots(cluster)[-1] for cluster in clusters)),
            raise_command_errors=False,
        )
        *lengths_or_errors, used_last_slots = counts
        for response in (entry_texts, override_texts, used_last_slots):
            if isinstance(response, redis.RedisError):
                raise response
        entries = parse_all_stored(Entry, dict(zip(pairs, entry_texts, strict=True)))
        # Treat a key that is not a list as a full queue, so that its error does not stop other pairs.
        queue_lengths = {
            queue: length if isinstance(length, int) else self._queue_limit
            for queue, length in zip(queues, lengths_or_errors, strict=True)
        }
        due_namespaces = [
            (keys.spoke_queue(cluster), entries[pair].namespace)
            for pair, (cluster, _) in zip(pairs, cluster_scorer_pairs, strict=True)
            if pair in entries
        ]
        self._shares.begin_batch(queue_lengths, due_namespaces, now)
        return _Batch(
            now=now,
            due_pairs=due_pairs,
            entries=entries,
            removed_pairs={pair for pair, text in zip(pairs, entry_texts, strict=True) if text is None},
            overrides=parse_all_stored(ScheduleOverride, dict(zip(targets, override_texts, strict=True))),
            full_mailboxes=self._find_full_mailboxes(clusters if used_last_slots else ()),
        )

    def _find_full_mailboxes(self, clusters: Sequence[str]) -> Set[str]:
        """Return the clusters with a result in every slot of their mailbox."""
        if not clusters:
            return frozenset()
        with self._redis.pipeline(transaction=False) as pipe:
            for cluster in clusters:
                pipe.exists(*keys.mail_slots(cluster))
            used_slots = pipe.execute()
        return {cluster for cluster, count in zip(clusters, used_slots, strict=True) if count >= keys.MAIL_SLOTS}

    def _decide_or_defer(self, batch: _Batch, pair: str, due_at: float) -> _Decision:
        """Return the decision for this pair. An unexpected error defers the pair and does not stop others."""
        try:
            return self._decide(batch, pair, due_at)
        except Exception:
            if time.monotonic() >= self._next_error_log_at:
                # Log at most one error per second, because all pairs of a batch may fail.
                self._next_error_log_at = time.monotonic() + 1.0
                log.exception("pair cannot be scheduled", pair=pair, retry_seconds=_UNREADABLE_RETRY_SECONDS)
            return _Decision(pair, due_at, batch.now + _UNREADABLE_RETRY_SECONDS, _DEFER)

    def _decide(self, batch: _Batch, pair: str, due_at: float) -> _Decision:
        """Return the decision for this pair. The first reason that applies decides."""
        if pair in batch.removed_pairs:
            return _Decision(pair, due_at, 0.0, _DROP)
        cluster, scorer = keys.split_pair(pair)
        entry = batch.entries.get(pair)
        if entry is None or not (keys.is_name(cluster) and keys.is_name(scorer)):
            return _Decision(pair, due_at, batch.now + _UNREADABLE_RETRY_SECONDS, _DEFER)
        schedule = apply_overrides(entry, batch.overrides, batch.now)
        next_slot = compute_next_tick_time(pair, schedule.interval, batch.now)
        queue = keys.spoke_queue(cluster)
        if not entry.runnable:
            return _Decision(pair, due_at, next_slot, ticks.INACTIVE)
        if schedule.paused:
            return _Decision(pair, due_at, next_slot, ticks.PAUSED)
        if batch.now - due_at > schedule.interval:
            return _Decision(pair, due_at, self._compute_next_late_time(batch.now, next_slot), ticks.EXPIRED)
        if not self._shares.may_enqueue(queue, entry.namespace):
            return _Decision(pair, due_at, next_slot, ticks.QUEUE_FULL)
        if cluster in batch.full_mailboxes:
            return _Decision(pair, due_at, next_slot, ticks.RESULTS_BEHIND)
        if entry.rate_limit is not None:
            was_postponed = self._limiter.has_ticket(scorer, pair)
            run_at = self._limiter.reserve_time(scorer, pair, entry.rate_limit, batch.now)
            if run_at > batch.now:
                # Keep the ticket in both cases, so that a pair that misses a slot runs earlier in its next slot.
                return (
                    _Decision(pair, due_at, run_at, _DEFER)
                    if run_at < next_slot
                    else _Decision(pair, due_at, next_slot, ticks.RATE_LIMIT)
                )
            self._limiter.use_ticket(scorer, pair, next_slot)
            if was_postponed:
                # After a tick that was postponed within its slot, the pair runs in its next slot, however near that is.
                self._shares.add_tick(queue, entry.namespace)
                return self._make_tick(batch.now, pair, due_at, next_slot, schedule)
        self._shares.add_tick(queue, entry.namespace)
        return self._make_tick(
            batch.now, pair, due_at, compute_next_due(pair, schedule.interval, due_at, batch.now), schedule
        )

    def _make_tick(
        self, now: float, pair: str, due_at: float, next_due_at: float, schedule: EffectiveSchedule
    ) -> _Decision:
        """Return the decision to send a tick to the pair's queue."""
        cluster, scorer = keys.split_pair(pair)
        scheduled_at = compute_scheduled_time(pair, schedule.interval, due_at, now)
        expires_at = scheduled_at + schedule.interval
        run_id = make_run_id(scheduled_at)
        return _Decision(
            pair,
            due_at,
            next_due_at,
            _SEND,
            keys.run_member(cluster, scorer, run_id),
            compute_run_deadline(expires_at),
            ticks.make_tick_message(cluster, scorer, run_id, expires_at),
        )

    def _compute_next_late_time(self, now: float, next_slot: float) -> float:
        """Return the run time of a pair whose slot passed while no beat was active.

        Late pairs run evenly spaced, and at the latest in their next slot.
        """
        run_at = max(now, self._next_late_run_at)
        if run_at > next_slot:
            return next_slot
        self._next_late_run_at = run_at + self._late_gap_seconds
        return run_at

    def _commit(self, decisions: Sequence[_Decision]) -> None:
        """Commit the decisions of a batch in one script. Logs the pairs that the script skips."""
        cluster_scorer_pairs = [keys.split_pair(decision.pair) for decision in decisions]
        pair_keys = [key for name in cluster_scorer_pairs for key in (keys.pair_key(*name), keys.spoke_queue(name[0]))]
        arguments: list[str | int] = [len(keys.LAG_BOUNDS), *keys.LAG_BOUNDS]
        for decision in decisions:
            # Format floats by repr, which reproduces the due time exactly: the script compares it with the stored one.
            arguments += [repr(field) if isinstance(field, float) else field for field in decision]
        # Read the time as late as possible, because the script computes the lag from it.
        arguments.insert(0, repr(self._clock()))
        skipped_count, *invalid_pairs = self._dispatch_script(
            keys=[keys.DUE, keys.OPEN_RUNS, keys.BEAT_STATS, keys.BEAT_LAGS, keys.SKIPS, *pair_keys], args=arguments
        )
        if skipped_count:
            log.info("pairs were dispatched or changed by another process", pairs=skipped_count)
        if invalid_pairs:
            log.error(
                "pairs get no tick: their data in Redis is invalid", count=len(invalid_pairs), first=invalid_pairs[:5]
            )
