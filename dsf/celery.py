"""The Celery application of Celery's own commands, `celery -A dsf.celery worker|beat|flower`, and of Python programs.

The role of a command is that of DSF_ROLE or, without it, that of the command. A program that imports `app` sends ticks
as `cli`. Processes of `dsf` make theirs by `dsf.worker.application`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from celery import signals

from dsf.settings import settings
from dsf.worker import commands
from dsf.worker.application import make_app


def _keep_command_line(**_: Any) -> None:
    # Celery's worker restarts at SIGHUP with `sys.argv`, whose first item Python replaces with a file for `-m`. Earlier
    # `celery worker --detach` reads it.
    sys.argv = sys.orig_argv[1:]


_is_command = commands.is_celery_command(sys.argv, os.environ)
if _is_command:
    commands.prepare(sys.argv, os.environ)
config = settings() if _is_command else settings().model_copy(update={"role": "cli"})
app = make_app(config, is_imported=not _is_command)
if config.role == "flower":
    # Its filter and the password of /metrics, before it serves.
    importlib.import_module("dsf.worker.flower").install(app)
if _is_command:
    sys.excepthook = commands.print_error_as_line
    signals.worker_init.connect(_keep_command_line)
    for command in {"inspect", "control"}.intersection(sys.argv[1:]):
        importlib.import_module("dsf.worker.remotecontrol").describe_commands(command)
