"""The sample is a program of its own, outside of any package of this repository."""

import sys
from pathlib import Path

SAMPLE = Path(__file__).parents[3] / "samples" / "policy-watcher"
if str(SAMPLE) not in sys.path:
    sys.path.append(str(SAMPLE))
