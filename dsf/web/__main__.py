"""`python -m dsf.web`: the page without the command line around it."""

from __future__ import annotations

import sys

from dsf import lean
from dsf.errors import DsfError


def main() -> int:
    """Run with the settings of the environment."""
    lean.start()
    from dsf.settings import settings
    from dsf.web.main import run

    try:
        return run(settings())
    except DsfError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
