"""`python -m dsf.hub`: the hub controller without the command line around it."""

import sys

from dsf.launch import launch


def main() -> int:
    """Run with the settings of the environment."""
    return launch("dsf.hub.main:run")


if __name__ == "__main__":
    sys.exit(main())
