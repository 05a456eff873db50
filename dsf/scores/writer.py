"""The score writer: makes the AddOnPlacementScores of the backend what the scores in Redis say, at a bounded rate.

The writer is level-triggered. Checking a pair computes the desired object from current data, compares it with the
backend's object, and applies the difference. Therefore the newest value wins, an extra check is harmless, and nothing
has to survive a change of leader: the next writer checks every pair.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

import redis

import dsf.log
from dsf.api.naming import label_value
from dsf.backends.protocol import Kind, ScoreBackend
from dsf.backends.scorestate import ScoreState
from dsf.errors import BackendError, ForeignObjectError
from dsf.process import hubclock
from dsf.process.threads import SupervisedThread, background
from dsf.reasons import WriteReason
from dsf.scores.desired import UNKNOWN, DesiredScore, Unknown, desired, validity_factor
from dsf.scores.failures import Failures, Pair
from dsf.scores.queue import PairQueue
from dsf.scores.rate import WriteRate
from dsf.settings import Settings
from dsf.store.client import parsed, repeat
from dsf.store.entries import CLOCK_SKEW
from dsf.store.pairs import PairScore, Unwritten
from dsf.store.registry import Registry
from dsf.store.writes import Facts, Writes

log = dsf.log.get(__name__)

#: Longest wait between turns in seconds; a change of a score ends it.
LONGEST_WAIT: Final = 0.5
#: Most pairs of a turn, and the seconds for which their data may be used.
_BATCH: Final = 32
_FRESH: Final = 1.0
#: Pause in seconds after a turn with more than one pair, so that a stream of changes is batched.
_PACE: Final = 0.3
#: Pairs of a turn that are written concurrently, one more for each such number of seconds that it takes. A write mostly
#: waits for the API server. If it does not, alternating threads cost a fifth more CPU than one.
_AT_ONCE: Final = 4
_ALONE: Final = 0.1
#: While results wait in this process, their ingestion gets this many CPU seconds
#: per CPU second of writing, for at most _MAX_YIELD seconds.
_CPU_SHARE_OF_INGEST: Final = 7.0
_MAX_YIELD: Final = 2.0
#: Seconds between attempts while the backend answers nothing at all, and after which that is reported for every pair.
_AWAY_PAUSE: Final = 1.0
_AWAY_REPORTED: Final = 5.0
#: Longest time in seconds that a busy API server may ask to wait.
_LONGEST_ASKED: Final = 30.0
#: Share of its validity after which an object is renewed.
# A half would be too early: a score is up to an interval old when written, so that renewal at half of the rest would
# happen more than twice per validity.
RENEW_AFTER: Final = 0.6
#: Attempts after which a failure that may pass is reported although the object is still valid.
_ATTEMPTS_REPORTED: Final = 3
#: Changes of an object by another program that are undone at once, and the longest wait in seconds after more of them.
_REPAIRS_AT_ONCE: Final = 3
_LONGEST_CONTEST: Final = 60.0
#: Least seconds between two looks for scores of the original project's agent.
_ADOPT_EVERY: Final = 10.0
#: Seconds between computations of the validities' factor.
_AUDIT_EVERY: Final = 30.0
#: Seconds without a completed request while some are due, after which the writer counts as stuck.
STUCK: Final = 180.0


class Owners(Protocol):
    """Which objects are wanted, by the hub's desired state."""

    def wants(self, cluster: str, label: str) -> bool:
        """True if the scorer with this label value has a score on this cluster, if its cycles succeed."""

    @property
    def version(self) -> object:
        """Return another object after each change of the desired state."""

    def adoption(self, cluster: str, name: str, created: float) -> tuple[dict[str, Any], int] | None:
        """Return a planned score's object without status and its seconds of validity, if an object of this name created
        then (unix seconds) is the original project's; else None."""

    def scorer_of(self, cluster: str, name: str) -> str | None:
        """The scorer whose score has this object name on a cluster."""


