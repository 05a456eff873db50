"""Celery's beat with its schedule in Redis: `celery -A dsf.celery beat`.

Celery's own loop calls `tick()` repeatedly; everything else (entries in memory, a schedule file, one message per call)
is replaced. Due times are in a sorted set, so that one tick dispatches a batch, any process may change the schedule,
and a second beat can take over at any time.

The scheduler's mapping is a view of Redis: an entry with another interval becomes the override of `dsf schedule set`,
and every other change is an error that names the command.
"""

from __future__ import annotations

import contextlib
import datetime
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import celery.schedules
import redis
from celery.beat import ScheduleEntry, Scheduler

import dsf.log
from dsf import keys
from dsf.beat.dispatch import Dispatcher
from dsf.errors import ScheduleError
from dsf.fleet.actions import Actions
from dsf.fleet.changes import Actor
from dsf.messages import CYCLE_TASK
from dsf.process import hubclock
from dsf.process.hubclock import HubClock
from dsf.settings import Settings, settings
from dsf.store.client import connect, run_atomically
from dsf.store.clockguard import ScheduleGuard
from dsf.store.clocks import ClockReports
from dsf.store.entries import apply_overrides
from dsf.store.schedule import ScheduleStore

log = dsf.log.get(__name__)

#: Longest sleep in seconds between two reads of the schedule; a change wakes beat immediately.
LONGEST_WAIT: Final = 0.5
#: Seconds between two attempts while Redis is unavailable.
_RETRY_SECONDS: Final = 0.5


class BeatLock:
    """Lock in Redis that elects the active beat. A beat that lost the lock becomes a standby and requests it again.

    Two active beats would still send every tick once (`lua/dispatch.lua`). The election avoids duplicate work, and that
    each of two beats grants the full rate limit.
    """

    def __init__(self, client: redis.Redis, timeout: float) -> None:
        """The lock expires `timeout` seconds after the death of its holder."""
        self._milliseconds = max(1, round(timeout * 1000))
        # Several renewals may fail before the lock is lost.
        self._interval = timeout / 5
        self._token = secrets.token_hex(16)
        self._client = client
        self._is_held = False
        self._logged_state: bool | None = None
        self._renew_at = 0.0

    @property
    def poll_seconds(self) -> float:
        """Seconds between a standby's requests."""
        return min(1.0, self._interval)

    def ensure(self) -> bool:
        """Acquire or extend the lock if needed, and return True if this beat is active.

        Raises redis.RedisError; the next call then tries again.
        """
        now = time.monotonic()
        if self._is_held and now < self._renew_at:
            return True
        holder, remaining_milliseconds = run_atomically(
            self._client,
            ("SET", keys.BEAT_LOCK, self._token, "NX", "GET", "PX", self._milliseconds),
            ("PTTL", keys.BEAT_LOCK),
        )
        is_holder = holder in (None, self._token)
        # If the clock of Redis was set back, the remaining time of the lock is far above its timeout. Shorten the time,
        # because the lock's holder may be dead. A beat that has acquired the lock in the meantime renews it.
        if holder == self._token or (not is_holder and remaining_milliseconds > self._milliseconds + 60_000):
            self._client.pexpire(keys.BEAT_LOCK, self._milliseconds)
        if self._is_held and holder != self._token:
            log.warning("beat lost its lock", hint="it or redis stood still for longer than the lock lives")
        if is_holder != self._logged_state:
            log.info("beat is active" if is_holder else "another beat is active, this one stands by")
        self._logged_state = is_holder
        self._is_held, self._renew_at = is_holder, now + self._interval
        return is_holder

    def release(self) -> None:
        """Release the lock if held, so that a standby need not wait. Raises redis.RedisError."""
        # Release even if `_is_held` is False: a signal may arrive between acquiring the lock and recording it.
        self._is_held = False
        # If the lock expires between the two commands and another beat acquires it, the deletion lets a third beat
        # become active, too, which is harmless.
        if self._client.get(keys.BEAT_LOCK) == self._token:
            self._client.delete(keys.BEAT_LOCK)


