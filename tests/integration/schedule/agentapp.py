"""A Celery worker with an agent's configuration and one task that only says what it was called with."""

from __future__ import annotations

import json
from typing import Any

import redis
from celery import Celery, bootsteps, signals

from dsf.agent.handover import HandOver
from dsf.celery import configuration
from dsf.settings import settings
from dsf.ticks import iso
from tests.integration.schedule.support import REVOKED, SEEN

app = Celery("agent-under-test")
app.conf.update(configuration(settings()))


class _Consumer(bootsteps.StartStopStep):  # type: ignore[misc]
    """Joins the agent's channel with this worker, as the agent's own step does."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        handover = HandOver()
        handover.attach(consumer)
        consumer.task_consumer.channel.on_call = handover.receive


app.steps["consumer"].add(_Consumer)
client = redis.Redis.from_url(settings().resolved_redis_url())


def _say(task: Any, scorer: str, run_id: str) -> None:
    request = task.request
    seen = {
        "task": task.name,
        "args": [scorer, run_id],
        "shown": request.argsrepr,
        "expires": request.expires and iso(request.expires.timestamp()),
        "queue": request.delivery_info["routing_key"],
        "root": request.root_id,
    }
    client.rpush(SEEN, json.dumps(seen))


@app.task(name="dsf.fetch", bind=True)
def fetch(self: Any, scorer: str, run_id: str) -> None:
    """The first stage."""
    _say(self, scorer, run_id)


@signals.task_revoked.connect
def _revoked(request: Any, expired: bool, **_: Any) -> None:
    client.rpush(REVOKED, json.dumps([request.task, expired, request.argsrepr]))
