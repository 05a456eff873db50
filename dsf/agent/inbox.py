"""What was pushed into this cluster's queue, taken apart before Celery sees it.

Who holds an agent's credential, or a right to start tasks, may push anything there, and one malformed message would end
the worker. So only these parts are taken, each of them checked: which task, which scorer, which run, when it expires,
how often it was tried, and its ids. Everything else is dropped, and the call is made anew.
"""

from __future__ import annotations

from typing import Any

from dsf import wire
from dsf.agent.call import StageCall
from dsf.keys import is_name
from dsf.messages import FETCH_TASK, PUBLISH_TASK, SCORE_TASK, is_run_id

#: An agent of an earlier version put the later stages of a cycle into the queue, too.
_TASKS = (FETCH_TASK, SCORE_TASK, PUBLISH_TASK)
#: Bytes of a message; a tick has 0.7 kB, and what Celery makes of one by hand 1.5 kB.
_LONGEST = 16_384


def accept(item: bytes, queue: str) -> StageCall:
    """The call for Celery that `item`, an element of `queue`, calls for.

    Raises MessageRejectedError when it is no call of a stage with the name of a scorer and a run id. Only a fetch may
    come without a run id, as people send it.
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
    """Scorer and run id, by place or by name: `["sample", null]` is `{"scorer": "sample"}`."""
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
