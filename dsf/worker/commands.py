"""Celery's own commands: their roles, and Flower's options with a reason for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import PurePath
from types import TracebackType
from typing import Final

from dsf.errors import DsfError
from dsf.settings import ALL_ADDRESSES

#: Command of `celery` -> role of its process if DSF_ROLE is not set. `celery worker` is a results worker.
_ROLES: Final = {
    "beat": "beat",
    "flower": "flower",
    **dict.fromkeys(("call", "control", "events", "inspect", "report", "result", "shell", "status"), "cli"),
}

#: Names of our application for `celery -A`.
_APPLICATIONS: Final = ("dsf", "dsf.celery", "dsf.celery.app")

#: Options of `celery flower`.
_FLOWER: Final = {
    # The default lets every user of the page start tasks.
    "read_only": "True",
    # Flower has no login by itself.
    "address": "127.0.0.1",
    # Workers always send events; the default requests them from every worker of the fleet every 5 s.
    "enable_events": "False",
    # The default of 100,000 takes hundreds of MB.
    "max_tasks": "10000",
    # Seconds after which Flower removes a stopped worker from its list.
    "purge_offline_workers": "600",
    # Users search for scorer and run id, which are the arguments. The last column is the only link to the page of a
    # task, which has the other fields.
    "tasks_columns": "name,worker,args,state,runtime,received,uuid",
}

#: Options of `celery worker` for a results worker. Celery reads them from the variables CELERY_WORKER_*.
_RESULTS_WORKER: Final = {
    # Flower shows this name and Redis permits its replies. An agent could invent any other name.
    "hostname": "results@%h",
    "task_events": "1",
    # The worker's Redis user has no rights for messages between workers.
    "without_gossip": "1",
    "without_mingle": "1",
    # `dsf.worker.events` sends heartbeats.
    "without_heartbeat": "1",
}


def make_flower_command(address: str, port: int, *, read_only: bool = True) -> list[str]:
    """Return Flower's command line. With `read_only`, users cannot start tasks.

    Variables FLOWER_* of this process replace the other options.
    """
    options = {name: value for name, value in _FLOWER.items() if f"FLOWER_{name.upper()}" not in os.environ}
    options |= {
        "read_only": str(read_only),
        # Tornado takes `::` as IPv6 only, and an empty address as all addresses.
        "address": "" if address == ALL_ADDRESSES else address,
        "port": str(port),
    }
    celery = [sys.executable, "-P", "-m", "dsf.worker", "-A", "dsf.celery"]
    return [*celery, "flower", *(f"--{name}={value}" for name, value in options.items())]


def is_celery_command(command_line: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return True if this process, started with this command line, is a command of Celery for our application.

    Another project's worker or program may import `dsf.celery`, too.
    """
    program = PurePath(command_line[0])
    # The second case is `python -m celery`.
    if "celery" not in (program.name, program.parent.name):
        return False
    applications = [environment.get("APP", "")]
    for position, argument in enumerate(command_line):
        if argument in ("-A", "--app"):
            applications += command_line[position + 1 : position + 2]
        elif argument.startswith("--app="):
            applications.append(argument.removeprefix("--app="))
        elif argument.startswith("-A"):
            applications.append(argument.removeprefix("-A"))
    return applications[-1].replace(":", ".") in _APPLICATIONS


def prepare(command_line: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Set the environment variables with which a `celery` command behaves like the `dsf` command of the same name.

    Without these variables, `celery flower` would show forged events and let everybody start tasks, and `celery worker`
    would have a name that Flower does not show. Variables that are already set stay.
    """
    if not is_celery_command(command_line, environment):
        return
    role = next((_ROLES[argument] for argument in command_line[1:] if argument in _ROLES), None)
    if role is not None and environment.get("DSF_ROLE", "hub") == "hub":
        # A user may run this command in the container of a hub, whose environment has the hub's role.
        environment["DSF_ROLE"] = role
    options = {"FLOWER": _FLOWER} if role == "flower" else {}
    if role is None and "worker" in command_line[1:]:
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
