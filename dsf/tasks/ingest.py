"""The task that ingests results. The hub registers only this one."""

from __future__ import annotations

import redis
from celery import shared_task

from dsf.messages import INGEST_TASK
from dsf.results.intake import Batch


@shared_task(name=INGEST_TASK, ignore_result=True, throws=(redis.RedisError, TypeError))
def ingest(batch: Batch) -> str:
    """Take in results from the clusters' mailboxes; returns how many there were of each outcome.

    Raises redis.RedisError if Redis refuses them for now, and TypeError for the call of a message: a result counts only
    if it was in its cluster's mailbox.
    """
    if not isinstance(batch, Batch):
        raise TypeError("results are read from the clusters' mailboxes; no message can bring one")
    return batch.take_in()
