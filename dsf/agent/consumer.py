"""The agent's consumer: what waits for its turn under a rate limit outlives the connection, and the wish to end."""

from __future__ import annotations

from typing import Any

from dsf.agent.ending import is_ending
from dsf.workerprobes import PatientConsumer

# Its methods are not in the published types of Celery.
_Base: Any = PatientConsumer


class AgentConsumer(_Base):  # type: ignore[misc]
    """Loses no task that waits for its turn, where Celery's counts on Redis to send it again."""

    def on_close(self) -> None:
        """The connection is lost, or the worker ends: what waits goes on waiting."""
        waiting = [(bucket, list(bucket.contents)) for bucket in self.task_buckets.values() if bucket]
        super().on_close()
        for bucket, tasks in waiting:
            bucket.contents.extend(tasks)
            self._schedule_bucket_request(bucket)

    def stop(self) -> None:
        """The worker ends, maybe while it waits for Redis; then nobody has called `on_close`."""
        super().stop()
        for bucket in self.task_buckets.values():
            if bucket:
                self._schedule_bucket_request(bucket)

    def _schedule_bucket_request(self, bucket: Any) -> None:
        if not is_ending():
            super()._schedule_bucket_request(bucket)
            return
        # The few that have begun are finished at once: no limit is worth losing them, and nobody waits for a turn.
        while bucket.contents:
            task, _ = bucket.pop()
            self._limit_move_to_pool(task)
