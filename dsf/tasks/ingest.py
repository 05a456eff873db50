"""The task that ingests results. The results workers register no other task."""

from __future__ import annotations

import redis
from celery import shared_task

from dsf.messages import INGEST_TASK
from dsf.results.intake import Batch


@shared_task(name=INGEST_TASK, ignore_result=True, throws=(redis.RedisError, TypeError))
def ingest(batch: Batch) -> str:
    """Ingest results from the clusters' mailboxes, and return the number of results per outcome.

    Raises redis.RedisError if Redis temporarily refuses a result. Raises TypeError if a message calls the task, because
    only results from a cluster's mailbox count.
    """
    if not isinstance(batch, Batch):
        raise TypeError("dsf.ingest reads results from the clusters' mailboxes; a message cannot contain any")
    return batch.ingest_mailboxes()
