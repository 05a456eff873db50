"""The console scripts `dsf`, `kubectl-dsf` and `kubectl_complete-dsf`."""

from __future__ import annotations

import os
import shlex
import sys

from dsf.process.launch import install_signal_handlers, launch


def run() -> None:
    """Run the command line. `dsf agent` without options, as in pods, loads no other commands, to save memory."""
    install_signal_handlers()
    if sys.argv[1:] == ["agent"]:
        launch("agent", "dsf.agent.main:run")
    from dsf.cli.main import run as run_command_line

    run_command_line()


def complete_for_kubectl() -> None:
    """Print the completions of `kubectl dsf ARGUMENTS`, one per line, and the directive that kubectl expects."""
    words = ["dsf", *(sys.argv[1:] or [""])]
    os.environ |= {
        "_DSF_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    sys.argv = ["dsf"]
    from dsf.cli.main import run as run_command_line

    try:
        run_command_line()
    finally:
        # Print Cobra's ShellCompDirectiveNoFileComp.
        sys.stdout.write(":4\n")
