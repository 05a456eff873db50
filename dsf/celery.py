"""The Celery application of Celery's own commands: `celery -A dsf.celery worker|beat|flower`.

The role is that of DSF_ROLE or, without it, that of the command. Processes of `dsf` make theirs by
`dsf.worker.application`.
"""

from __future__ import annotations

import importlib
import os
import sys

from dsf.settings import settings
from dsf.worker import commands
from dsf.worker.application import make_app

commands.prepare(sys.argv, os.environ)
app = make_app(settings())
if settings().role == "flower":
    # Its filter and the password of /metrics, before it serves.
    importlib.import_module("dsf.worker.flower").install(app)
