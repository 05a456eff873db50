"""The task that takes in results. It is the only one that the hub registers."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import redis
from celery import shared_task
from celery.exceptions import Reject

import dsf.log
from dsf.messages import INGEST_TASK
from dsf.results import lifetime
from dsf.results.ingest import Ingest
from dsf.settings import settings
from dsf.store.client import connect

_FIRST_WAIT = 0.2
_LONGEST_WAIT = 5.0
# Answers of Redis that begin with one of these say that the script cannot work with this message; any other error
# says something of Redis, and the message has to wait.
_HOPELESS = ("WRONGTYPE",)

log = dsf.log.get(__name__)


@functools.cache
def _ingest() -> Ingest:
    return Ingest(connect(settings(), name="dsf-results-ingest"), settings(), on_change=lifetime.wake.set)


@shared_task(name=INGEST_TASK, acks_late=True, ignore_result=True)
def ingest(envelope: Any = None) -> str:
    """Take in one signed result and say what became of it: an outcome, `late`, or why it was refused.

    Never fails because of what the message says. While Redis is away it waits, so that the result is not lost; if the
    worker is told to stop meanwhile, the message goes back.
    """
    wait = _FIRST_WAIT
    while True:
        try:
            return _ingest().handle(envelope)
        except redis.RedisError as error:
            if _is_hopeless(error):
                log.exception("result dropped")
                return _drop()
            if wait == _FIRST_WAIT:
                log.warning("result waits for Redis", error=str(error))
        except Exception:
            log.exception("result dropped")
            return _drop()
        if lifetime.stopping.wait(wait):
            raise Reject("the worker stops", requeue=True)
        wait = min(2 * wait, _LONGEST_WAIT)


def _drop() -> str:
    """Give a result up: trying again cannot help, and would keep this thread from the results behind it."""
    with contextlib.suppress(redis.RedisError):
        _ingest().refuse("malformed")
    return "malformed"


def _is_hopeless(error: redis.RedisError) -> bool:
    if type(error) is not redis.ResponseError:
        return False
    code = str(error).partition(" ")[0]
    # Redis writes the code of a condition of its own in capitals (MISCONF, BUSY, OOM, ...); the client cuts a mere ERR.
    return code in _HOPELESS or not code.isupper()
