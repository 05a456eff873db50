"""The real beat: takeover, outages, changes while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from dsf import keys
from dsf.beat_schedule import BeatScheduler
from dsf.messages import run_time
from dsf.store.schedule import ScheduleStore
from dsf.worker.application import make_app
from tests.integration.beat.processes import Process, beat, celerys_beat, patient_beat
from tests.integration.beat.support import books, entry, pushed, register
from tests.support.fixtures import SettingsFactory
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

#: Starting Python, Celery and the application takes a second or two on a busy machine.
START_TIME = 30


@pytest.fixture
def aof_server() -> Iterator[RedisServer]:
    with RedisServer(aof=True) as server:
        yield server


def holder(client: redis.Redis) -> str | None:
    return client.get(keys.BEAT_LOCK)  # type: ignore[return-value]


def wait_for_ticks(client: redis.Redis, cluster: str, more_than: int, timeout: float = START_TIME) -> int:
    return wait_for(
        lambda: (n := len(pushed(client, cluster))) > more_than and n,
        timeout,
        f"more than {more_than} ticks of {cluster}",
    )


def test_scheduler_lists_its_entries(
    redis_url: str, redis_client: redis.Redis, settings_factory: SettingsFactory
) -> None:
    register(redis_client, ["c1", "c2", "c3"])
    store = ScheduleStore(redis_client)
    store.upsert([entry("c1"), entry("c2"), entry("c3")])
    store.set_override("c2/s", interval=7)
    store.set_override("c3/s", paused=True)
    config = settings_factory(role="beat", redis_url=redis_url)
    scheduled_entries = BeatScheduler(make_app(config), config=config, lazy=True).schedule
    assert {
        name: (scheduled_entry.task, scheduled_entry.args, scheduled_entry.options["queue"])
        for name, scheduled_entry in scheduled_entries.items()
    } == {
        "c1/s": ("dsf.cycle", ("s",), "spoke.c1"),
        "c2/s": ("dsf.cycle", ("s",), "spoke.c2"),
    }
    assert [scheduled_entry.schedule.run_every.total_seconds() for scheduled_entry in scheduled_entries.values()] == [
        30,
        7,
    ]
    due = store.read_due_times(scheduled_entries)
    for name, scheduled_entry in scheduled_entries.items():
        in_seconds = scheduled_entry.schedule.remaining_estimate(scheduled_entry.last_run_at).total_seconds()
        assert abs(time.time() + in_seconds - due[name]) < 1, name


def test_schedule_changes_take_effect_at_once(redis_url: str, redis_client: redis.Redis) -> None:
    register(redis_client, ["c1", "c2"])
    store = ScheduleStore(redis_client)
    store.upsert([entry("c1", interval=3600)])
    # Without being woken, beat would sleep for ten minutes: whatever a busy machine takes is less.
    with patient_beat(redis_url, redis_socket_timeout=1200, beat_lock_timeout=1200):
        ran = wait_for_ticks(redis_client, "c1", 0)
        wait_for(lambda: not redis_client.exists(keys.BEAT_WAKE), 5, "beat to have seen the first wake")

        store.upsert([entry("c2", interval=3600)])
        wait_for_ticks(redis_client, "c2", 0, timeout=3)

        store.set_override("*/s", interval=1)
        # The next slot of the new interval is up to a second away.
        wait_for_ticks(redis_client, "c1", ran, timeout=2)
        wait_for_ticks(redis_client, "c1", ran + 2, timeout=4)

        store.set_override("*/s", paused=True)
        paused = wait_for(lambda: books(redis_client, "c1").read_skip_counts().get("paused"), 3)
        ran = len(pushed(redis_client, "c1"))
        wait_for(lambda: books(redis_client, "c1").read_skip_counts()["paused"] > paused + 1, 5)
        assert len(pushed(redis_client, "c1")) == ran

        store.set_override("*/s", interval=3600)
        store.set_override("*/s", paused=False)
        wait_for_ticks(redis_client, "c1", ran, timeout=3)

        store.remove(["c1/s", "c2/s"])
        ran = len(pushed(redis_client, "c1"))
        assert not books(redis_client, "c1").hash_fields


def test_killed_beat_is_replaced(redis_url: str, redis_client: redis.Redis) -> None:
    ScheduleStore(redis_client).upsert([entry("c1", interval=1)])
    # A beat that gets no CPU for a while keeps its lock.
    timeout = 20.0
    with beat(redis_url, beat_lock_timeout=timeout) as first:
        token = wait_for(lambda: holder(redis_client), START_TIME)
        wait_for_ticks(redis_client, "c1", 0)
        with beat(redis_url, beat_lock_timeout=timeout) as second:
            wait_for(lambda: "stands by" in second.output, START_TIME, "the second beat to stand by")
            assert holder(redis_client) == token
            first.kill()
            # The lock of the killed beat is not extended, and expires by itself. The test shortens its remaining time.
            assert holder(redis_client) == token
            assert 0 < redis_client.pttl(keys.BEAT_LOCK) <= timeout * 1000
            redis_client.pexpire(keys.BEAT_LOCK, 2000)
            wait_for(lambda: holder(redis_client) not in (None, token), 5, "a takeover")
            ran = len(pushed(redis_client, "c1"))
            wait_for_ticks(redis_client, "c1", ran, timeout=3)
    runs = [run_time(run) for _, run in pushed(redis_client, "c1")]
    assert (
        len(set(runs)) == len(runs) == books(redis_client, "c1").scheduled - books(redis_client, "c1").count("skipped")
    )


def test_stopped_beat_releases_the_lock_at_once(redis_url: str, redis_client: redis.Redis) -> None:
    # A lock that is not given back would be there for ten minutes.
    with beat(redis_url, beat_lock_timeout=600) as first:
        token = wait_for(lambda: holder(redis_client), START_TIME)
        with beat(redis_url, beat_lock_timeout=600) as second:
            wait_for(lambda: "stands by" in second.output, START_TIME, "the second beat to stand by")
            assert first.terminate() == 0
            wait_for(lambda: holder(redis_client) not in (None, token), 2, "a takeover")
            assert second.terminate() == 0
            assert holder(redis_client) is None


def outages(process: Process) -> int:
    return process.output.count("redis cannot be used")


def test_beat_survives_a_restart_of_redis(aof_server: RedisServer) -> None:
    client = aof_server.client()
    register(client, ["c1"])
    store = ScheduleStore(client)
    store.upsert([entry("c1", interval=60), entry("c1", "t", interval=1)])
    store.set_override("c1/s", interval=2, note="kept")
    before = (store.read_entries(), store.read_overrides())
    with beat(aof_server.url, beat_lock_timeout=3) as process:
        wait_for_ticks(client, "c1", 2)
        # A Redis that got no CPU for a second was one, too.
        before_it, back = outages(process), process.output.count("redis is back")
        aof_server.kill()
        wait_for(lambda: outages(process) > before_it, 10, "the outage to be logged")
        cpu_before = psutil.Process(process.child.pid).cpu_times()
        time.sleep(3)  # The outage itself: long enough for several attempts.
        still = psutil.Process(process.child.pid).cpu_times()
        assert still.user + still.system - cpu_before.user - cpu_before.system < 0.5
        assert outages(process) == before_it + 1
        aof_server.restart()
        ran = len(pushed(client, "c1"))
        wait_for_ticks(client, "c1", ran + 2, timeout=10)
        wait_for(lambda: process.output.count("redis is back") > back, 5)
        assert (store.read_entries(), store.read_overrides()) == before
        assert process.terminate() == 0
    for scorer in ("s", "t"):
        runs = [run for name, run in pushed(client, "c1") if name == scorer]
        state = books(client, "c1", scorer)
        assert state.scheduled == len(runs) + state.count("skipped")
        assert state.open == len(runs)


def test_beat_may_start_before_redis() -> None:
    with RedisServer() as server:
        server.kill()
        with celerys_beat(server.url) as process:
            wait_for(lambda: outages(process) == 1, START_TIME, "the outage to be logged")
            server.start()
            client = server.client()
            ScheduleStore(client).upsert([entry("c1")])
            wait_for_ticks(client, "c1", 0, timeout=10)


def test_beat_touches_its_probe_file_and_idles(redis_url: str, redis_client: redis.Redis, tmp_path: Path) -> None:
    register(redis_client, ["c1"])
    ScheduleStore(redis_client).upsert([entry("c1", interval=3600)])
    alive = tmp_path / "alive"
    with beat(redis_url, probe_dir=tmp_path) as process:
        wait_for_ticks(redis_client, "c1", 0)
        touched = alive.stat().st_mtime
        cpu_before, began = psutil.Process(process.child.pid).cpu_times(), time.monotonic()
        wait_for(lambda: alive.stat().st_mtime > touched + 2, 5, "the liveness file to be touched")
        still, duration = psutil.Process(process.child.pid).cpu_times(), time.monotonic() - began
        # While idle, beat polls twice a second.
        assert still.user + still.system - cpu_before.user - cpu_before.system < max(0.1, duration / 25)
        assert process.terminate() == 0


def test_beat_ends_even_if_the_signal_was_swallowed(
    redis_url: str, redis_client: redis.Redis, settings_factory: SettingsFactory
) -> None:
    """An exception raised by a signal handler during an object's deletion is swallowed, and the tick goes on."""
    settings = settings_factory(role="beat", redis_url=redis_url)
    app = make_app(settings)
    scheduler = BeatScheduler(app, config=settings)
    lock_holders: list[str | None] = []

    def interrupted() -> None:
        lock_holders.append(holder(redis_client))
        # All that the handler does but raising.
        scheduler.close()

    scheduler._dispatcher.run = interrupted  # type: ignore[method-assign]
    assert scheduler.tick() == 0.0
    assert lock_holders != [None]
    for _ in range(2):
        assert holder(redis_client) is None
        with pytest.raises(SystemExit):
            scheduler.tick()
    scheduler.close()
    app.close()
