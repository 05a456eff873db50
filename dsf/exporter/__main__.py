"""`python -m dsf.exporter`: the exporter without the command line."""

import sys

from dsf.process.launch import launch


def main() -> int:
    """Run with settings of the environment."""
    return launch("dsf.exporter.app:run")


if __name__ == "__main__":
    sys.exit(main())
