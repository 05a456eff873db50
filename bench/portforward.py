"""A stand-in for the hub's API server and kubelet, which forwards `pods/portforward` to a port of this machine.

    python -m bench.portforward --to PORT

It prints its port.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading

from tests.support.portforwardserver import serving


def main() -> int:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=int, required=True, metavar="PORT")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt), serving(arguments.to) as server:
        print(server.port, flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
