"""A beat that stands by, and what is shown of the schedule."""

from __future__ import annotations

import contextlib

import redis

from dsf import keys
from dsf.beat_schedule import BeatLock, BeatScheduler
from dsf.celery import make_app
from tests.conftest import SettingsFactory
from tests.integration.schedule.support import Bench, entry, register


def test_it_leaves_the_lock_to_the_one_that_has_it(redis_client: redis.Redis) -> None:
    active, standby = BeatLock(redis_client, 60), BeatLock(redis_client, 60)
    assert (active.ensure(), standby.ensure()) == (True, False)
    standby.release()
    assert not standby.ensure()
    active.release()
    assert not redis_client.exists(keys.BEAT_LOCK)
    assert standby.ensure()


def test_what_is_paused_is_not_shown_as_scheduled(
    redis_client: redis.Redis, redis_url: str, settings_factory: SettingsFactory
) -> None:
    bench = Bench(redis_client)
    register(redis_client, ["c1"], ["runs", "rests"])
    bench.store.upsert([entry("c1", "runs"), entry("c1", "rests")], bench.now)
    bench.store.set_override("c1/rests", paused=True)
    settings = settings_factory(role="beat", redis_url=redis_url)
    with contextlib.closing(make_app(settings)) as app, contextlib.closing(BeatScheduler(app, config=settings)) as beat:
        assert list(beat.schedule) == ["c1/runs"]
