"""`python -m dsf.results`: the results worker."""

from __future__ import annotations

import sys

from dsf import lean
from dsf.errors import DsfError


def main() -> int:
    """Run the results worker; a wrong setting is one line, not a traceback."""
    lean.start()
    from dsf.results.worker import run
    from dsf.settings import settings

    try:
        return run(settings())
    except DsfError as error:
        print(f"dsf.results: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
