"""Writes AddOnPlacementScores: only changes, at a bounded rate, and deletes expired ones.

It is level-triggered: checking a pair computes the desired object from current data, compares it with the last write,
and applies the difference. So nothing is queued, the newest value wins, and an extra check is harmless.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

import redis

import dsf.log
from dsf import keys
from dsf.api.naming import sanitize_resource_name
from dsf.backends.protocol import ScoreBackend
from dsf.errors import BackendError
from dsf.process.threads import background
from dsf.results.desired import DesiredScore, desired, validity_factor
from dsf.settings import Settings
from dsf.store.client import at_once, parsed, repeat
from dsf.store.pairs import PairScore
from dsf.store.registry import Registry
from dsf.store.writes import LONGEST_BACKOFF, Facts, Finish, PairLease, Writes, WrittenRecord

#: Seconds after which another writer takes over a dead writer's pairs.
LEASE = 30.0
#: Longest sleep between checks; a change ingested by this process wakes the writer at once.
LONGEST_SLEEP = 0.5
# Pause in seconds after a check of more than one pair, so that a stream of changes is batched: a check has five round
# trips whatever it finds.
_PACE = 0.3
# Objects of a batch written concurrently, one more for each such number of seconds that it takes. A write may mostly
# wait: for the API server, and in a busy worker several times for the ingesting thread. If it does not, alternating
# threads cost a fifth more CPU than one.
_AT_ONCE, _ALONE = 4, 0.1
# While results wait, writing gets an eighth of this process's CPU: for each second of a batch the rest of the worker
# gets this many seconds before the next one, within at most this long. So each pair has a score in every second or
# third interval with half of the CPU that its fleet needs, and a score that is written later is newer.
_OTHERS, _LONGEST_YIELD = 7.0, 2.0

log = dsf.log.get(__name__)


class Writer:
    """Checks due pairs until stopped. Any number of workers may have one.

    `is_behind` says whether this process takes in results more slowly than they come; `clock` gives unix seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        backend: ScoreBackend,
        *,
        stopping: threading.Event,
        wake: threading.Event,
        is_behind: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis = client
        self._rate = settings.write_rate
        self._backend = backend
        self._stopping = stopping
        self._wake = wake
        self._clock = clock
        self._writes = Writes(client)
        self._registry = Registry(client)
        self._is_behind = is_behind
        self._attempts: dict[str, int] = {}
        self._factor = 1.0
        self._throttle = dsf.log.Throttle(10.0)
        # Held by the thread that waits for a turn to write.
        self._waiting = threading.Lock()
        # What is done and not recorded yet: a round trip for each would cost more than most of them.
        self._finished: deque[Finish] = deque()
        self._record_at = 0.0
        self._pause = 0.0
        # By time.monotonic().
        self._offer_at = float("-inf")

    def run(self) -> None:
        """Write until stopped."""
        repeat(self._turn, self._stopping, doing="write scores", pause=LONGEST_SLEEP, wait=self._rest)

    def _turn(self) -> float:
        self._wake.clear()
        return self.step()

    def _rest(self, seconds: float) -> None:
        if seconds > 0:
            self._stopping.wait(self._pause)
            self._wake.wait(min(seconds, LONGEST_SLEEP))

    def step(self) -> float:
        """Check a batch of due pairs; returns the seconds until the next one is due, 0 if there are more now."""
        if time.monotonic() >= self._offer_at:
            self._offer_at = time.monotonic() + 1.0
            # Seconds between audits by all writers together.
            if self._writes.begin_audit(30.0):
                self._audit()
        # Only as many as can be written within a fraction of the lease.
        batch = max(1, min(32, int(self._rate * LEASE / 4)))
        claims, due_in = self._writes.claim(self._clock(), LEASE, batch)
        self._pause = _PACE if len(claims) > 1 else 0.0
        if claims:
            self._factor = self._writes.validity_factor()
        self._yield(self._look_at_all(deque(zip(claims, self._writes.facts(claims), strict=True))))
        if len(claims) == batch:
            return 0.0
        return LONGEST_SLEEP if due_in is None else due_in

    def _yield(self, spent: float) -> None:
        """Yield to waiting results after a batch that used this much CPU (seconds): a score written later is newer, and
        is written once."""
        cpu, until = time.process_time() + _OTHERS * spent, time.monotonic() + _LONGEST_YIELD
        while time.process_time() < cpu and time.monotonic() < until and self._is_behind():
            if self._stopping.wait(0.1):
                return

    def _look_at_all(self, batch: deque[tuple[PairLease, Facts]]) -> float:
        """Check a batch concurrently; returns the CPU seconds used. Raises the first fatal error; the rest of the batch
        is left."""
        errors: list[Exception] = []
        spent: list[float] = []
        self._record_at = time.monotonic() + LONGEST_SLEEP

        def look() -> None:
            began = time.thread_time()
            while not errors:
                try:
                    entry = batch.popleft()
                except IndexError:
                    break
                try:
                    self._look(*entry)
                except Exception as error:  # noqa: BLE001 (raised below, in the writer's own thread)
                    errors.append(error)
            spent.append(time.thread_time() - began)

        helpers: list[threading.Thread] = []
        while batch and len(helpers) < _AT_ONCE:
            if not helpers or not self._waiting.locked():
                # Daemons: a hanging write must not delay shutdown.
                helpers.append(background(look, "score-write"))
            helpers[-1].join(_ALONE)
        for helper in helpers:
            helper.join()
        self._record()
        if errors:
            raise errors[0]
        return sum(spent)

    def _wait_for_turn(self) -> bool:
        """Wait until the fleet's rate allows a write; returns whether facts have become stale meanwhile."""
        began = time.monotonic()
        with self._waiting:
            while not self._stopping.is_set() and (seconds := self._writes.take_turn(self._rate)) > 0:
                if seconds > LONGEST_SLEEP:
                    self._record()
                self._stopping.wait(seconds)
        # A change meanwhile is not lost: the pair is checked again.
        return time.monotonic() - began > 1.0

    def _record(self) -> None:
        """Record what is done, in one round trip."""
        # A slow backend must not keep what was written long unrecorded.
        self._record_at = time.monotonic() + LONGEST_SLEEP
        finished: list[Finish] = []
        with suppress(IndexError):
            while True:
                finished.append(self._finished.popleft())
        self._writes.finish_all(finished)

    def _look(self, claim: PairLease, facts: Facts) -> None:
        """Process one pair; a failure of the backend postpones it."""
        # A slow backend must neither hold pairs beyond their lease nor delay shutdown.
        if self._stopping.is_set() or self._clock() > claim.lease - LEASE / 2:
            self._writes.put_back(claim, self._clock())
            return
        try:
            target = self._desired(claim, facts)
            if self._is_needed(target, facts.written) and self._wait_for_turn():
                # Time has passed: write the newest data.
                facts = self._writes.facts([claim])[0]
                target = self._desired(claim, facts)
            self._write(claim, facts, target)
            if facts.refusal:
                # It reads what is recorded.
                self._record()
                self._tell_hub(claim.scorer)
            if self._attempts.pop(claim.pair, 0) and (not_logged := self._throttle.take("again")) is not None:
                log.info("score written again", cluster=claim.cluster, scorer=claim.scorer, not_logged=not_logged)
        except redis.RedisError:
            raise
        except BackendError as error:
            # A refusal needs manual action, so the scorer's status reports it.
            if error.is_refusal and self._writes.note_refusal(claim, facts, str(error)):
                self._tell_hub(claim.scorer)
            self._put_off(claim, str(error))
        except Exception as error:
            # One failing object must not block those behind it.
            log.exception("writing a score failed", cluster=claim.cluster, scorer=claim.scorer)
            self._put_off(claim, repr(error))

    def _desired(self, claim: PairLease, facts: Facts) -> DesiredScore | None:
        if not facts.scheduled or facts.scorer is None or facts.cluster is None:
            return None
        score = parsed(PairScore, claim.pair, facts.score)
        if score is not None and not score.items and facts.items:
            # Its results were for metrics only, which is no empty answer; the next one has items.
            score = None
        return desired(
            score,
            facts.failing,
            facts.scorer,
            facts.cluster,
            now=self._clock(),
            factor=self._factor,
            shown_until=0.0 if facts.written is None else facts.written.valid_until,
        )

    def _is_needed(self, target: DesiredScore | None, written: WrittenRecord | None) -> bool:
        """Whether the backend has to be called."""
        if target is None or written is None:
            return (target is None) != (written is None)
        if target.name != written.name or target.digest != written.digest or written.is_ahead(self._clock()):
            return True
        if target.valid_until < written.valid_until:
            # Its validity was made shorter.
            return True
        return self._clock() >= written.renew_at and target.valid_until > written.valid_until

    def _write(self, claim: PairLease, facts: Facts, target: DesiredScore | None) -> None:
        """Apply `target` to the backend, and record it."""
        counts: Counter[str] = Counter()
        if facts.changes > 1:
            # Only the newest is written, or needs no write.
            counts["coalesced"] = facts.changes - 1
        written = facts.written
        now = self._clock()
        if self._is_needed(target, written):
            if written is not None and (target is None or target.name != written.name):
                self._delete(claim, written.name, counts)
                written = None
            if target is None:
                self._tell_hub(claim.scorer)
            else:
                since = now if written is None else written.since
                self._backend.apply_score(target.manifest(), target.status(since))
                counts["written"] = 1
                written = WrittenRecord(
                    name=target.name,
                    digest=target.digest,
                    valid_until=target.valid_until,
                    written_at=now,
                    since=since,
                )
        elif written is not None:
            counts["unchanged"] = 1
        elif facts.written_text and facts.scorer is not None:
            # An object exists, possibly an edited one, and none is desired.
            self._delete(claim, sanitize_resource_name(facts.scorer.score_name), counts)
        look = None if written is None else self._next_look(written, now)
        self._finished.append(Finish(claim, facts, self._clock(), look, written, counts))
        if time.monotonic() > self._record_at:
            self._record()

    def _delete(self, claim: PairLease, name: str, counts: Counter[str]) -> None:
        """Delete the object, unless it now belongs to another scorer: a renamed one writes the same object."""
        others = [
            (claim.cluster, scorer.name)
            for scorer in self._registry.scorers().values()
            if scorer.name != claim.scorer and sanitize_resource_name(scorer.score_name) == name
        ]
        if self._writes.any_written(others):
            return
        self._backend.delete_score(claim.cluster, name)
        counts["deleted"] = 1

    def _next_look(self, written: WrittenRecord, now: float) -> float:
        """When it is to be renewed; then at half of each remainder; at the latest at expiry."""
        if now < written.renew_at:
            return written.renew_at
        rest = written.valid_until - now
        # An object not yet renewable is checked again at half of its remaining time, but not in ever shorter steps.
        return min(written.valid_until, now + max(1.0, rest / 2)) if rest > 0 else now + 1.0

    def _put_off(self, claim: PairLease, why: str) -> None:
        attempts = self._attempts.get(claim.pair, 0)
        self._attempts[claim.pair] = attempts + 1
        backoff = min(LONGEST_BACKOFF, 2.0 ** min(attempts, 10))
        self._writes.put_off(claim, self._clock() + backoff)
        # Only a pair's first failure, and not each of thousands when the backend is down.
        if attempts == 0 and (not_logged := self._throttle.take("failed")) is not None:
            log.warning(
                "score not written", cluster=claim.cluster, scorer=claim.scorer, error=why, not_logged=not_logged
            )

    def _tell_hub(self, scorer: str) -> None:
        """A score is gone: update the scorer's status."""
        at_once(
            self._redis,
            ("SADD", keys.HUB_CHANGED, scorer),
            ("LPUSH", keys.HUB_WAKE, "1"),
            ("LTRIM", keys.HUB_WAKE, 0, 0),
        )

    def _audit(self) -> None:
        """Find objects without a scheduled check, and adapt the validities to the fleet's size."""
        pairs = self._writes.written_pairs()
        self._writes.touch_all(self._writes.unwatched(pairs))
        scorers = self._registry.scorers()
        numbers = Counter(scorer for _, scorer in pairs)
        factor = validity_factor(
            [(number, scorers[name].validity) for name, number in numbers.items() if name in scorers], self._rate
        )
        self._writes.set_validity_factor(factor)
        if factor > 1 and self._factor == 1:
            log.warning("scores are valid for longer, renewals would take too many writes", factor=round(factor, 3))
        self._factor = factor