class ScheduleView(dict[str, ScheduleEntry]):
    """The entries in force, as a mapping that Celery's callers change: an assigned interval becomes an override."""

    def __init__(self, entries: Mapping[str, ScheduleEntry], config: Settings) -> None:
        """`entries` are those in Redis; `config` is this process's settings."""
        super().__init__(entries)
        self._settings = config

    def __setitem__(self, name: str, entry: Any) -> None:
        """Set the interval of an existing entry, as `dsf schedule set` does for one cluster.

        `entry` is a ScheduleEntry or the mapping of one. Raises ScheduleError for everything but another interval, and
        redis.RedisError.
        """
        try:
            self._set_interval(name, entry)
        except redis.exceptions.NoPermissionError as error:
            raise ScheduleError(
                f"this process's user of Redis may not change {name} ({error}); use dsf-operator's, or "
                f"{_format_command(name)}"
            ) from error
        super().__setitem__(
            name, entry if isinstance(entry, ScheduleEntry) else ScheduleEntry(**{"name": name, **entry})
        )

    def _set_interval(self, name: str, entry: Any) -> None:
        cluster, scorer = keys.split_pair(name)
        with contextlib.closing(connect(self._settings, name="dsf-schedule", retries=1)) as client:
            interval = ScheduleStore(client).read_interval(cluster, scorer)
            if interval is None:
                raise ScheduleError(
                    f"the schedule has no entry {name!r}, and none can be added: entries are <cluster>/<scorer>, and "
                    "the hub controller makes them of DynamicScorers; `dsf schedule list` shows them"
                )
            seconds = _read_interval(name, entry)
            if seconds != interval:
                author = Actor(name=f"celery@{socket.gethostname()}", claimed=True, way="cli")
                Actions(client, self._settings, author).set_interval(scorer, [cluster], seconds)

    def update(self, *args: Any, **entries: Any) -> None:
        """Assign each entry."""
        for name, entry in dict(*args, **entries).items():
            self[name] = entry

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return an entry. Raises ScheduleError for one that does not exist."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, entries: Any) -> Any:  # type: ignore[misc]
        """Assign each entry."""
        self.update(entries)
        return self

    def __delitem__(self, name: str) -> NoReturn:
        """Raise ScheduleError."""
        raise ScheduleError(
            f"{name} cannot be removed here: `dsf schedule pause` stops its ticks, and a deleted DynamicScorer has none"
        )

    def pop(self, name: str, *_: Any) -> NoReturn:
        """Raise ScheduleError."""
        del self[name]

    def popitem(self) -> NoReturn:
        """Raise ScheduleError."""
        del self["an entry"]

    def clear(self) -> NoReturn:
        """Raise ScheduleError."""
        del self["every entry"]


def _format_command(name: str) -> str:
    cluster, scorer = keys.split_pair(name)
    return f"`dsf schedule set {scorer} --cluster {cluster} --interval TIME`"


def _read_interval(name: str, entry: Any) -> int:
    """Return the interval of an entry in seconds. Raises ScheduleError if it asks for more than another interval."""
    fields = dict(entry) if isinstance(entry, Mapping) else vars(entry)
    scorer, queue = keys.split_pair(name)[1], keys.spoke_queue(keys.split_pair(name)[0])
    changes_interval_only = (
        fields.get("task") in (None, CYCLE_TASK)
        and tuple(fields.get("args") or (scorer,)) == (scorer,)
        and not fields.get("kwargs")
        and {"queue": queue, **(fields.get("options") or {})} == {"queue": queue}
    )
    if not changes_interval_only:
        raise ScheduleError(
            f"{name} calls {CYCLE_TASK}({scorer!r}) in the queue {queue}, which cannot be changed: the schedule takes "
            f"another interval only, as {_format_command(name)} does"
        )
    value: Any = fields.get("schedule")
    run_every = getattr(celery.schedules.maybe_schedule(value), "run_every", None)
    seconds = run_every.total_seconds() if isinstance(run_every, datetime.timedelta) else 0
    if seconds < 1 or seconds != int(seconds):
        raise ScheduleError(
            f"{name}: the schedule must be an interval of whole seconds, not {value!r}; "
            f"{_format_command(name)} sets one"
        )
    return int(seconds)


