"""`python -m dsf.web`: the page without the command line."""

import sys

from dsf.process.launch import launch


def main() -> int:
    """Run with the settings of the environment."""
    return launch("dsf.web.main:run")


if __name__ == "__main__":
    sys.exit(main())
