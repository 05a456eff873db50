"""The console script `dsf`."""

from __future__ import annotations

import sys

from dsf.process.launch import end_when_told, launch


def run() -> None:
    """Run the command line. In pods, `dsf agent` does not load the other commands, to save memory."""
    end_when_told()
    if sys.argv[1:] == ["agent"]:
        launch("agent", "dsf.agent.main:run")
    from dsf.cli.main import run as run_any

    run_any()
