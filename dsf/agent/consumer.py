"""The agent's consumer: tasks held back by a rate limit survive a lost connection and a shutdown."""

from __future__ import annotations

from typing import Any

from dsf.agent.ending import is_ending
from dsf.workerprobes import PatientConsumer

# Its methods are missing in Celery's type stubs.
_Base: Any = PatientConsumer


class AgentConsumer(_Base):  # type: ignore[misc]
    """Keeps tasks that wait under a rate limit; Celery's own relies on redelivery by Redis."""

    def on_close(self) -> None:
        """Connection lost or worker shutdown: waiting tasks keep waiting."""
        waiting = [(bucket, list(bucket.contents)) for bucket in self.task_buckets.values() if bucket]
        super().on_close()
        for bucket, tasks in waiting:
            bucket.contents.extend(tasks)
            self._schedule_bucket_request(bucket)

    def stop(self) -> None:
        """Worker shutdown, possibly while it waits for Redis; then `on_close` was not called."""
        super().stop()
        for bucket in self.task_buckets.values():
            if bucket:
                self._schedule_bucket_request(bucket)

    def _schedule_bucket_request(self, bucket: Any) -> None:
        if not is_ending():
            super()._schedule_bucket_request(bucket)
            return
        # The few that have begun are finished at once, without the rate limit, so that none is lost.
        while bucket.contents:
            task, _ = bucket.pop()
            self._limit_move_to_pool(task)
