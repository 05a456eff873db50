"""`python -m dsf.agent`: the agent without the CLI."""

import sys

from dsf.process.launch import launch


def main() -> int:
    """Run with settings from the environment."""
    return launch("dsf.agent.main:run")


if __name__ == "__main__":
    sys.exit(main())
