"""Order of the demo's start."""

from __future__ import annotations

import sys

from tests.support.child import run_program


def test_prometheus_starts_before_slow_imports() -> None:
    """Each import delays the first scrape, and by it all scores that need a source."""
    code = "import sys, dsf.demo.command, dsf.demo.fleet; print(*sys.modules)"
    modules = set(run_program([sys.executable, "-c", code], check=True).stdout.split())
    assert modules.isdisjoint({"celery", "pydantic", "redis", "requests", "urllib.request", "rich.console"})
