"""`python -m dsf.results`: the results worker without the CLI."""

import sys

from dsf.process.launch import launch


def main() -> int:
    """Run with settings from the environment."""
    return launch("dsf.results.worker:run")


if __name__ == "__main__":
    sys.exit(main())
