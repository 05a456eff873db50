"""Celery's own commands: their roles, and Flower's options with a reason for each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import PurePath
from types import TracebackType
from typing import Final

from dsf.errors import DsfError
from dsf.settings import EVERYWHERE

#: Command of `celery` -> the role that its process has without DSF_ROLE. A worker is that of the results.
_ROLES: Final = {
    "beat": "beat",
    "flower": "flower",
    **dict.fromkeys(("call", "control", "events", "inspect", "report", "shell", "status"), "cli"),
}

#: Names of our application for `celery -A`.
_APPLICATIONS: Final = ("dsf", "dsf.celery", "dsf.celery.app")

_FLOWER: Final = {
    # Otherwise every user of the page may start tasks.
    "read_only": "True",
    # Flower has no login by itself.
    "address": "127.0.0.1",
    # Workers always send events; the default requests them from every worker of the fleet every 5 s.
    "enable_events": "False",
    # Its default of 100,000 takes hundreds of MB.
    "max_tasks": "10000",
    # Seconds after which it removes a stopped worker from its list.
    "purge_offline_workers": "600",
    # The arguments are scorer and run id, which users search for. These columns fit on a laptop; the page of a task has
    # the others.
    "tasks_columns": "name,worker,args,state,runtime,received",
}

#: The options of `celery worker` with which it is the results worker: Celery reads them from CELERY_WORKER_*.
_RESULTS_WORKER: Final = {
    # The name that Flower shows and that Redis lets answer; others may be made up by an agent.
    "hostname": "results@%h",
    "task_events": "1",
    # Without talk among workers, for which its Redis user has no rights.
    "without_gossip": "1",
    "without_mingle": "1",
    # `dsf.worker.events` sends them.
    "without_heartbeat": "1",
}


def make_flower_command(address: str, port: int, *, read_only: bool = True) -> list[str]:
    """Flower's command line; unless read-only, users may also start tasks."""
    options = _FLOWER | {
        "read_only": str(read_only),
        # Tornado takes `::` as IPv6 only, and an empty address as all addresses.
        "address": "" if address == EVERYWHERE else address,
        "port": str(port),
    }
    celery = [sys.executable, "-P", "-m", "dsf.worker", "-A", "dsf.celery"]
    return [*celery, "flower", *(f"--{name}={value}" for name, value in options.items())]


def is_own(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return True if this process, started with these words, is a command of Celery for our application.

    Another project's worker or program may import `dsf.celery`, too.
    """
    program = PurePath(words[0])
    # The second case is `python -m celery`.
    if "celery" not in (program.name, program.parent.name):
        return False
    applications = [environment.get("APP", "")]
    for position, word in enumerate(words):
        if word in ("-A", "--app"):
            applications += words[position + 1 : position + 2]
        elif word.startswith("--app="):
            applications.append(word.removeprefix("--app="))
        elif word.startswith("-A"):
            applications.append(word.removeprefix("-A"))
    return applications[-1].replace(":", ".") in _APPLICATIONS


def prepare(words: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Make this process, started with these words, what the `dsf` command of that name would be.

    `celery flower` would otherwise show made-up events and start tasks for everybody, and `celery worker` have a name
    that Flower does not show. Values that are set already stay.
    """
    if not is_own(words, environment):
        return
    role = next((_ROLES[word] for word in words[1:] if word in _ROLES), None)
    if role is not None and environment.get("DSF_ROLE", "hub") == "hub":
        # A person's command in the container of a hub is not that hub.
        environment["DSF_ROLE"] = role
    options = {"FLOWER": _FLOWER} if role == "flower" else {}
    if role is None and "worker" in words[1:]:
        options = {"CELERY_WORKER": _RESULTS_WORKER}
    for prefix, values in options.items():
        for name, value in values.items():
            environment.setdefault(f"{prefix}_{name.upper()}", value)


def print_error_as_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of this project without its traceback: a `sys.excepthook` of Celery's commands."""
    if isinstance(error, DsfError):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
