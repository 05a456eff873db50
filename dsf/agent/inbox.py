"""Validation of messages in this cluster's queue before Celery sees them.

Any holder of an agent's credential, or of a right to start tasks, may push anything there, and one malformed message
would end the worker. So only these parts are taken, each checked: task, scorer, run, expiry, number of retries, and
ids. Everything else is dropped, and the call is rebuilt.
"""

from __future__ import annotations

from typing import Any

from dsf import wire
from dsf.agent.call import StageCall
from dsf.keys import is_name
from dsf.messages import FETCH_TASK, PUBLISH_TASK, SCORE_TASK, is_run_id

#: Agents of earlier versions also queued the later stages of a cycle.
_TASKS = (FETCH_TASK, SCORE_TASK, PUBLISH_TASK)
#: Bytes of a message; a tick has 0.7 kB, a manual Celery call 1.5 kB.
_LONGEST = 16_384


def accept(item: bytes, queue: str) -> StageCall:
    """The Celery call for `item`, an element of `queue`.

    Raises MessageRejectedError if it is not a stage call with a scorer name and a run id. Only a (manual) fetch may
    omit the run id.
    """
    call = wire.Call.open(item, _LONGEST)
    if call.task not in _TASKS:
        raise wire.malformed(f"not a call of {', '.join(_TASKS)}")
    names = _names(*call.arguments())
    if len(names) == 1 and call.task != FETCH_TASK:
        raise wire.malformed("no run id")
    return StageCall(
        call.task,
        names,
        queue,
        task_id=call.id,
        root_id=call.root_id,
        parent_id=call.parent_id,
        expires=call.expires,
        retries=call.retries,
    )


def _names(args: list[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Scorer and run id, positional or named: `["sample", null]` is `{"scorer": "sample"}`."""
    given = dict(zip(("scorer", "run_id"), args, strict=False))
    if len(args) > len(given) or given.keys() & kwargs.keys():
        raise wire.malformed("too many arguments")
    given |= kwargs
    scorer, run_id = given.pop("scorer", None), given.pop("run_id", None)
    if given:
        raise wire.malformed("an argument that no stage has")
    if not (isinstance(scorer, str) and is_name(scorer)):
        raise wire.malformed("not the name of a scorer")
    if run_id is None:
        return (scorer,)
    if not is_run_id(run_id):
        raise wire.malformed("not a run id")
    return scorer, run_id
