"""Decides which tick gets a thread next, so that namespaces share the agent's threads.

All scorers of a cluster share the agent's threads, and a cycle keeps its thread while it waits for a server. Therefore
the scorers of one namespace never get all threads (`dsf.process.shares`). Ticks beyond the share wait
until they expire.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from celery.concurrency import thread
from celery.concurrency.base import apply_target

from dsf.agent.ticks import REFUSAL, TICK_HEADER
from dsf.errors import CycleError
from dsf.messages import CYCLE_TASK
from dsf.process.shares import has_share
from dsf.reasons import SkipReason

#: Maximum number of waiting ticks of all namespaces per thread.
WAITING_PER_THREAD: Final = 75
#: Stands for the namespace of scorers without a summary in this agent. No namespace has such a name.
_UNKNOWN: Final = "(unknown)"


@dataclass(eq=False)
class Tick:
    """A tick that an agent has taken from its queue."""

    scorer: str
    #: Unix seconds by the hub's clock; None for a call by hand.
    deadline: float | None
    #: Runs the cycle in the calling thread.
    run: Callable[[], object]
    #: Headers of the message; the task reads them as attributes of its request.
    headers: dict[str, Any]
    #: Namespace of the scorer; empty for the hub's own.
    namespace: str = ""
    position: int = 0


@dataclass
class _Namespace:
    """The waiting ticks of one namespace, and the number of its running cycles."""

    waiting_ticks: deque[Tick] = field(default_factory=deque)
    running_count: int = 0


class FairQueue:
    """Decides which waiting tick runs next. Counts waiting and running ticks by namespace. Thread-safe."""

    def __init__(self, threads: int, namespaces: Callable[[], Mapping[str, str]]) -> None:
        """`threads` run cycles; `namespaces` returns the namespace of each scorer here, empty for the hub's own."""
        self._threads = threads
        self._list_namespaces = namespaces
        self._lock = threading.Lock()
        self._namespaces: dict[str, _Namespace] = {}
        self._positions = count()

    def add(self, tick: Tick) -> bool:
        """Add a waiting tick. Return False if its namespace already has its share of waiting ticks."""
        with self._lock:
            namespace_by_scorer = self._list_namespaces()
            # A tick of an unknown scorer does not count for the hub's own namespace, because many new or deleted
            # scorers of another namespace would use up its share.
            tick.namespace = namespace_by_scorer.get(tick.scorer, _UNKNOWN)
            tick.position = next(self._positions)
            waiting_ticks = self._namespaces.setdefault(tick.namespace, _Namespace()).waiting_ticks
            free_count = self._threads * WAITING_PER_THREAD - sum(
                len(namespace.waiting_ticks) for namespace in self._namespaces.values()
            )
            if (
                tick.namespace
                and len({*namespace_by_scorer.values(), tick.namespace}) > 1
                and len(waiting_ticks) >= free_count
            ):
                return False
            waiting_ticks.append(tick)
            return True

    def take(self) -> Tick | None:
        """Return the tick that may begin now. Return None if no tick waits, or if no waiting tick may begin.

        The hub's own namespace comes first, then the one with the fewest running cycles, then the oldest tick.
        """
        with self._lock:
            current_namespaces = set(self._list_namespaces().values())
            candidates = [
                (bool(name), namespace.running_count, namespace.waiting_ticks[0].position, name)
                for name, namespace in self._namespaces.items()
                if namespace.waiting_ticks and self._may_run(name, current_namespaces)
            ]
            if not candidates:
                return None
            namespace = self._namespaces[min(candidates)[-1]]
            namespace.running_count += 1
            return namespace.waiting_ticks.popleft()

    def end(self, tick: Tick) -> None:
        """Record that a tick, which `take` returned, has run."""
        with self._lock:
            self._namespaces[tick.namespace].running_count -= 1
            if (
                not self._namespaces[tick.namespace].running_count
                and not self._namespaces[tick.namespace].waiting_ticks
            ):
                del self._namespaces[tick.namespace]

    def expire(self, now: float) -> list[tuple[Tick, CycleError]]:
        """Remove the waiting ticks whose deadline has passed; return each with the reason.

        `now` is unix seconds by the hub's clock."""
        with self._lock:
            current_namespaces = set(self._list_namespaces().values())
            expired_ticks: list[tuple[Tick, CycleError]] = []
            for name, namespace in self._namespaces.items():
                overdue_ticks = [
                    tick for tick in namespace.waiting_ticks if tick.deadline is not None and tick.deadline <= now
                ]
                if overdue_ticks:
                    reason = (
                        self._find_reason(name)
                        if not self._may_run(name, current_namespaces) and self._free_threads > 0
                        else _EXPIRED
                    )
                    namespace.waiting_ticks = deque(
                        tick for tick in namespace.waiting_ticks if tick not in overdue_ticks
                    )
                    expired_ticks += ((tick, reason) for tick in overdue_ticks)
            return expired_ticks

    def explain_refusal(self, tick: Tick) -> CycleError:
        """Return why a tick that was not added is skipped."""
        with self._lock:
            return self._find_reason(tick.namespace)

    def drain(self) -> list[Tick]:
        """Remove and return all waiting ticks."""
        with self._lock:
            ticks = [tick for namespace in self._namespaces.values() for tick in namespace.waiting_ticks]
            for namespace in self._namespaces.values():
                namespace.waiting_ticks.clear()
            return ticks

    @property
    def _free_threads(self) -> int:
        return self._threads - sum(namespace.running_count for namespace in self._namespaces.values())

    def _may_run(self, name: str, current_namespaces: Iterable[str]) -> bool:
        """True if a cycle of this namespace may begin; `current_namespaces` have scorers on this cluster."""
        running_counts = {name: namespace.running_count for name, namespace in self._namespaces.items()}
        return has_share(name, running_counts, self._threads, current_namespaces)

    def _find_reason(self, name: str) -> CycleError:
        running_count = self._namespaces[name].running_count if name in self._namespaces else 0
        owner = f"namespace {name}" if name else "the own namespace of the hub"
        if name == _UNKNOWN:
            owner = "unknown namespaces"
        message = (
            f"the scorers of {owner} hold their share of this agent's threads ({running_count} of {self._threads}): "
            "their sources or scoring APIs are slow or hang"
        )
        return CycleError("", SkipReason.SHARE_FULL, message)


