"""A stage call for Celery's worker: the parts of a message that it reads, already decoded."""

from __future__ import annotations

import os
import socket
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from dsf.api.pauses import LATEST

_ORIGIN: Final = f"gen{os.getpid()}@{socket.gethostname()}"
#: No callbacks and no chain: the task itself decides what follows it.
_NOTHING_FOLLOWS: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class StageCall:
    """Replaces kombu's Message, in this process only."""

    __slots__ = ("body", "headers", "properties")

    content_type: Final = None
    content_encoding: Final = None

    def __init__(
        self,
        task: str,
        names: tuple[str, ...],
        queue: str,
        *,
        task_id: str | None = None,
        root_id: str | None = None,
        parent_id: str | None = None,
        expires: float | None = None,
        retries: int = 0,
    ) -> None:
        """`names` are scorer and run id, `expires` is in unix seconds."""
        task_id = task_id or str(uuid.uuid4())
        self.body: Final[tuple[Any, ...]] = (names, {}, _NOTHING_FOLLOWS)
        self.properties: Final[dict[str, Any]] = {
            "correlation_id": task_id,
            "priority": 0,
            "delivery_info": {"exchange": "", "routing_key": queue},
        }
        self.headers: Final[dict[str, Any]] = {
            "lang": "py",
            "task": task,
            "id": task_id,
            "expires": None if expires is None else datetime.fromtimestamp(min(expires, LATEST), UTC),
            "retries": retries,
            "root_id": root_id or task_id,
            "parent_id": parent_id,
            # Shown by Flower and in logs.
            "argsrepr": repr(names),
            "kwargsrepr": "{}",
            "origin": _ORIGIN,
            "ignore_result": True,
            # No custom headers; else Celery would look for them at each task.
            "headers": {},
        }

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.headers["task"])

    @property
    def payload(self) -> Any:
        """The decoded body: positional and named arguments, and callbacks."""
        return self.body

    @property
    def delivery_info(self) -> dict[str, str]:
        """The queue."""
        info: dict[str, str] = self.properties["delivery_info"]
        return info
