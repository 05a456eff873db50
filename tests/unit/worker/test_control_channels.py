"""Remote control of several installations on one Redis server."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from dsf import keys
from dsf.worker import remotecontrol
from dsf.worker.remotecontrol import RemoteControl
from tests.support.fixtures import SettingsFactory


def test_channels_of_databases_differ() -> None:
    channels = [keys.ControlChannels.of(db) for db in range(3)]
    names = [name for channel in channels for name in (*channel, channel.reply("spoke@c1"))]
    assert len(set(names)) == len(names)
    # Patterns of one installation do not match channels of another.
    assert not any(name.startswith("dsf:control") for channel in channels[1:] for name in channel)


def test_commands_wait_for_a_redis_that_restarts(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("redis.retry.sleep", waits.append)
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 2)
    monkeypatch.setattr(remotecontrol, "settings", lambda: settings_factory(redis_url="redis://127.0.0.1:1/0"))
    with pytest.raises(redis.ConnectionError):
        RemoteControl(app=Celery()).broadcast("ping", reply=True)
    assert 2.0 <= sum(waits) <= 6.0


@pytest.mark.parametrize("command", ["rate_limit", "ping"])
def test_commands_reach_the_workers_of_their_own_database_alone(
    redis_client: redis.Redis,
    redis_url: str,
    settings_factory: SettingsFactory,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    staging = settings_factory(redis_url=redis_url.rpartition("/")[0] + "/1")
    monkeypatch.setattr(remotecontrol, "settings", lambda: staging)
    listener: Any = redis_client.pubsub()  # type: ignore[no-untyped-call]
    with listener:
        listener.subscribe(*keys.ControlChannels.of(0), *keys.ControlChannels.of(1))
        for _ in range(4):
            assert listener.get_message(timeout=10)["type"] == "subscribe"
        RemoteControl(app=Celery()).broadcast(command, {"task_name": "dsf.cycle", "rate_limit": "1/h"})
        message = listener.get_message(timeout=10)
        assert message["channel"] in keys.ControlChannels.of(1)
        assert listener.get_message(timeout=0.1) is None
