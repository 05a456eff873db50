"""Plug-ins with the fixtures, marks and order of all tests, in tests/ and beside what they test."""

from __future__ import annotations

pytest_plugins = [
    "tests.support.fixtures",
    "tests.support.distribution",
    "tests.support.controlplane_fixtures",
    "tests.support.kinds",
    "tests.support.cputime",
]
