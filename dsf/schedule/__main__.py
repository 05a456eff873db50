"""`python -m dsf.schedule`: beat without the command line."""

import os
import sys

from dsf.process.launch import launch


def main() -> int:
    """Run with the settings of the environment."""
    # The Celery application reads the role from the environment.
    os.environ["DSF_ROLE"] = "beat"
    return launch("dsf.schedule.main:run")


if __name__ == "__main__":
    sys.exit(main())
