"""scripts/node: clusters with real pods on this machine, for people.

usage: scripts/node up [NAME ...]      start clusters (hub, cluster1, cluster2 by default); they stay
       scripts/node shell [COMMAND]    a shell, or one command, with kubectl, helm, kind, clusteradm and docker for them
       scripts/node down               take everything down; images and programs stay in the cache
       scripts/node can                exit code 0 if this machine can run nodes, else one line that says why not

Needs root and Debian (or docker, runc and iptables). `make node` does all of it around tests/node/.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.node.lab import clusters, folders, host, network, standins
from tests.node.lab.command import CannotRunError, LabError, say


def main(arguments: list[str]) -> None:
    """Execute the command of the arguments."""
    verb, verb_arguments = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if verb == "up":
        with clusters.lock():
            clusters.prepare()
            folders.KEPT.touch()
            clusters.up(*verb_arguments)
        say("ready; `scripts/node shell` to look around, `scripts/node down` to end it")
    elif verb == "down" and not verb_arguments:
        with clusters.lock():
            clusters.down()
    elif verb == "can":
        if obstacle := host.reason_against():
            raise CannotRunError(obstacle)
    elif verb == "shell":
        command = [*network.inside(network.LAN), *(verb_arguments or [os.environ.get("SHELL", "/bin/bash")])]
        os.execvpe(command[0], command, standins.environment())
    elif verb == "stand-in" and verb_arguments and verb_arguments[0] in standins.STAND_INS:
        standins.STAND_INS[verb_arguments[0]](verb_arguments[1:])
    else:
        print(__doc__, end="")
        raise SystemExit(0 if verb in ("-h", "--help") else 2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main(sys.argv[1:])
    except CannotRunError as error:
        say(str(error))
        sys.exit(3)
    except LabError as error:
        say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
