"""A Celery worker with an agent's configuration and one task that only says what it was called with."""

from __future__ import annotations

import json
from typing import Any

import redis
from celery import Celery

from dsf.celery import configuration
from dsf.settings import settings
from tests.integration.schedule.support import SEEN

app = Celery("agent-under-test")
app.conf.update(configuration(settings()))
client = redis.Redis.from_url(settings().resolved_redis_url())


@app.task(name="dsf.cycle", bind=True)
def cycle(self: Any, scorer: str, run_id: str, deadline: float) -> None:
    """What a tick calls."""
    request = self.request
    seen = {
        "task": self.name,
        "args": [scorer, run_id, deadline],
        "shown": request.argsrepr,
        "root": request.root_id,
    }
    client.rpush(SEEN, json.dumps(seen))
