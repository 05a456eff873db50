"""Child processes that end with this process, even if it is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Program that requests SIGTERM for the parent's death (PR_SET_PDEATHSIG is 1), and then executes the command if the
# parent is still alive. A preexec_fn would be unsafe in a process with threads.
_TRAMPOLINE = (
    "import ctypes,os,sys\n"
    "if sys.platform=='linux': ctypes.CDLL(None).prctl(1,15)\n"
    "if os.getppid()==int(sys.argv[1]): os.execv(sys.argv[2],sys.argv[2:])"
)


def tie_to_parent(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command`. On Linux, it gets SIGTERM when the thread that started it ends.

    `command[0]` is the path of the program.
    """
    return [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *command]
