"""Forged messages that somebody with the credential of a cluster may push."""

from __future__ import annotations

import base64
import json
import time
import uuid
from typing import Any

import redis

from dsf import keys, messages
from dsf.agent.outbox import Mail, Mailbox
from dsf.messages import Result, make_run_id
from tests.integration.security.fleet import SCORER, Fleet
from tests.support.wait import wait_for


def result(cluster: str = "c1", run: str | None = None, **values: Any) -> Result:
    return Result(
        **{
            "cluster": cluster,
            "scorer": SCORER,
            "run": run or make_run_id(),
            "at": time.time(),
            "outcome": "ok",
            "results": [({"node": "evil"}, 99.0)],
            **values,
        }
    )


def message(frame: str, embed: object = None, task: str = messages.INGEST_TASK) -> str:
    """Return a Celery message, which does not belong into a mailbox."""
    task_id = str(uuid.uuid4())
    body = base64.b64encode(json.dumps([[frame], {}, embed or {}]).encode()).decode()
    headers = {"lang": "py", "task": task, "id": task_id, "root_id": task_id}
    properties = {
        "correlation_id": task_id,
        "delivery_info": {"exchange": "", "routing_key": keys.RESULTS_QUEUE},
        "body_encoding": "base64",
        "delivery_tag": task_id,
    }
    document = {"body": body, "content-type": "application/json", "content-encoding": "utf-8"}
    return json.dumps(document | {"headers": headers, "properties": properties})


def push_tick(fleet: Fleet, task: str, arguments: list[object], embed: object = None) -> None:
    """Push a task into the queue of c1, with a user that has rights on every queue, as c1's own user may not."""
    task_id = str(uuid.uuid4())
    document = {
        "body": json.dumps([arguments, {}, embed or {}]),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": task, "id": task_id, "root_id": task_id},
        "properties": {
            "correlation_id": task_id,
            "delivery_info": {"exchange": "", "routing_key": "spoke.c1"},
            "delivery_tag": task_id,
        },
    }
    fleet.admin.lpush(keys.spoke_queue("c1"), json.dumps(document))


def send(client: redis.Redis, *items: bytes | str) -> None:
    """Send as c1 whatever this is, as an agent sends its results."""
    box = Mailbox(client, "c1", dict)
    for number, item in enumerate(items):
        text = item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass")
        mail = Mail(f"s{number}", "", has_scores=True)
        wait_for(lambda mail=mail, text=text: box.put(mail, text), 30, "room in the mailbox")  # type: ignore[misc]
