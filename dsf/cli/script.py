"""The console script `dsf`."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line. In pods, `dsf agent` does not load the other commands, to save memory."""
    if sys.argv[1:] == ["agent"]:
        from dsf.process.launch import launch

        launch("agent", "dsf.agent.main:run")
    from dsf.cli.main import run as run_any

    run_any()
