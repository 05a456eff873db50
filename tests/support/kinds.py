"""Marks of tests by what they need, so that `make test` runs without Go, a browser and whole installations.

pyproject.toml registers them.

kube     a real API server: `make test-kube`
browser  Chromium: `make test-browser`
whole    releases, documentation pages command by command, and long runs of whole fleets: only `make test-all`

A test gets its mark from the fixtures that it uses and from the lists here; `make test` runs what has none.
"""

from __future__ import annotations

from typing import Final

import pytest

#: Tests that use one of these fixtures, directly or through another one, need it.
_FIXTURES: Final = {"control_plane": "kube", "browser": "browser"}
#: Start of a test's path -> its mark, for tests that build what they need themselves.
PLACES: Final = {
    "tests/e2e/": "kube",
    "deploy/tests/integration/": "kube",
    "tests/integration/docs/": "whole",
    "tests/integration/release/": "whole",
    "tests/unit/release/": "whole",
    "tests/unit/docs/test_pictures.py": "whole",
    "tests/unit/docs/test_site.py": "whole",
    "tests/unit/policywatcher/": "whole",
    "tests/integration/policywatcher/": "whole",
    "tests/faults/": "whole",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test, before `-m` selects some."""
    for item in items:
        for name in kinds(item):
            item.add_marker(name)


def kinds(item: pytest.Item) -> set[str]:
    """The marks of a test."""
    by_fixture = {mark for fixture, mark in _FIXTURES.items() if fixture in getattr(item, "fixturenames", ())}
    by_place = {mark for prefix, mark in PLACES.items() if item.nodeid.startswith(prefix)}
    return by_fixture | by_place
