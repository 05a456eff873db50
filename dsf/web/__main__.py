"""`python -m dsf.web`."""

from __future__ import annotations

import sys

from dsf.errors import DsfError
from dsf.settings import settings
from dsf.web.main import run

try:
    sys.exit(run(settings()))
except DsfError as problem:
    sys.exit(f"error: {problem}")
