"""Tests of the policy watcher sample, which is a separate program."""

import sys
from pathlib import Path

SAMPLE = Path(__file__).parents[3] / "samples" / "policy-watcher"
if str(SAMPLE) not in sys.path:
    sys.path.append(str(SAMPLE))
