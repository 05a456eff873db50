"""How a stage is called as a task: what Celery's own tracer does, without what stages do not have.

They have no result to be stored, no callbacks, no chain, and no hooks of a class or a loader; to look for all that
takes as long as the rest. Signals, and what becomes of an error, are Celery's. A stage that ended well is not logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery import signals, states
from celery.app.task import Context
from celery.app.trace import TraceInfo, trace_ok_t, traceback_clear
from celery.exceptions import Retry


def tracer(task: Any) -> Callable[..., Any]:
    """In the place of `task.__trace__`."""
    push, pop, run = task.request_stack.push, task.request_stack.pop, task.run

    def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any]) -> Any:
        """What was returned or what is known of the error, what kind of error, seconds, what was returned as text."""
        started = time.monotonic()
        about = {"sender": task, "task_id": uuid, "task": task, "args": args, "kwargs": kwargs}
        context = Context(request, called_directly=False)
        push(context)
        state: str = states.FAILURE
        said = None
        try:
            signals.task_prerun.send(**about)
            said = run(*args, **kwargs)
            state, seconds = states.SUCCESS, time.monotonic() - started
            signals.task_success.send(sender=task, result=said, runtime=seconds)
            return trace_ok_t(said, None, seconds, repr(said))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the task's)
            state = states.RETRY if isinstance(error, Retry) else states.FAILURE
            info = TraceInfo(state, error)
            known = info.handle_error_state(task, context, call_errbacks=False)
            traceback_clear(error)
            return trace_ok_t(known, info, None, None)
        finally:
            signals.task_postrun.send(**about, retval=said, state=state)
            pop()

    return trace
