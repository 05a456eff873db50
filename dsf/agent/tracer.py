"""Task tracer for stages: Celery's own, minus the features that stages do not use.

They have no stored result, no callbacks, no chain, and no class or loader hooks; checking for all that takes as long as
the rest. Signals and error handling are Celery's. A successful stage is not logged.
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
    """Replacement for `task.__trace__`."""
    push, pop, run = task.request_stack.push, task.request_stack.pop, task.run

    def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any]) -> Any:
        """Returns the return value or error info, the kind of error, seconds, the return value as text."""
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
        except Exception as error:  # noqa: BLE001 (any error of the task)
            state = states.RETRY if isinstance(error, Retry) else states.FAILURE
            info = TraceInfo(state, error)
            known = info.handle_error_state(task, context, call_errbacks=False)
            traceback_clear(error)
            return trace_ok_t(known, info, None, None)
        finally:
            signals.task_postrun.send(**about, retval=said, state=state)
            pop()

    return trace
