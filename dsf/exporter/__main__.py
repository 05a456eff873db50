"""`python -m dsf.exporter`."""

from __future__ import annotations

import sys

from dsf import lean
from dsf.errors import DsfError


def main() -> int:
    """Run with the settings of the environment."""
    lean.start()
    from dsf.exporter.main import run
    from dsf.settings import settings

    try:
        return run(settings())
    except DsfError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
