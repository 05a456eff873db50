"""`python -m dsf.hub`: the hub controller without the CLI."""

import sys

from dsf.process.launch import launch


def main() -> int:
    """Run with settings from the environment."""
    return launch("dsf.hub.main:run")


if __name__ == "__main__":
    sys.exit(main())
