"""Fetch the programs that tests run: `python -m tests.support.programs`, before the first test starts.

A test that fetched one would change what the tests beside it run, in their middle. What is on PATH or in the cache is
taken as it is. What cannot be fetched is printed: tests that need it skip or fail, and say the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from dsf.demo.binaries import PROGRAMS, find
from dsf.errors import ToolError


def fetch() -> Iterator[str]:
    """Fetch what is missing, one program after the other. Gives the reason for each that cannot be fetched."""
    for name in PROGRAMS:
        try:
            find(name)
        except ToolError as error:
            yield str(error)


if __name__ == "__main__":
    for problem in fetch():
        print(f"tests: {problem}", file=sys.stderr)
