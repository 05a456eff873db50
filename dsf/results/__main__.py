"""`python -m dsf.results`: the results worker without the command line around it."""

import sys

from dsf.launch import launch


def main() -> int:
    """Run with the settings of the environment."""
    return launch("dsf.results.worker:run")


if __name__ == "__main__":
    sys.exit(main())