_EXPIRED: Final = CycleError(
    "",
    SkipReason.EXPIRED,
    "its tick waited in the agent until no time was left for a cycle: the agent's threads were busy",
)


#: Celery's published types have neither its members nor its results.
_TaskPool: Any = thread.TaskPool


class SharedThreads(_TaskPool):  # type: ignore[misc]
    """Celery's pool of threads, whose threads are shared by namespace."""

    #: Celery's flag that forbids to read a task's result within a task. A cycle reads only those of its own stages,
    #: which have ended by then.
    task_join_will_block = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Ticks that are skipped need a thread, too, while all others are in use.
        self._skip_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dsf-skipped")

    def on_stop(self) -> None:
        """Skip the waiting ticks, and wait for the running cycles."""
        for tick in self._runner.tick_queue.drain():
            self._skip(tick, CycleError("", SkipReason.EXPIRED, "the agent was stopped before its turn"))
        super().on_stop()
        self._skip_pool.shutdown()

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> Future[None]:
        """Queue a task, and run each queued task that may begin.

        `args` are those of Celery's tracer: name, id, headers and others.
        """
        # `dsf.agent.ticks` has replaced the headers of the message by these.
        headers = args[2] if args else {}
        scorer, deadline = headers.get(TICK_HEADER, ("", None))
        tick = Tick(scorer, deadline, lambda: apply_target(target, args, kwargs, callback, accept_callback), headers)
        tick_queue = self._runner.tick_queue
        if tick_queue.add(tick):
            self._run_next()
        else:
            self._skip(tick, tick_queue.explain_refusal(tick))
        # Celery keeps only a weak reference to the result, and uses it only for pools of processes.
        return Future()

    def expire(self) -> None:
        """Skip the waiting ticks whose deadline has passed. The agent calls it regularly."""
        for tick, reason in self._runner.tick_queue.expire(self._runner.hub_time()):
            self._skip(tick, reason)

    @property
    def _runner(self) -> Any:
        return self.app.tasks[CYCLE_TASK].runner

    def _run_next(self) -> None:
        while (tick := self._runner.tick_queue.take()) is not None:
            self.executor.submit(self._run, tick)

    def _run(self, tick: Tick) -> None:
        try:
            tick.run()
        finally:
            self._runner.tick_queue.end(tick)
            self._run_next()

    def _skip(self, tick: Tick, reason: CycleError) -> None:
        tick.headers[REFUSAL] = reason
        self._skip_pool.submit(tick.run)
