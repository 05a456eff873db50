"""Messages in the results queue, as agents send them and as anybody could make them."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from dsf import keys, messages
from dsf.celery import make_app
from tests.integration.results.bed import Bed


def push(bed: Bed, url: str, envelopes: list[object]) -> None:
    """Send results as an agent does."""
    app = make_app(bed.settings.model_copy(update={"role": "agent", "cluster": "c1"}))
    app.conf.broker_url = url
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for envelope in envelopes:
            app.send_task(messages.INGEST_TASK, args=[envelope], queue=keys.RESULTS_QUEUE, producer=producer)
    app.close()


def message(arguments: object, embed: object = None, **headers: object) -> dict[str, Any]:
    """A handmade Celery message."""
    body = json.dumps([arguments, {}, embed or {}]).encode()
    task_id = str(uuid.uuid4())
    return {
        "body": base64.b64encode(body).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": messages.INGEST_TASK, "id": task_id, "root_id": task_id, **headers},
        "properties": {
            "correlation_id": task_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": keys.RESULTS_QUEUE},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
        },
    }