class BeatScheduler(Scheduler):
    """Dispatches due entries as long as it holds the lock; stands by otherwise.

    The scheduler never exits because of Redis: it waits while Redis is unavailable, and logs each outage once.
    """

    def __init__(self, *args: Any, config: Settings | None = None, **kwargs: Any) -> None:
        """Celery passes the arguments of its Scheduler. `config` is this process's settings by default."""
        self._settings = config or settings()
        app = args[0] if args else kwargs["app"]
        _refuse_entries("beat_schedule", app.conf.beat_schedule)
        _refuse_entries("the scheduler's argument `schedule`", kwargs.get("schedule"))
        self._lock: BeatLock | None = None
        self._clients: list[redis.Redis] = []
        self._is_ticking = False
        self._is_ending = False
        self._outage_began_at: float | None = None
        self._outage_error = ""
        #: When (monotonic) the last round began.
        self.ticked_at = time.monotonic()
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Prepare connections without using Redis yet, so beat may start before it."""
        config = self._settings
        # Few retries, because the loop itself retries, and must touch the liveness file in time.
        self._redis = self._connect(config, retries=1)
        # A separate connection, because the lock is released in a signal handler, which may interrupt any operation.
        # With a short timeout and without retries the release may fail, and the lock then expires by itself.
        timeout = min(config.redis_socket_timeout, 1.0)
        self._lock = BeatLock(
            self._connect(config.model_copy(update={"redis_socket_timeout": timeout}), retries=0),
            config.beat_lock_timeout,
        )
        self._guard = ScheduleGuard(self._redis)
        self._clock_reports = ClockReports(self._redis, config)
        self._clock = HubClock(self._redis, on_measured=self._check_clock)
        hubclock.use(self._clock)
        self._dispatcher = Dispatcher(
            self._redis, queue_limit=config.queue_limit, clock=self._clock.now, home=config.namespace
        )
        # The pop must end before the socket's timeout.
        self._longest_wait = min(LONGEST_WAIT, config.redis_socket_timeout / 2)

    def tick(self, *_: Any, **__: Any) -> float:
        """Run a round: dispatch a batch, then wait until something is due or the schedule changes.

        Returns 0, so that Celery calls it again immediately: it has already waited. Raises SystemExit after `close`.
        """
        if self._is_ending:
            # The signal handler's SystemExit was swallowed, as happens while an object is being deleted.
            raise SystemExit
        self._touch_liveness_file()
        self._is_ticking = True
        try:
            self._clock.keep_measured()
            if self._lock is None or not self._lock.ensure():
                # The standby does not read the wake list: its element is for the active beat.
                time.sleep(self._lock.poll_seconds if self._lock else _RETRY_SECONDS)
            else:
                next_due_at = self._dispatcher.run()
                if not self._is_ending:
                    self._wait(next_due_at)
        except redis.RedisError as error:
            self._begin_outage(error)
        else:
            self._end_outage()
        finally:
            self._is_ticking = False
        return 0.0

    def close(self) -> None:
        """Release the lock and close connections.

        Celery calls it in its signal handler, possibly during a tick, and again after the tick. During a tick, only the
        lock is released, because the tick still uses the connections.
        """
        self._is_ending = True
        if self._lock is not None:
            try:
                self._lock.release()
            except redis.RedisError as error:
                log.warning("the lock could not be given back, it expires by itself", error=str(error))
                self._lock = None
        if self._is_ticking:
            return
        self._lock = None
        while self._clients:
            self._clients.pop().close()
        super().close()

    def get_schedule(self) -> ScheduleView:
        """Return the current entries in Redis, by `<cluster>/<scorer>`: each calls `dsf.cycle` at an interval.

        Paused entries are left out. An interval that is assigned to an entry becomes an override. Raises
        redis.RedisError.
        """
        with contextlib.closing(connect(self._settings, name="dsf-beat", retries=1)) as client:
            store = ScheduleStore(client)
            now, entries, overrides = hubclock.read_hub_time(client), store.read_entries(), store.read_overrides()
            due_times = store.read_due_times(entry.pair for entry in entries)
        entry_by_name = {}
        for entry in entries:
            effective_schedule = apply_overrides(entry, overrides, now)
            if effective_schedule.paused or entry.pair not in due_times:
                continue
            entry_by_name[entry.pair] = ScheduleEntry(
                name=entry.pair,
                task=CYCLE_TASK,
                args=(entry.scorer,),
                options={"queue": keys.spoke_queue(entry.cluster)},
                schedule=celery.schedules.schedule(effective_schedule.interval, app=self.app),
                last_run_at=datetime.datetime.fromtimestamp(
                    due_times[entry.pair] - effective_schedule.interval, datetime.UTC
                ),
                app=self.app,
            )
        return ScheduleView(entry_by_name, self._settings)

    def set_schedule(self, schedule: Any) -> None:
        """Assign each entry of a mapping to the schedule in Redis; the other entries stay."""
        self.get_schedule().update(schedule)

    schedule = property(get_schedule, set_schedule)

    @property
    def info(self) -> str:
        """Line of Celery's banner."""
        return f"    . entries -> {keys.ENTRIES} in Redis"

    def _connect(self, config: Settings, retries: int) -> redis.Redis:
        client = connect(config, name="dsf-beat", retries=retries)
        self._clients.append(client)
        return client

    def _check_clock(self, clock: HubClock) -> None:
        self._guard.check(clock.now())
        self._clock_reports.report(clock)

    def _wait(self, wake_at: float | None) -> None:
        """Wait until this time (unix seconds), a change of the schedule, or the longest wait."""
        seconds = self._longest_wait if wake_at is None else min(wake_at - self._clock.now(), self._longest_wait)
        ends_at = time.monotonic() + seconds
        # An idle Redis checks the timeouts of blocked clients ten times a second (`hz 10`), so a blocking pop may end
        # 0.1 s late. Sleep for the last 0.1 s instead.
        pop_seconds = seconds - 0.1
        if pop_seconds > 0 and self._redis.blpop([keys.BEAT_WAKE], timeout=pop_seconds):
            return
        time.sleep(max(0.0, ends_at - time.monotonic()))

    def _begin_outage(self, error: redis.RedisError) -> None:
        if self._outage_began_at is None:
            self._outage_began_at, self._outage_error = time.monotonic(), ""
        if str(error) != self._outage_error:
            # Log a different error again: a repair may be in progress.
            self._outage_error = str(error)
            log.error("redis cannot be used, nothing is scheduled until it is back", error=str(error))
        time.sleep(_RETRY_SECONDS)

    def _end_outage(self) -> None:
        if self._outage_began_at is not None:
            log.info("redis is back", seconds=round(time.monotonic() - self._outage_began_at, 1))
            self._outage_began_at = None

    def _touch_liveness_file(self) -> None:
        self.ticked_at = time.monotonic()
        if self._settings.probe_dir is not None:
            # A full or read-only disk is not a reason to stop scheduling; the probe will report it.
            with contextlib.suppress(OSError):
                (self._settings.probe_dir / "alive").touch()


def _refuse_entries(source: str, entries: Any) -> None:
    if entries:
        raise ScheduleError(
            f"{source} has {', '.join(sorted(map(str, entries)))}, which would never run: the schedule has one entry "
            "for each DynamicScorer and cluster; remove it, and use `dsf schedule set SCORER --interval TIME`"
        )
