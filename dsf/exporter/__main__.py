"""`python -m dsf.exporter`."""

from __future__ import annotations

import sys

from dsf.errors import DsfError
from dsf.exporter.main import run
from dsf.settings import settings

try:
    sys.exit(run(settings()))
except DsfError as problem:
    sys.exit(f"error: {problem}")
