"""Changes of Celery's schedule by its callers: another interval becomes an override, all else is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import celery.schedules
import pytest
import redis
from celery.beat import ScheduleEntry

from dsf.beat_schedule import BeatScheduler
from dsf.errors import ScheduleError
from dsf.redisacl.rules import hub_rules
from dsf.store.schedule import ScheduleStore
from dsf.worker.application import make_app
from tests.integration.beat.support import entry, register
from tests.support.fixtures import SettingsFactory
from tests.support.redisserver import RedisServer


@pytest.fixture
def scheduler(redis_url: str, redis_client: redis.Redis, settings_factory: SettingsFactory) -> BeatScheduler:
    register(redis_client, ["c1", "c2"])
    ScheduleStore(redis_client).upsert([entry("c1"), entry("c2")])
    config = settings_factory(role="cli", redis_url=redis_url)
    return BeatScheduler(make_app(config, is_imported=True), config=config, lazy=True)


def _assign_entry(scheduler: BeatScheduler) -> None:
    scheduler.schedule["c1/s"] = ScheduleEntry(name="c1/s", task="dsf.cycle", args=("s",), schedule=90)


def _assign_changed(scheduler: BeatScheduler) -> None:
    changed = scheduler.schedule["c1/s"]
    changed.schedule = celery.schedules.schedule(90)
    scheduler.schedule["c1/s"] = changed


def _assign_whole(scheduler: BeatScheduler) -> None:
    scheduler.schedule = {"c1/s": {"schedule": 90}}


@pytest.mark.parametrize(
    "change",
    [
        _assign_entry,
        _assign_changed,
        _assign_whole,
        lambda scheduler: scheduler.add(name="c1/s", task="dsf.cycle", args=("s",), schedule=90),
        lambda scheduler: scheduler.update_from_dict({"c1/s": {"task": "dsf.cycle", "args": ("s",), "schedule": 90}}),
        lambda scheduler: scheduler.schedule.update({"c1/s": {"schedule": 90}}),
    ],
)
def test_interval_of_an_entry_becomes_an_override(
    scheduler: BeatScheduler, redis_client: redis.Redis, change: Callable[[BeatScheduler], object]
) -> None:
    change(scheduler)
    overrides = ScheduleStore(redis_client).read_overrides()
    assert {target: override.interval for target, override in overrides.items()} == {"c1/s": 90}
    assert overrides["c1/s"].by.startswith("celery@")
    assert scheduler.schedule["c1/s"].schedule.run_every.total_seconds() == 90
    assert redis_client.xlen("dsf:changes") == 1


def test_equal_interval_leaves_no_override(scheduler: BeatScheduler, redis_client: redis.Redis) -> None:
    scheduler.schedule["c1/s"] = scheduler.schedule["c1/s"]
    assert ScheduleStore(redis_client).read_overrides() == {}


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("c1/other", {"schedule": 90}, "no entry 'c1/other'.*`dsf schedule list`"),
        ("daily", {"task": "mine", "schedule": 90}, "no entry 'daily'"),
        ("c1/s", {"task": "mine", "schedule": 90}, "`dsf schedule set s --cluster c1 --interval TIME`"),
        ("c1/s", {"args": ("other",), "schedule": 90}, "another interval only"),
        ("c1/s", {"options": {"queue": "spoke.c2"}, "schedule": 90}, "another interval only"),
        ("c1/s", {"schedule": celery.schedules.crontab(hour=4)}, "whole seconds.*`dsf schedule set s --cluster c1"),
        ("c1/s", {"schedule": 0.5}, "whole seconds"),
        ("c1/s", {}, "whole seconds"),
    ],
)
def test_other_change_is_refused_with_the_command(
    scheduler: BeatScheduler, redis_client: redis.Redis, name: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        scheduler.schedule[name] = changed
    assert ScheduleStore(redis_client).read_overrides() == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda scheduler: scheduler.schedule.pop("c1/s"),
        lambda scheduler: scheduler.schedule.clear(),
        lambda scheduler: scheduler.schedule.popitem(),
        lambda scheduler: scheduler.schedule.__delitem__("c1/s"),
        lambda scheduler: scheduler.merge_inplace({}),
    ],
)
def test_removal_is_refused_with_the_command(
    scheduler: BeatScheduler, change: Callable[[BeatScheduler], object]
) -> None:
    with pytest.raises(ScheduleError, match="`dsf schedule pause`"):
        change(scheduler)


def test_beat_refuses_entries_of_the_configuration(redis_url: str, settings_factory: SettingsFactory) -> None:
    config = settings_factory(role="beat", redis_url=redis_url)
    app = make_app(config, is_imported=True)
    with pytest.raises(ScheduleError, match="argument `schedule` has daily"):
        BeatScheduler(app, config=config, lazy=True, schedule={"daily": {"task": "mine", "schedule": 90}})
    app.conf.beat_schedule = {"daily": {"task": "mine", "schedule": 90}}
    with pytest.raises(ScheduleError, match=r"beat_schedule has daily, which would never run.*`dsf schedule set"):
        BeatScheduler(app, config=config)


def test_user_without_the_right_gets_the_command(settings_factory: SettingsFactory) -> None:
    with RedisServer(aof=False) as server, server.client() as admin:
        for user in ("beat", "operator"):
            admin.execute_command("ACL", "SETUSER", f"dsf-{user}", "reset", "on", ">secret", *hub_rules(user))
        register(admin, ["c1"])
        ScheduleStore(admin).upsert([entry("c1")])

        def of(user: str) -> BeatScheduler:
            url = f"redis://dsf-{user}:secret@127.0.0.1:{server.port}/0"
            config = settings_factory(role="cli", redis_url=url)
            return BeatScheduler(make_app(config, is_imported=True), config=config, lazy=True)

        with pytest.raises(ScheduleError, match="dsf-operator's, or `dsf schedule set s --cluster c1 --interval TIME`"):
            of("beat").schedule["c1/s"] = {"schedule": 90}
        of("operator").schedule["c1/s"] = {"schedule": 90}
        assert ScheduleStore(admin).read_overrides()["c1/s"].interval == 90
