"""The score writer makes the AddOnPlacementScores in the backend match the scores in Redis, at a limited rate.

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
from dsf.api.meta import format_rfc3339
from dsf.api.naming import make_label_value
from dsf.backends.protocol import Kind, ScoreBackend
from dsf.backends.scorestate import ScoreState
from dsf.errors import BackendError, ForeignObjectError
from dsf.process import hubclock
from dsf.process.threads import SupervisedThread, run_in_background
from dsf.reasons import WriteReason
from dsf.scores.desired import UNKNOWN, DesiredScore, Unknown, compute_desired_score, compute_validity_factor
from dsf.scores.failures import Failures, Pair
from dsf.scores.queue import PairQueue
from dsf.scores.rate import WriteRate
from dsf.settings import Settings
from dsf.store.client import parse_stored, run_until_stopped
from dsf.store.entries import CLOCK_SKEW
from dsf.store.pairs import PairScore, Unwritten
from dsf.store.registry import Registry
from dsf.store.writes import PairData, ScoreWriterStore

log = dsf.log.get(__name__)

#: Maximum wait between passes in seconds; a changed score ends the wait.
MAX_WAIT_SECONDS: Final = 0.5
#: Maximum pairs of a pass, and the maximum age of their data in seconds.
_MAX_BATCH_PAIRS: Final = 32
_MAX_DATA_AGE_SECONDS: Final = 1.0
#: Pause in seconds after a pass with more than one pair, so that a stream of changes is batched.
_BATCHING_PAUSE_SECONDS: Final = 0.3
#: Maximum threads that write the pairs of a pass, and the seconds after which another thread starts while pairs remain.
#: A write mostly waits for the API server. If it does not, alternating threads cost a fifth more CPU than one thread.
_MAX_WRITE_THREADS: Final = 4
_THREAD_START_SECONDS: Final = 0.1
#: While results wait in this process, their ingestion gets this many CPU seconds per CPU second of writing, for at most
#: _MAX_YIELD_SECONDS seconds.
_CPU_SHARE_OF_INGEST: Final = 7.0
_MAX_YIELD_SECONDS: Final = 2.0
#: Seconds between attempts while the backend does not respond, and after which the outage is reported for every pair.
_OUTAGE_RETRY_SECONDS: Final = 1.0
_OUTAGE_REPORT_SECONDS: Final = 5.0
#: Maximum seconds for which the Retry-After header of a busy API server is obeyed.
_MAX_RETRY_AFTER_SECONDS: Final = 30.0
#: Share of its validity after which an object is renewed.
# Half would be too early: a score is up to one interval old when it is written, so renewal at half of the remaining
# validity would happen more than twice per validity.
RENEW_AFTER: Final = 0.6
#: Attempts after which a temporary failure is reported although the object is still valid.
_ATTEMPTS_REPORTED: Final = 3
#: Changes by another program that are reverted immediately, and the maximum delay in seconds before further reverts.
_IMMEDIATE_REPAIRS: Final = 3
_MAX_REPAIR_DELAY_SECONDS: Final = 60.0
#: Minimum seconds between two searches for scores written by the original project's agent, and the minimum pause as a
#: multiple of the duration of a search. Until the end of the wait the writer writes nothing.
_ADOPT_INTERVAL_SECONDS: Final = 10.0
_ADOPT_PAUSE_FACTOR: Final = 10.0
_ADOPT_WAIT_SECONDS: Final = 1.0
#: Seconds between two computations of the factor that extends validities.
_AUDIT_INTERVAL_SECONDS: Final = 30.0
#: Seconds without a completed request while some are due, after which the writer counts as stuck.
STUCK_SECONDS: Final = 180.0


class DesiredScores(Protocol):
    """The scores in the hub's desired state. `dsf.hub.plannedscores` implements it."""

    def needs_score(self, cluster: str, label: str) -> bool:
        """Return True if the plan has a score on this cluster by the scorer with this label value."""

    @property
    def version(self) -> object:
        """An object that is replaced by another one at each change of the desired state."""

    def plan_adoption(self, cluster: str, name: str, created: float) -> tuple[dict[str, Any], int] | None:
        """Return how to adopt the object of this name, if the original project's agent wrote it: the planned object
        without its status, and its validity in seconds.

        `created` is the object's creation time in unix seconds. Returns None if the object is not adopted.
        """

    def find_scorer(self, cluster: str, name: str) -> str | None:
        """Return the scorer whose score has this object name on a cluster; None if no scorer has it."""


