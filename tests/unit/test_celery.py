"""The queues that a process declares."""

from __future__ import annotations

import pytest
from celery import Celery

from dsf.settings import Role
from dsf.worker.application import make_app
from tests.support.fixtures import SettingsFactory


def _app(settings_factory: SettingsFactory, role: Role) -> Celery:
    return make_app(settings_factory(role=role, cluster="c1"))


@pytest.mark.parametrize("role", ["cli", "flower"])
def test_people_send_ticks_to_every_cluster_and_nowhere_else(settings_factory: SettingsFactory, role: Role) -> None:
    queues = _app(settings_factory, role).amqp.queues
    assert queues["spoke.c10"].name == "spoke.c10"
    for name in ("celery", "hub.other", "spoke.", "spoke.c1*", "Spoke.c1"):
        with pytest.raises(KeyError):
            queues[name]


@pytest.mark.parametrize("role", ["results", "agent", "beat", "hub"])
def test_queue_name_in_a_message_makes_no_queue(settings_factory: SettingsFactory, role: Role) -> None:
    queues = _app(settings_factory, role).amqp.queues
    for name in ("spoke.c10", "celery"):
        with pytest.raises(KeyError):
            queues[name]
