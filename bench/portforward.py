"""A stand-in for the hub's API server and kubelet, which forwards `pods/portforward` to a port of this machine.

    python -m bench.portforward --to PORT [--port PORT] [--certificate FILE]

It prints its port. With a certificate, whose key is beside it, it is a kubelet to an API server.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from pathlib import Path

from tests.support.portforwardserver import serving


def main() -> int:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=int, required=True, metavar="PORT")
    parser.add_argument("--port", type=int, default=0, help="to listen on (default: a free one)")
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="its key has the ending .key")
    arguments = parser.parse_args()
    with (
        contextlib.suppress(KeyboardInterrupt),
        serving(arguments.to, port=arguments.port, certificate=arguments.certificate) as server,
    ):
        print(server.port, flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