class _LastWrite(NamedTuple):
    """The last write of an object: the state that the backend stored, the time, and the digest of the written items."""

    state: ScoreState
    at: float
    #: Differs from the digest of the state if the API server stores other names, as for names with invalid Unicode.
    digest: str


class ScoreWriter:
    """A service of the elected hub controller. `start` it once, `stop` it once."""

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        backend: ScoreBackend,
        get_desired_scores: Callable[[], DesiredScores | None],
        *,
        on_status: Callable[[set[str]], None] = lambda _: None,
        is_behind: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = hubclock.now,
    ) -> None:
        """`get_desired_scores` returns None while the desired state is unknown.

        `on_status` gets the scorers whose status changed. `is_behind` returns True if results wait in this process.
        `clock` returns unix seconds on the hub's clock.
        """
        self._rate = settings.write_rate
        self._write_rate = WriteRate(self._rate)
        self._backend = backend
        self._get_desired_scores = get_desired_scores
        self._on_status = on_status
        self._is_behind = is_behind
        self._clock = clock
        self._store = ScoreWriterStore(client)
        self._registry = Registry(client)
        self._throttle = dsf.log.Throttle(10.0)
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self.run, "score-writer")
        # Locked by the thread that waits until the rate allows its write.
        self._rate_lock = threading.Lock()
        # Guards all attributes below.
        self._lock = threading.RLock()
        # Scorer -> its namespace.
        self._namespaces: dict[str, str] = {}
        self._queue, self._retries = (
            PairQueue(lambda scorer: self._namespaces.get(scorer, ""), settings.namespace) for _ in range(2)
        )
        self._failures = Failures()
        #: Changes of each pair since its last check.
        self._changes: Counter[Pair] = Counter()
        # Index of the objects in the backend: the scorer's label by (cluster, name), and names by (cluster, label).
        self._labels: dict[tuple[str, str], str] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        # Scorers by label value; the label of a long name is a hash.
        self._scorer_of_label: dict[str, str] = {}
        # Number of recently reverted changes by other programs, and time of the last revert, by (cluster, name).
        self._repairs: dict[tuple[str, str], tuple[int, float]] = {}
        # (cluster, name) -> last write of the object.
        self._last_writes: dict[tuple[str, str], _LastWrite] = {}
        self._counts: Counter[str] = Counter()
        # Pairs recorded in Redis as not written; None until these records are read.
        self._recorded_pairs: set[Pair] | None = None
        self._pending_records: dict[Pair, Unwritten | None] = {}
        self._check_all = True
        self._factor = 1.0
        self._now = 0.0
        # Error and start time of an outage of the backend, and the time of the next attempt (by time.monotonic()).
        self._outage: tuple[str, float] | None = None
        self._attempt_at = 0.0
        self._audit_at = 0.0
        # The desired state for which upstream's scores were adopted, and the time (monotonic) of the next search.
        self._adopted_version: object = None
        self._adopt_at = 0.0
        self._adoption: threading.Thread | None = None
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

    def find_problem(self) -> str:
        """Return why the writer is stuck; empty while it works or is idle."""
        if self._thread.is_alive() and time.monotonic() - self._progress_at > STUCK_SECONDS:
            return "the score writer is stuck"
        return ""

    def run(self) -> None:
        """Write until stopped."""
        run_until_stopped(self._run_pass, self._stopping, task="write scores", retry_seconds=MAX_WAIT_SECONDS)

    def _run_pass(self) -> float:
        seconds = self.step()
        if seconds > 0:
            self._stopping.wait(self._pause)
            if not self._stopping.is_set():
                self._store.wait_for_change(min(seconds, MAX_WAIT_SECONDS))
        return 0.0

    # --- scheduling ----------------------------------------------------------------------------------------------

    def check(self, pairs: Iterable[Pair]) -> None:
        """Schedule an immediate check of these (cluster, scorer): their scorer, cluster or entry changed."""
        with self._lock:
            for pair in pairs:
                self._queue.add(pair, 0.0)

    def check_everything(self) -> None:
        """Schedule a check of every pair, because changes may have been missed."""
        with self._lock:
            self._check_all = True

    def handle_object_change(self, cluster: str, name: str) -> None:
        """Handle the creation, change or deletion of an object in the backend."""
        state = self._backend.find_score(cluster, name)
        desired_scores = self._get_desired_scores()
        with self._lock:
            labels = {self._labels.get((cluster, name))} - {None}
            self._index(cluster, name, state)
            if state is not None:
                labels.add(state.scorer)
                last_write = self._last_writes.get((cluster, name))
                if last_write is not None and last_write.state == state:
                    # The change is a write by this writer.
                    return
            pairs = {(cluster, self._scorer_of_label.get(str(label), str(label))) for label in labels}
            # Failed pairs are retried soon; an immediate check would retry them at each change by another program.
            pairs = {pair for pair in pairs if pair not in self._failures}
            if desired_scores is not None and (scorer := desired_scores.find_scorer(cluster, name)) is not None:
                pairs.add((cluster, scorer))
            for pair in pairs:
                self._queue.add(pair, 0.0)

    def _index(self, cluster: str, name: str, state: ScoreState | None) -> None:
        """Record the scorer label of an object. The caller holds the lock."""
        previous_label = self._labels.pop((cluster, name), None)
        if previous_label is not None:
            names = self._names[cluster, previous_label]
            names.discard(name)
            if not names:
                del self._names[cluster, previous_label]
        if state is None:
            self._last_writes.pop((cluster, name), None)
            return
        self._labels[cluster, name] = state.scorer
        self._names.setdefault((cluster, state.scorer), set()).add(name)

    def _plan_all(self) -> None:
        """Schedule a check of every pair that has an entry, an object, or a record of an unwritten score."""
        scheduled_pairs = self._store.list_scheduled_pairs()
        unwritten_pairs = self._store.list_unwritten_pairs()
        stored_scores = [
            (key, self._backend.find_score(key.namespace, key.name)) for key in self._backend.list_keys(Kind.SCORE)
        ]
        with self._lock:
            if self._recorded_pairs is None:
                self._recorded_pairs = set(unwritten_pairs)
            for _, scorer in scheduled_pairs:
                self._scorer_of_label[make_label_value(scorer)] = scorer
            for key, state in stored_scores:
                self._index(key.namespace, key.name, state)
            labelled_pairs = [(cluster, self._scorer_of_label.get(label, label)) for cluster, label in self._names]
            for pair in (*scheduled_pairs, *unwritten_pairs, *labelled_pairs):
                self._queue.add(pair, 0.0)
            self._check_all = False

    # --- a pass --------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Check a batch of due pairs; return the seconds until the next pair is due, 0 if more pairs are due now.

        Raises redis.RedisError.
        """
        desired_scores = self._get_desired_scores()
        if desired_scores is None:
            return MAX_WAIT_SECONDS
        now = self._clock()
        # After the clock went back, all due times are in the future.
        if self._check_all or now < self._now - CLOCK_SKEW:
            self._plan_all()
        self._now = now
        self._adopt(desired_scores)
        changes = self._store.pop_changes()
        with self._lock:
            for pair, number in changes.items():
                self._changes[pair] += number
                if pair not in self._failures:
                    self._queue.add(pair, 0.0)
        if time.monotonic() >= self._audit_at:
            self._audit_at = time.monotonic() + _AUDIT_INTERVAL_SECONDS
            self._update_validity_factor()
        batch = self._take_batch(now)
        self._pause = _BATCHING_PAUSE_SECONDS if len(batch) > 1 else 0.0
        if batch:
            self._factor = self._store.read_validity_factor()
            self._yield_cpu(self._check_batch(desired_scores, batch))
        self._report_outage()
        self._store_records()
        with self._lock:
            self._progress_at = time.monotonic()
            if self._outage is not None:
                return max(self._attempt_at - time.monotonic(), 0.01)
            times = [due for due in (self._queue.get_next_due(), self._retries.get_next_due()) if due is not None]
        return max(min(times) - self._clock(), 0.0) if times else MAX_WAIT_SECONDS

    def _adopt(self, desired_scores: DesiredScores) -> None:
        """Adopt scores written by the original project's agent if the plan has a scorer with that score name.

        If that scorer wrote no score, OCM would use the upstream score for ever.
        """
        is_busy = self._adoption is not None and self._adoption.is_alive()
        if is_busy or self._outage is not None or desired_scores.version is self._adopted_version:
            return
        if time.monotonic() >= self._adopt_at:
            # In a separate thread: other programs may have many large scores, and reading them takes long.
            self._adoption = run_in_background(lambda: self._search_upstream_scores(desired_scores), "adopt-scores")
            self._adoption.join(_ADOPT_WAIT_SECONDS)

    def _search_upstream_scores(self, desired_scores: DesiredScores) -> None:
        started_at = time.monotonic()

        def claim(cluster: str, name: str, created: float) -> tuple[dict[str, Any], datetime] | None:
            adoption = None if self._stopping.is_set() else desired_scores.plan_adoption(cluster, name, created)
            if adoption is None:
                return None
            body, seconds = adoption
            return body, datetime.fromtimestamp(self._clock() + seconds * self._factor, UTC)

        number = 0
        try:
            number = self._backend.adopt_scores(claim)
            self._adopted_version = desired_scores.version
        except BackendError as error:
            log.warning("upstream's scores cannot be listed, will be tried again", error=str(error))
        except Exception:
            # A failed adoption must not stop the writes of scores.
            log.exception("upstream's scores cannot be taken over, will be tried again")
        finished_at = time.monotonic()
        self._adopt_at = finished_at + max(_ADOPT_INTERVAL_SECONDS, _ADOPT_PAUSE_FACTOR * (finished_at - started_at))
        if number:
            log.info("scores of upstream's agent taken over: they expire like all others", count=number)
            # Check the adopted scores, so that they are deleted when they expire.
            self.check_everything()

    def _take_batch(self, now: float) -> list[Pair]:
        """Take the pairs of this pass. At most a quarter are retries, so that failed pairs do not delay the others."""
        # Take only as many pairs as can be written within a few seconds.
        limit = max(1, min(_MAX_BATCH_PAIRS, int(self._rate * 8)))
        with self._lock:
            if self._outage is not None:
                if time.monotonic() < self._attempt_at:
                    return []
                limit = 1
            retries = self._retries.take(now, max(1, limit // 4))
            due_pairs = self._queue.take(now, max(limit - len(retries), 0 if self._outage is not None else 1))
            # During an outage of the backend the batch has one pair: a retry if one is due, else a queued pair.
            return [*due_pairs, *retries]

    def _check_batch(self, desired_scores: DesiredScores, batch: list[Pair]) -> float:
        """Check pairs concurrently; return the CPU seconds used.

        Raises the first Redis error; the next pass then checks the remaining pairs.
        """
        read_at = time.monotonic()
        entries = deque(zip(batch, self._read_pair_data(batch), strict=True))
        errors: list[Exception] = []
        cpu_seconds: list[float] = []

        def check_entries() -> None:
            cpu_start = time.thread_time()
            while not errors:
                try:
                    pair, pair_data = entries.popleft()
                except IndexError:
                    break
                try:
                    self._check(desired_scores, pair, pair_data, read_at)
                except Exception as error:  # noqa: BLE001 (raised below, in the writer's own thread)
                    errors.append(error)
                    entries.append((pair, pair_data))
            cpu_seconds.append(time.thread_time() - cpu_start)

        helpers: list[threading.Thread] = []
        while entries and not errors and len(helpers) < _MAX_WRITE_THREADS:
            if not helpers or not self._rate_lock.locked():
                # The threads are daemons, because a hanging write must not delay shutdown.
                helpers.append(run_in_background(check_entries, "score-write"))
            helpers[-1].join(_THREAD_START_SECONDS)
        for helper in helpers:
            helper.join()
        self.check(pair for pair, _ in entries)
        if errors:
            raise errors[0]
        return sum(cpu_seconds)

    def _read_pair_data(self, pairs: list[Pair]) -> list[PairData]:
        try:
            return self._store.read_pair_data(pairs)
        except redis.RedisError:
            self.check(pairs)
            raise

    def _check(self, desired_scores: DesiredScores, pair: Pair, pair_data: PairData, read_at: float) -> None:
        """Process one pair; postpone it if the backend fails."""
        with self._lock:
            is_unreachable = self._outage is not None and time.monotonic() < self._attempt_at
        if self._stopping.is_set() or is_unreachable:
            self.check([pair])
            return
        try:
            self._reconcile_pair(desired_scores, pair, pair_data, read_at)
        except redis.RedisError:
            raise
        except BackendError as error:
            self._handle_failure(pair, error)
        except Exception as error:
            # A failing object must not block the pairs behind it.
            if pair not in self._failures:
                log.exception("writing a score failed", cluster=pair[0], scorer=pair[1])
            self._handle_failure(pair, error)

    def _reconcile_pair(self, desired_scores: DesiredScores, pair: Pair, pair_data: PairData, read_at: float) -> None:
        """Apply the difference between the desired object of a pair and its object in the backend."""
        cluster, scorer = pair
        with self._lock:
            changes = self._changes[pair]
            if pair_data.scorer is not None:
                self._scorer_of_label[make_label_value(scorer)] = scorer
        if self._differs(desired_scores, pair, pair_data) and self._wait_for_rate(read_at):
            # Read the data again, because it has become stale during the wait.
            [pair_data] = self._store.read_pair_data([pair])
        target = self._compute_target(desired_scores, pair, pair_data)
        counts: Counter[str] = Counter()
        superfluous_names = self._find_superfluous(desired_scores, pair, target)
        # Delete one object per pass: other programs can label thousands of objects as objects of this scorer.
        for name in superfluous_names[:1]:
            self._backend.delete_score(cluster, name)
            with self._lock:
                self._index(cluster, name, None)
            counts["deleted"] += 1
        next_check: float | None = None
        if isinstance(target, DesiredScore):
            state = self._backend.find_score(cluster, target.name)
            if self._needs_write(target, state):
                self._apply(target, state)
                counts["written"] += 1
                state = self._backend.find_score(cluster, target.name)
            else:
                counts["unchanged"] += 1
            next_check = self._compute_next_check(cluster, target.name, state)
        elif target is UNKNOWN:
            expiry_times = [state.valid_until for _, state in self._list_objects(pair) if not state.is_being_deleted]
            # An expired object may stay, because its name belongs to another scorer: check it again in a second.
            next_check = max(min(expiry_times), self._clock() + 1.0) if expiry_times else None
        if len(superfluous_names) > 1:
            next_check = 0.0
        # All changes since the last check, except the newest one, cost no write.
        counts["coalesced"] = max(changes - 1, 0)
        self._handle_success(pair, counts, next_check, changes)
        self._record_upstream_scores(pair)

    def _apply(self, target: DesiredScore, state: ScoreState | None) -> None:
        """Write an object. Raises BackendError, also if another program keeps changing the object."""
        now = self._clock()
        cluster, name = target.cluster.name, target.name
        with self._lock:
            last_write = self._last_writes.get((cluster, name))
            count, repaired_at = self._repairs.get((cluster, name), (0, 0.0))
            if last_write is not None and state is not None and state != last_write.state:
                wait_seconds = (
                    min(_MAX_REPAIR_DELAY_SECONDS, 2.0 ** min(count, 10)) if count >= _IMMEDIATE_REPAIRS else 0.0
                )
                if repaired_at <= now < repaired_at + wait_seconds:
                    raise BackendError(
                        f"another program changes AddOnPlacementScore {name} in namespace {cluster} again and again; "
                        f"it is written once in {wait_seconds:.0f} s until that ends: find the program by kubectl "
                        "get -o yaml "
                        "--show-managed-fields"
                    )
                is_new = now > repaired_at + 2 * _MAX_REPAIR_DELAY_SECONDS
                self._repairs[cluster, name] = (1 if is_new else count + 1), now
        created_at = (
            state.condition_changed_at if state is not None and state.condition_changed_at and state.digest else now
        )
        written_state = self._backend.apply_score(target.make_manifest(), target.make_status(created_at))
        with self._lock:
            self._index(cluster, name, written_state)
            self._last_writes[cluster, name] = _LastWrite(written_state, now, target.digest)

    def _compute_target(
        self, desired_scores: DesiredScores, pair: Pair, pair_data: PairData
    ) -> DesiredScore | Unknown | None:
        """Compute the currently desired object of a pair."""
        cluster, scorer = pair
        if not pair_data.scheduled and not desired_scores.needs_score(cluster, make_label_value(scorer)):
            return None
        if pair_data.scorer is None or pair_data.cluster is None:
            return UNKNOWN
        score = parse_stored(PairScore, f"{cluster}/{scorer}", pair_data.score)
        if score is not None and not score.items and pair_data.item_count:
            # The earlier results were for metrics only, so the response was not empty; the next score has items.
            score = None
        current_valid_until = max((state.valid_until for _, state in self._list_objects(pair)), default=0.0)
        target = compute_desired_score(
            score,
            pair_data.consecutive_failures,
            pair_data.scorer,
            pair_data.cluster,
            now=self._clock(),
            factor=self._factor,
            current_valid_until=current_valid_until,
        )
        # Write no object on a temporarily absent cluster, whose namespace may not exist.
        return (
            UNKNOWN
            if isinstance(target, DesiredScore) and not desired_scores.needs_score(cluster, make_label_value(scorer))
            else target
        )

    def _list_objects(self, pair: Pair) -> list[tuple[str, ScoreState]]:
        """Return (name, state) of each object that the backend has for a pair."""
        cluster, scorer = pair
        with self._lock:
            names = [*self._names.get((cluster, make_label_value(scorer)), ())]
        states = ((name, self._backend.find_score(cluster, name)) for name in names)
        return [(name, state) for name, state in states if state is not None]

    def _find_superfluous(
        self, desired_scores: DesiredScores, pair: Pair, target: DesiredScore | Unknown | None
    ) -> list[str]:
        """Return the names of the objects of a pair that must not exist, without those that are being deleted."""
        cluster, scorer = pair
        objects = [(name, state) for name, state in self._list_objects(pair) if not state.is_being_deleted]
        if isinstance(target, DesiredScore):
            names = [name for name, _ in objects if name != target.name]
        elif target is UNKNOWN:
            names = [name for name, state in objects if state.valid_until <= self._clock()]
        else:
            names = [name for name, _ in objects]
        superfluous_names: list[str] = []
        for name in names:
            # If another scorer owns the name, its next write corrects the label.
            owner = desired_scores.find_scorer(cluster, name)
            if owner is None or owner == scorer:
                superfluous_names.append(name)
            else:
                self.check([(cluster, owner)])
        return superfluous_names

    def _differs(self, desired_scores: DesiredScores, pair: Pair, pair_data: PairData) -> bool:
        """Return True if an object of the pair must be written or deleted."""
        target = self._compute_target(desired_scores, pair, pair_data)
        if self._find_superfluous(desired_scores, pair, target):
            return True
        if not isinstance(target, DesiredScore):
            return False
        return self._needs_write(target, self._backend.find_score(pair[0], target.name))

    def _needs_write(self, target: DesiredScore, state: ScoreState | None) -> bool:
        """Return True if the backend's object, whose state is `state`, has to be replaced by `target`."""
        if state is None:
            return True
        with self._lock:
            last_write = self._last_writes.get((target.cluster.name, target.name))
        digest = last_write.digest if last_write is not None and last_write.state == state else state.digest
        if state.was_written_by_upstream:
            return True
        if (digest, state.scorer) != (target.digest, make_label_value(target.scorer.name)):
            return True
        owner_uid = target.cluster.uid
        if owner_uid and state.owner != owner_uid:
            return True
        # The API server stores whole seconds.
        expiry, now = int(target.valid_until), self._clock()
        if expiry < int(state.valid_until):
            # The validity was shortened.
            return True
        return expiry > int(state.valid_until) and now >= self._plan_renewal(target.cluster.name, target.name, state)

    def _plan_renewal(self, cluster: str, name: str, state: ScoreState) -> float:
        """Return the time (unix seconds) at which to renew an object.

        The time of the last write is taken from this writer's own record, or from the object if there is none.
        """
        with self._lock:
            last_write = self._last_writes.get((cluster, name))
        written_at = last_write.at if last_write is not None else min(state.written_at, self._clock())
        return written_at + (state.valid_until - written_at) * RENEW_AFTER

    def _compute_next_check(self, cluster: str, name: str, state: ScoreState | None) -> float:
        """Return the time of an object's next check (unix seconds): its renewal, or if that has passed, half of its
        remaining validity from now."""
        now = self._clock()
        if state is None:
            # The backend has not reported the write yet.
            return now + 1.0
        renew_at = self._plan_renewal(cluster, name, state)
        if now < renew_at:
            return renew_at
        remaining_seconds = state.valid_until - now
        # The object could not be renewed because there is no newer score. Check again in a second at the earliest.
        return min(state.valid_until, now + max(1.0, remaining_seconds / 2)) if remaining_seconds > 0 else now + 1.0

    # --- outcomes ------------------------------------------------------------------------------------------------

    def _handle_success(self, pair: Pair, counts: Counter[str], next_check: float | None, changes: int) -> None:
        """Forget the pair's failure, schedule its next check, and retry pairs that failed for the same reason.

        `changes` is the number of score changes that this check has processed.
        """
        with self._lock:
            self._changes[pair] -= changes
            if self._changes[pair] <= 0:
                del self._changes[pair]
            self._counts.update({name: number for name, number in counts.items() if number})
            has_failed = pair in self._failures
            for related_pair in self._failures.remove(pair):
                self._retries.remove(related_pair)
                self._queue.add(related_pair, 0.0)
            self._retries.remove(pair)
            if next_check is not None:
                self._queue.add(pair, next_check)
            if counts["written"] or counts["deleted"]:
                self._outage = None
            if pair in (self._recorded_pairs or ()) or pair in self._pending_records:
                self._pending_records[pair] = None
        if counts["deleted"] and not counts["written"]:
            self._on_status({pair[1]})
        if has_failed and (not_logged := self._throttle.take("again")) is not None:
            log.info("score written again", cluster=pair[0], scorer=pair[1], not_logged=not_logged)

    def _record_upstream_scores(self, pair: Pair) -> None:
        """Record for readers that the score of a pair is still the one of the original project's agent."""
        for name, state in self._list_objects(pair):
            if state.was_written_by_upstream:
                end_of_validity = format_rfc3339(datetime.fromtimestamp(state.valid_until, UTC))
                message = (
                    f"the original project's agent wrote AddOnPlacementScore {name}, which is used until the scorer's "
                    f"first score, at the latest until {end_of_validity}; if no score comes, see dsf status {pair[1]}"
                )
                reason = WriteReason.WRITTEN_BY_UPSTREAM
                with self._lock:
                    self._pending_records[pair] = Unwritten(
                        reason=reason, message=message, since=state.condition_changed_at
                    )

    def _handle_failure(self, pair: Pair, error: Exception) -> None:
        """Schedule a retry, detect an outage of the backend, and record the cause if it concerns users."""
        now = self._clock()
        is_foreign = isinstance(error, ForeignObjectError)
        is_refusal = isinstance(error, BackendError) and error.is_refusal
        reason = WriteReason.SCORE_NAME_FOREIGN if is_foreign else WriteReason.SCORES_NOT_WRITTEN
        message = str(error) if isinstance(error, BackendError) else repr(error)
        is_expired = all(state.valid_until <= now for _, state in self._list_objects(pair))
        with self._lock:
            self._counts["failed"] += 1
            failure, backoff = self._failures.add(pair, reason, message, now)
            if isinstance(error, BackendError) and (error.is_unreachable or error.is_busy):
                # The next attempt of any pair would get the same error.
                self._outage = message, self._outage[1] if self._outage is not None else time.monotonic()
                self._attempt_at = time.monotonic() + max(
                    _OUTAGE_RETRY_SECONDS, min(error.retry_after or 0.0, _MAX_RETRY_AFTER_SECONDS)
                )
            self._retries.add(pair, now + backoff)
            if is_foreign:
                # The object may be upstream's, written since the last search.
                self._adopted_version = None
            if is_refusal or failure.attempts >= (2 if is_expired else _ATTEMPTS_REPORTED):
                self._pending_records[pair] = Unwritten(reason=reason, message=message, since=failure.first_failed_at)
        # Log only the first failure of a pair, throttled, because thousands of pairs fail if the backend is down.
        if failure.attempts == 1 and (not_logged := self._throttle.take("failed")) is not None:
            log.warning("score not written", cluster=pair[0], scorer=pair[1], error=message, not_logged=not_logged)

    def _report_outage(self) -> None:
        """Record every overdue pair as not written if the backend has been unavailable for some seconds."""
        with self._lock:
            if self._outage is None or time.monotonic() - self._outage[1] < _OUTAGE_REPORT_SECONDS:
                return
            cause = Unwritten(reason=WriteReason.SCORES_NOT_WRITTEN, message=self._outage[0], since=self._clock())
            overdue_since = self._clock() - _OUTAGE_REPORT_SECONDS
            for pair in (*self._queue.list_overdue(overdue_since), *self._retries.list_overdue(overdue_since)):
                if pair not in (self._recorded_pairs or ()) and pair not in self._pending_records:
                    self._pending_records[pair] = cause

    def _store_records(self) -> None:
        """Store counters and causes. Raises redis.RedisError; the next pass then stores them."""
        with self._lock:
            counts, pending_records = Counter(self._counts), dict(self._pending_records)
        if pending_records:
            self._store.record_unwritten(pending_records)
        self._store.record_pass(counts)
        with self._lock:
            self._counts -= counts
            for pair, cause in pending_records.items():
                if self._pending_records.get(pair) == cause:
                    del self._pending_records[pair]
            recorded_pairs = self._recorded_pairs if self._recorded_pairs is not None else set()
            pairs_before = set(recorded_pairs)
            recorded_pairs.update(pair for pair, cause in pending_records.items() if cause is not None)
            recorded_pairs.difference_update(pair for pair, cause in pending_records.items() if cause is None)
            self._recorded_pairs = recorded_pairs
        if changed_scorers := {scorer for _, scorer in pairs_before ^ recorded_pairs}:
            self._on_status(changed_scorers)

    def _wait_for_rate(self, read_at: float) -> bool:
        """Wait until the rate allows a write; return True if data read at `read_at` (monotonic) is stale by then."""
        with self._rate_lock:
            while not self._stopping.is_set() and (seconds := self._write_rate.take()) > 0:
                self._stopping.wait(min(seconds, MAX_WAIT_SECONDS))
        return time.monotonic() - read_at > _MAX_DATA_AGE_SECONDS

    def _yield_cpu(self, cpu_seconds: float) -> None:
        """Leave the CPU to the ingestion of waiting results, after a batch that used this many CPU seconds.

        Scores that are written later are newer, so the pause reduces the number of writes.
        """
        cpu_end, deadline = (
            time.process_time() + _CPU_SHARE_OF_INGEST * cpu_seconds,
            time.monotonic() + _MAX_YIELD_SECONDS,
        )
        while time.process_time() < cpu_end and time.monotonic() < deadline and self._is_behind():
            if self._stopping.wait(0.1):
                return

    def _update_validity_factor(self) -> None:
        """Adapt the factor that extends validities to the number of objects."""
        with self._lock:
            # Count each pair once, because other programs may have labelled many objects as objects of the pair.
            object_counts = Counter(self._scorer_of_label.get(label, label) for _, label in self._names)
        scorers = self._registry.read_scorers()
        self._namespaces = {name: record.namespace for name, record in scorers.items()}
        renewed_scorers = [(count, scorers[name]) for name, count in object_counts.items() if name in scorers]
        # An object is renewed when there is a newer score, and thus at most once per interval.
        factor = compute_validity_factor(
            [(count, max(scorer.validity, 2 * scorer.interval)) for count, scorer in renewed_scorers], self._rate
        )
        self._store.set_validity_factor(factor)
        if factor > 1 and self._factor == 1:
            log.warning("scores are valid for longer, renewals would take too many writes", factor=round(factor, 3))
        self._factor = factor
