"""The task that takes in results. It is the only one that the hub registers."""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Sequence

import redis
from celery import shared_task
from celery.exceptions import Reject

import dsf.log
from dsf.messages import INGEST_TASK
from dsf.results import lifetime
from dsf.results.ingest import Ingest
from dsf.settings import settings
from dsf.store.client import connect
from dsf.workerprobes import keep_alive

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
def ingest(*envelopes: str) -> str:
    """Take in signed results, each given as JSON text, and say what became of them.

    Returns an outcome, `late`, or why it was refused; of several, how many there were of each (`ok 30, stale 2`).
    Never fails because of what a result says. While Redis is away it waits, so that nothing is lost; if the worker is
    told to stop meanwhile, the message goes back.
    """
    waiting = [_read(text) for text in envelopes]
    answers: Counter[str] = Counter()
    wait = _FIRST_WAIT
    while True:
        try:
            left = _take_in(waiting, answers)
            waiting, problem = [envelope for envelope, _ in left], left[0][1] if left else ""
        except redis.RedisError as error:
            problem = str(error)
        if not waiting:
            break
        if wait == _FIRST_WAIT:
            log.warning("results wait for Redis", count=len(waiting), error=problem)
        # The main loop, which shows that this process lives, waits here as well.
        keep_alive()
        if lifetime.stopping.wait(wait):
            raise Reject("the worker stops", requeue=True)
        wait = min(2 * wait, _LONGEST_WAIT)
    if len(envelopes) == 1:
        return next(iter(answers))
    return ", ".join(f"{answer} {count}" for answer, count in sorted(answers.items()))


def _read(text: object) -> object:
    """The envelope in this text; None, which none is, when it is no JSON."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _take_in(envelopes: Sequence[object], answers: Counter[str]) -> list[tuple[object, str]]:
    """Take in what can be taken in now, and count the answers. Returns the others, each with why.

    Raises redis.RedisError when Redis is away; all may then be tried again.
    """
    try:
        found = _ingest().handle_all(envelopes)
    except Exception as error:
        if isinstance(error, redis.RedisError) and not _is_hopeless(error):
            raise
        if len(envelopes) == 1:
            log.exception("result dropped")
            answers[_drop()] += 1
            return []
        # One of them must not take the others with it. Nothing was written yet.
        return [left for envelope in envelopes for left in _take_in([envelope], answers)]
    left = []
    for envelope, answer in zip(envelopes, found, strict=True):
        if isinstance(answer, str):
            answers[answer] += 1
        elif _is_hopeless(answer):
            log.error("result dropped", error=str(answer))
            answers[_drop()] += 1
        else:
            left.append((envelope, str(answer)))
    return left


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
