"""Programs that tests run. `python -m tests.support.programs` fetches them, before the first test starts.

usage: python -m tests.support.programs [NAME ...] | --without NAME ...

A test that fetched one would change what the tests beside it run, in their middle. Programs on PATH or in the cache are
used as they are. Programs that cannot be fetched are printed: tests that need them skip or fail with the same message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from dsf.demo import debian
from dsf.demo.debian import DebianProgram
from dsf.errors import ToolError

_REDIS = "https://redis.io/docs/latest/get-started/"
PROGRAMS = {
    program.name: program
    for program in (
        debian.PROMETHEUS,
        debian.NODE_EXPORTER,
        DebianProgram("promtool", "prometheus", "https://prometheus.io/download/"),
        DebianProgram("redis-server", "redis-server", _REDIS, ("valkey-server",)),
        DebianProgram("redis-cli", "redis-tools", _REDIS, ("valkey-cli",)),
        DebianProgram("victoria-metrics", "victoria-metrics", "https://docs.victoriametrics.com/"),
        # Documentation pages and scripts of samples use it.
        DebianProgram("curl", "curl", "https://curl.se/"),
        # For tests of proxies.
        DebianProgram("tinyproxy", "tinyproxy-bin", "https://tinyproxy.github.io/"),
        # For tests and screenshots of the page.
        DebianProgram("nginx", "nginx", "https://nginx.org/"),
        DebianProgram(
            "chromium",
            "chromium",
            "https://www.chromium.org/",
            ("chromium-browser", "google-chrome"),
            executable="usr/lib/chromium/chromium",
        ),
    )
}


def cached(name: str) -> Path | None:
    """Return the program from PATH or from the cache; None when it needs a download."""
    return debian.find_cached(PROGRAMS[name])


def find(name: str) -> Path:
    """Return the program, fetched first if needed. Raises ToolError when it cannot be fetched."""
    return debian.find(PROGRAMS[name])


def fetch(names: Iterable[str] = tuple(PROGRAMS)) -> Iterator[str]:
    """Fetch the missing ones of these programs. Yields the reason for each one that cannot be fetched."""
    for name in names:
        try:
            find(name)
        except ToolError as error:
            yield str(error)


def selected_programs(program_names: list[str]) -> list[str]:
    """Return the programs that the command line names; all of them by default."""
    if program_names[:1] == ["--without"]:
        return [name for name in PROGRAMS if name not in program_names[1:]]
    return program_names or list(PROGRAMS)


if __name__ == "__main__":
    for problem in fetch(selected_programs(sys.argv[1:])):
        print(f"tests: {problem}", file=sys.stderr)