class _Written(NamedTuple):
    """An object as this writer left it: as the backend has it since then, when, and the digest that was written."""

    state: ScoreState
    at: float
    #: Differs from that of the state where the API server stores other names, as for those that are not valid Unicode.
    digest: str


class ScoreWriter:
    """A service of the elected hub controller. `start` it once, `stop` it once."""

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        backend: ScoreBackend,
        owners: Callable[[], Owners | None],
        *,
        on_status: Callable[[set[str]], None] = lambda _: None,
        is_behind: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = hubclock.now,
    ) -> None:
        """`owners` gives the desired state, None while it is unknown; `on_status` gets scorers whose status changed.

        `is_behind` returns True if results wait in this process; `clock` gives unix seconds on the hub's clock.
        """
        self._rate = settings.write_rate
        self._turns = WriteRate(self._rate)
        self._backend = backend
        self._owners = owners
        self._on_status = on_status
        self._is_behind = is_behind
        self._clock = clock
        self._writes = Writes(client)
        self._registry = Registry(client)
        self._throttle = dsf.log.Throttle(10.0)
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self.run, "score-writer")
        # Held by the thread that waits for a turn to write.
        self._waiting = threading.Lock()
        # Guards all below.
        self._lock = threading.RLock()
        # Scorer -> its namespace.
        self._namespaces: dict[str, str] = {}
        self._queue, self._retries = (
            PairQueue(lambda scorer: self._namespaces.get(scorer, ""), settings.namespace) for _ in range(2)
        )
        self._failures = Failures()
        #: Changes of each pair since its last check.
        self._changes: Counter[Pair] = Counter()
        # Index of the backend's objects: the scorer's label by (cluster, name), and names by (cluster, label).
        self._labels: dict[tuple[str, str], str] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        # Scorers by label value; the label of a long name is a hash.
        self._scorer_of_label: dict[str, str] = {}
        # Changes by other programs that were undone lately, and when the last one was, by (cluster, name).
        self._repairs: dict[tuple[str, str], tuple[int, float]] = {}
        # By (cluster, name).
        self._written: dict[tuple[str, str], _Written] = {}
        self._counts: Counter[str] = Counter()
        # Pairs recorded in Redis as not written; None before they were read.
        self._noted: set[Pair] | None = None
        self._news: dict[Pair, Unwritten | None] = {}
        self._check_all = True
        self._factor = 1.0
        self._now = 0.0
        # Why the backend answers nothing, since when, and when the next attempt is made (both by time.monotonic()).
        self._away: tuple[str, float] | None = None
        self._attempt_at = 0.0
        self._audit_at = 0.0
        # The desired state for which upstream's scores were taken over, and when (monotonic) to look again.
        self._adopted: object = None
        self._adopt_at = 0.0
        self._progress_at = time.monotonic()
        self._pause = 0.0

    # --- service -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a write in progress is completed."""
        self._stopping.set()
        self._thread.join(10.0)

    def problem(self) -> str:
        """Why no score is written; empty while the writer works or has nothing to do."""
        if self._thread.is_alive() and time.monotonic() - self._progress_at > STUCK:
            return "the score writer is stuck"
        return ""

    def run(self) -> None:
        """Write until stopped."""
        repeat(self._turn, self._stopping, doing="write scores", pause=LONGEST_WAIT)

    def _turn(self) -> float:
        seconds = self.step()
        if seconds > 0:
            self._stopping.wait(self._pause)
            if not self._stopping.is_set():
                self._writes.wait(min(seconds, LONGEST_WAIT))
        return 0.0

    # --- what to check -------------------------------------------------------------------------------------------

    def check(self, pairs: Iterable[Pair]) -> None:
        """Check these (cluster, scorer) soon: their scorer, cluster or entry changed."""
        with self._lock:
            for pair in pairs:
                self._queue.add(pair, 0.0)

    def check_everything(self) -> None:
        """Check every pair soon: changes may have been missed."""
        with self._lock:
            self._check_all = True

    def object_changed(self, cluster: str, name: str) -> None:
        """An object of the backend appeared, changed or is gone."""
        state = self._backend.score(cluster, name)
        owners = self._owners()
        with self._lock:
            labels = {self._labels.get((cluster, name))} - {None}
            self._index(cluster, name, state)
            if state is not None:
                labels.add(state.scorer)
                last_write = self._written.get((cluster, name))
                if last_write is not None and last_write.state == state:
                    # Its own write.
                    return
            pairs = {(cluster, self._scorer_of_label.get(str(label), str(label))) for label in labels}
            # Pairs that failed are tried again soon, and not at each change by another program.
            pairs = {pair for pair in pairs if pair not in self._failures}
            if owners is not None and (scorer := owners.scorer_of(cluster, name)) is not None:
                pairs.add((cluster, scorer))
            for pair in pairs:
                self._queue.add(pair, 0.0)

    def _index(self, cluster: str, name: str, state: ScoreState | None) -> None:
        """Remember which scorer's label an object has. Call it with the lock."""
        before = self._labels.pop((cluster, name), None)
        if before is not None:
            names = self._names[cluster, before]
            names.discard(name)
            if not names:
                del self._names[cluster, before]
        if state is None:
            self._written.pop((cluster, name), None)
            return
        self._labels[cluster, name] = state.scorer
        self._names.setdefault((cluster, state.scorer), set()).add(name)

    def _plan_all(self) -> None:
        """Plan a check of every pair that has an entry, an object, or a record that its score is not written."""
        scheduled = self._writes.scheduled_pairs()
        unwritten = self._writes.unwritten_pairs()
        stored_scores = [(key, self._backend.score(key.namespace, key.name)) for key in self._backend.keys(Kind.SCORE)]
        with self._lock:
            if self._noted is None:
                self._noted = set(unwritten)
            for _, scorer in scheduled:
                self._scorer_of_label[label_value(scorer)] = scorer
            for key, state in stored_scores:
                self._index(key.namespace, key.name, state)
            labelled = [(cluster, self._scorer_of_label.get(label, label)) for cluster, label in self._names]
            for pair in (*scheduled, *unwritten, *labelled):
                self._queue.add(pair, 0.0)
            self._check_all = False

    # --- a turn --------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Check a batch of due pairs; returns the seconds until the next one is due, 0 if there are more now.

        Raises redis.RedisError.
        """
        owners = self._owners()
        if owners is None:
            return LONGEST_WAIT
        now = self._clock()
        # After that all due times are in the future.
        if self._check_all or now < self._now - CLOCK_SKEW:
            self._plan_all()
        self._now = now
        self._adopt(owners)
        changes = self._writes.pop_changes()
        with self._lock:
            for pair, number in changes.items():
                self._changes[pair] += number
                if pair not in self._failures:
                    self._queue.add(pair, 0.0)
        if time.monotonic() >= self._audit_at:
            self._audit_at = time.monotonic() + _AUDIT_EVERY
            self._audit()
        batch = self._batch(now)
        self._pause = _PACE if len(batch) > 1 else 0.0
        if batch:
            self._factor = self._writes.validity_factor()
            self._yield(self._check_batch(owners, batch))
        self._report_outage()
        self._record()
        with self._lock:
            self._progress_at = time.monotonic()
            if self._away is not None:
                return max(self._attempt_at - time.monotonic(), 0.01)
            times = [due for due in (self._queue.next_due(), self._retries.next_due()) if due is not None]
        return max(min(times) - self._clock(), 0.0) if times else LONGEST_WAIT

    def _adopt(self, owners: Owners) -> None:
        """Take over scores of the original project's agent where a scorer of that score name is planned.

        Without a score of its own such a scorer would leave them to steer OCM for ever.
        """
        if self._away is not None or owners.version is self._adopted or time.monotonic() < self._adopt_at:
            return
        self._adopt_at = time.monotonic() + _ADOPT_EVERY

        def claim(cluster: str, name: str, created: float) -> tuple[dict[str, Any], datetime] | None:
            planned = owners.adoption(cluster, name, created)
            if planned is None:
                return None
            body, seconds = planned
            return body, datetime.fromtimestamp(self._clock() + seconds * self._factor, UTC)

        try:
            number = self._backend.adopt_scores(claim)
        except BackendError as error:
            log.warning("upstream's scores cannot be listed, will be tried again", error=str(error))
            return
        except Exception:
            # Scores are written all the same.
            log.exception("upstream's scores cannot be taken over, will be tried again")
            return
        self._adopted = owners.version
        if number:
            log.info("scores of upstream's agent taken over: they expire like all others", count=number)
            # Their ends are to be watched.
            self.check_everything()

    def _batch(self, now: float) -> list[Pair]:
        """The pairs of this turn: of failed ones a quarter, so that they do not keep the others waiting."""
        # Only as many as can be written within a few seconds.
        limit = max(1, min(_BATCH, int(self._rate * 8)))
        with self._lock:
            if self._away is not None:
                if time.monotonic() < self._attempt_at:
                    return []
                limit = 1
            retries = self._retries.take(now, max(1, limit // 4))
            due = self._queue.take(now, max(limit - len(retries), 0 if self._away is not None else 1))
            # A retry that a failure of the whole backend has left.
            return [*due, *retries]

    def _check_batch(self, owners: Owners, batch: list[Pair]) -> float:
        """Check pairs concurrently; returns the CPU seconds used. Raises the first error of Redis; the pairs left are
        checked again."""
        read_at = time.monotonic()
        entries = deque(zip(batch, self._facts(batch), strict=True))
        errors: list[Exception] = []
        spent: list[float] = []

        def work() -> None:
            began = time.thread_time()
            while not errors:
                try:
                    pair, facts = entries.popleft()
                except IndexError:
                    break
                try:
                    self._check(owners, pair, facts, read_at)
                except Exception as error:  # noqa: BLE001 (raised below, in the writer's own thread)
                    errors.append(error)
                    entries.append((pair, facts))
            spent.append(time.thread_time() - began)

        helpers: list[threading.Thread] = []
        while entries and not errors and len(helpers) < _AT_ONCE:
            if not helpers or not self._waiting.locked():
                # Daemons: a hanging write must not delay shutdown.
                helpers.append(background(work, "score-write"))
            helpers[-1].join(_ALONE)
        for helper in helpers:
            helper.join()
        self.check(pair for pair, _ in entries)
        if errors:
            raise errors[0]
        return sum(spent)

    def _facts(self, pairs: list[Pair]) -> list[Facts]:
        try:
            return self._writes.facts(pairs)
        except redis.RedisError:
            self.check(pairs)
            raise

    def _check(self, owners: Owners, pair: Pair, facts: Facts, read_at: float) -> None:
        """Process one pair; a failure of the backend postpones it."""
        with self._lock:
            away = self._away is not None and time.monotonic() < self._attempt_at
        if self._stopping.is_set() or away:
            self.check([pair])
            return
        try:
            self._make_so(owners, pair, facts, read_at)
        except redis.RedisError:
            raise
        except BackendError as error:
            self._fail(pair, error)
        except Exception as error:
            # A failing object must not block those behind it.
            if pair not in self._failures:
                log.exception("writing a score failed", cluster=pair[0], scorer=pair[1])
            self._fail(pair, error)

    def _make_so(self, owners: Owners, pair: Pair, facts: Facts, read_at: float) -> None:
        """Apply the difference between the desired object of a pair and the backend's."""
        cluster, scorer = pair
        with self._lock:
            changes = self._changes[pair]
            if facts.scorer is not None:
                self._scorer_of_label[label_value(scorer)] = scorer
        if self._differs(owners, pair, facts) and self._wait_for_turn(read_at):
            # Time has passed: write the newest data.
            [facts] = self._writes.facts([pair])
        target = self._target(owners, pair, facts)
        counts: Counter[str] = Counter()
        is_over = False
        for name in self._superfluous(owners, pair, target):
            self._backend.delete_score(cluster, name)
            with self._lock:
                self._index(cluster, name, None)
            counts["deleted"] += 1
            is_over = True
        next_check: float | None = None
        if isinstance(target, DesiredScore):
            state = self._backend.score(cluster, target.name)
            if self._is_needed(target, state):
                self._apply(target, state)
                counts["written"] += 1
                state = self._backend.score(cluster, target.name)
            else:
                counts["unchanged"] += 1
            next_check = self._next_check(cluster, target.name, state)
        elif target is UNKNOWN:
            next_check = min((state.valid_until for _, state in self._objects(pair)), default=None)
        # Only the newest is written, or needs no write.
        counts["coalesced"] = max(changes - 1, 0)
        self._succeed(pair, counts, next_check, changes, is_over=is_over)

    def _apply(self, target: DesiredScore, state: ScoreState | None) -> None:
        """Write an object. Raises BackendError, also if another program has changed it again and again."""
        now = self._clock()
        cluster, name = target.cluster.name, target.name
        with self._lock:
            earlier = self._written.get((cluster, name))
            count, repaired_at = self._repairs.get((cluster, name), (0, 0.0))
            if earlier is not None and state is not None and state != earlier.state:
                wait = min(_LONGEST_CONTEST, 2.0 ** min(count, 10)) if count >= _REPAIRS_AT_ONCE else 0.0
                if repaired_at <= now < repaired_at + wait:
                    raise BackendError(
                        f"another program changes AddOnPlacementScore {name} in namespace {cluster} again and again; "
                        f"it is written once in {wait:.0f} s until that ends: find the program by kubectl get -o yaml "
                        "--show-managed-fields"
                    )
                is_new = now > repaired_at + 2 * _LONGEST_CONTEST
                self._repairs[cluster, name] = (1 if is_new else count + 1), now
        since = state.since if state is not None and state.since and state.digest else now
        written_state = self._backend.apply_score(target.manifest(), target.status(since))
        with self._lock:
            self._index(cluster, name, written_state)
            self._written[cluster, name] = _Written(written_state, now, target.digest)

    def _target(self, owners: Owners, pair: Pair, facts: Facts) -> DesiredScore | Unknown | None:
        """The desired object of a pair now."""
        cluster, scorer = pair
        if not facts.scheduled and not owners.wants(cluster, label_value(scorer)):
            return None
        if facts.scorer is None or facts.cluster is None:
            return UNKNOWN
        score = parsed(PairScore, f"{cluster}/{scorer}", facts.score)
        if score is not None and not score.items and facts.items:
            # Its results were for metrics only, which is no empty answer; the next one has items.
            score = None
        shown_until = max((state.valid_until for _, state in self._objects(pair)), default=0.0)
        target = desired(
            score,
            facts.failing,
            facts.scorer,
            facts.cluster,
            now=self._clock(),
            factor=self._factor,
            shown_until=shown_until,
        )
        # The namespace may not exist: the cluster may be absent for a moment.
        return (
            UNKNOWN if isinstance(target, DesiredScore) and not owners.wants(cluster, label_value(scorer)) else target
        )

    def _objects(self, pair: Pair) -> list[tuple[str, ScoreState]]:
        """The backend's objects of a pair, by name."""
        cluster, scorer = pair
        with self._lock:
            names = [*self._names.get((cluster, label_value(scorer)), ())]
        states = ((name, self._backend.score(cluster, name)) for name in names)
        return [(name, state) for name, state in states if state is not None]

    def _superfluous(self, owners: Owners, pair: Pair, target: DesiredScore | Unknown | None) -> list[str]:
        """Names of a pair's objects that must not exist."""
        cluster, scorer = pair
        objects = self._objects(pair)
        if isinstance(target, DesiredScore):
            names = [name for name, _ in objects if name != target.name]
        elif target is UNKNOWN:
            names = [name for name, state in objects if state.valid_until <= self._clock()]
        else:
            names = [name for name, _ in objects]
        remaining_names: list[str] = []
        for name in names:
            # With the label of this scorer and the name of another one's score: that one's writing puts it right.
            owner = owners.scorer_of(cluster, name)
            if owner is None or owner == scorer:
                remaining_names.append(name)
            else:
                self.check([(cluster, owner)])
        return remaining_names

    def _differs(self, owners: Owners, pair: Pair, facts: Facts) -> bool:
        """True if the backend has to be called."""
        target = self._target(owners, pair, facts)
        if self._superfluous(owners, pair, target):
            return True
        if not isinstance(target, DesiredScore):
            return False
        return self._is_needed(target, self._backend.score(pair[0], target.name))

    def _is_needed(self, target: DesiredScore, state: ScoreState | None) -> bool:
        """True if an object has to be written."""
        if state is None:
            return True
        with self._lock:
            last_write = self._written.get((target.cluster.name, target.name))
        digest = last_write.digest if last_write is not None and last_write.state == state else state.digest
        if (digest, state.scorer) != (target.digest, label_value(target.scorer.name)):
            return True
        owner = target.cluster.uid
        if owner and state.owner != owner:
            return True
        # The API server has whole seconds.
        until, now = int(target.valid_until), self._clock()
        if until < int(state.valid_until):
            # Its validity was made shorter.
            return True
        return until > int(state.valid_until) and now >= self._renew_at(target.cluster.name, target.name, state)

    def _renew_at(self, cluster: str, name: str, state: ScoreState) -> float:
        """When to renew an object: by this writer's own clock, if it wrote it last."""
        with self._lock:
            last_write = self._written.get((cluster, name))
        written_at = last_write.at if last_write is not None else min(state.written_at, self._clock())
        return written_at + (state.valid_until - written_at) * RENEW_AFTER

    def _next_check(self, cluster: str, name: str, state: ScoreState | None) -> float:
        """When it is to be renewed; then at half of each remainder; at the latest at expiry."""
        now = self._clock()
        if state is None:
            # Its write is not reported yet.
            return now + 1.0
        renew_at = self._renew_at(cluster, name, state)
        if now < renew_at:
            return renew_at
        rest = state.valid_until - now
        # An object not yet renewable is checked again at half of its remaining time, but not in ever shorter steps.
        return min(state.valid_until, now + max(1.0, rest / 2)) if rest > 0 else now + 1.0

    # --- how it went ---------------------------------------------------------------------------------------------

    def _succeed(
        self, pair: Pair, counts: Counter[str], next_check: float | None, changes: int, *, is_over: bool
    ) -> None:
        with self._lock:
            self._changes[pair] -= changes
            if self._changes[pair] <= 0:
                del self._changes[pair]
            self._counts.update({name: number for name, number in counts.items() if number})
            has_failed = pair in self._failures
            for related in self._failures.remove(pair):
                self._retries.remove(related)
                self._queue.add(related, 0.0)
            self._retries.remove(pair)
            if next_check is not None:
                self._queue.add(pair, next_check)
            if counts["written"] or counts["deleted"]:
                self._away = None
            if pair in (self._noted or ()) or pair in self._news:
                self._news[pair] = None
        if is_over and not counts["written"]:
            self._on_status({pair[1]})
        if has_failed and (not_logged := self._throttle.take("again")) is not None:
            log.info("score written again", cluster=pair[0], scorer=pair[1], not_logged=not_logged)

    def _fail(self, pair: Pair, error: Exception) -> None:
        now = self._clock()
        is_foreign = isinstance(error, ForeignObjectError)
        is_refusal = isinstance(error, BackendError) and error.is_refusal
        reason = WriteReason.SCORE_NAME_FOREIGN if is_foreign else WriteReason.SCORES_NOT_WRITTEN
        message = str(error) if isinstance(error, BackendError) else repr(error)
        is_expired = all(state.valid_until <= now for _, state in self._objects(pair))
        with self._lock:
            self._counts["failed"] += 1
            failure, backoff = self._failures.add(pair, reason, message, now)
            if isinstance(error, BackendError) and (error.is_unreachable or error.is_busy):
                # The next attempt of any pair would get the same answer.
                self._away = message, self._away[1] if self._away is not None else time.monotonic()
                self._attempt_at = time.monotonic() + max(_AWAY_PAUSE, min(error.retry_after or 0.0, _LONGEST_ASKED))
            self._retries.add(pair, now + backoff)
            if is_foreign:
                # The object may be upstream's, written since the last look.
                self._adopted = None
            if is_refusal or failure.attempts >= (2 if is_expired else _ATTEMPTS_REPORTED):
                self._news[pair] = Unwritten(reason=reason, message=message, since=failure.since)
        # Only a pair's first failure, and not each of thousands when the backend is down.
        if failure.attempts == 1 and (not_logged := self._throttle.take("failed")) is not None:
            log.warning("score not written", cluster=pair[0], scorer=pair[1], error=message, not_logged=not_logged)

    def _report_outage(self) -> None:
        """Record for every pair that waits for a backend that it is not written."""
        with self._lock:
            if self._away is None or time.monotonic() - self._away[1] < _AWAY_REPORTED:
                return
            cause = Unwritten(reason=WriteReason.SCORES_NOT_WRITTEN, message=self._away[0], since=self._clock())
            overdue = self._clock() - _AWAY_REPORTED
            for pair in (*self._queue.overdue(overdue), *self._retries.overdue(overdue)):
                if pair not in (self._noted or ()) and pair not in self._news:
                    self._news[pair] = cause

    def _record(self) -> None:
        """Store counters and causes. Raises redis.RedisError; they are stored next time."""
        with self._lock:
            counts, news = Counter(self._counts), dict(self._news)
        if news:
            self._writes.record_unwritten(news)
        self._writes.record_turn(counts)
        with self._lock:
            self._counts -= counts
            for pair, cause in news.items():
                if self._news.get(pair) == cause:
                    del self._news[pair]
            noted = self._noted if self._noted is not None else set()
            before = set(noted)
            noted.update(pair for pair, cause in news.items() if cause is not None)
            noted.difference_update(pair for pair, cause in news.items() if cause is None)
            self._noted = noted
        if changed := {scorer for _, scorer in before ^ noted}:
            self._on_status(changed)

    def _wait_for_turn(self, read_at: float) -> bool:
        """Wait until the rate allows a write; returns whether data read at `read_at` (monotonic) is stale by then."""
        with self._waiting:
            while not self._stopping.is_set() and (seconds := self._turns.take()) > 0:
                self._stopping.wait(min(seconds, LONGEST_WAIT))
        return time.monotonic() - read_at > _FRESH

    def _yield(self, spent: float) -> None:
        """Yield to waiting results after a batch that used this much CPU (seconds): a score written later is newer, and
        is written once."""
        cpu, until = time.process_time() + _CPU_SHARE_OF_INGEST * spent, time.monotonic() + _MAX_YIELD
        while time.process_time() < cpu and time.monotonic() < until and self._is_behind():
            if self._stopping.wait(0.1):
                return

    def _audit(self) -> None:
        """Adapt the validities to the fleet's size."""
        with self._lock:
            numbers = Counter(self._scorer_of_label.get(label, label) for label in self._labels.values())
        scorers = self._registry.scorers()
        self._namespaces = {name: record.namespace for name, record in scorers.items()}
        factor = validity_factor(
            [(number, scorers[name].validity) for name, number in numbers.items() if name in scorers], self._rate
        )
        self._writes.set_validity_factor(factor)
        if factor > 1 and self._factor == 1:
            log.warning("scores are valid for longer, renewals would take too many writes", factor=round(factor, 3))
        self._factor = factor
