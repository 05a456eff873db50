"""Marks of tests by what they need, so that `make test` runs without Go, a browser and whole installations.

pyproject.toml registers them.

kube     a real API server or kubectl: `make test-kube`
browser  Chromium: `make test-browser`
whole    releases, downloads of packages, documentation pages command by command, attacks, and whole installations: only
         `make test-all`

A test gets its mark from the fixtures that it uses, from the lists here, or from a decorator if it takes long.
`make test` runs the tests without a mark.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.expression import Expression

#: Marks of tests that use one of these fixtures, directly or through another one.
_FIXTURES: Final = {"control_plane": "kube", "browser": "browser"}
#: Start of a test's path -> mark, for tests that build their own environment.
MARKS_BY_PATH: Final = {
    "tests/e2e/": "kube",
    "deploy/tests/integration/": "kube",
    "packages/dsf-optimizer/tests/integration/optimizer/mcp/": "kube",
    "tests/integration/agent/kube/": "kube",
    "tests/integration/web/test_browser.py": "browser",
    "tests/integration/api/test_crds.py": "kube",
    "packages/dsf-backtest/tests/integration/backtest/test_page.py": "whole",
    # A whole demo, and downloads of large packages.
    "demo/tests/integration/demo/": "whole",
    "tests/integration/cycle/test_path.py": "whole",
    "tests/integration/docs/": "whole",
    # Each reader of foreign bytes in a process of its own, with large documents.
    "tests/integration/hostile/": "whole",
    "tests/integration/release/": "whole",
    # Each starts all processes of a hub and of agents.
    "tests/integration/security/running/": "whole",
    "tests/integration/security/test_canary.py": "whole",
    "tests/integration/security/test_page.py": "whole",
    "tests/integration/security/test_roles.py": "whole",
    "tests/integration/security/test_sentinel.py": "whole",
    "tests/integration/security/test_sentinel_chart.py": "whole",
    "tests/integration/security/test_url_secrets.py": "whole",
    "tests/unit/release/": "whole",
    "tests/unit/docs/test_pictures.py": "whole",
    "tests/unit/docs/test_site.py": "whole",
    "tests/unit/docs/test_site_browser.py": "browser",
    "tests/unit/policywatcher/": "whole",
    "tests/integration/policywatcher/": "whole",
    "tests/faults/": "whole",
    # The import of Schemathesis takes a tenth of the time of all tests together.
    "packages/dsf-scorer/tests/unit/scorer/test_schemathesis.py": "whole",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files and folders without a test that `-m` selects: importing them takes seconds in each test process."""
    path = collection_path.relative_to(config.rootpath).as_posix() + ("/" if collection_path.is_dir() else "")
    marks = list_marks_by_path(path)
    expression = config.getoption("markexpr")
    return True if marks and expression and not may_select(expression, marks) else None


def may_select(expression: str, marks: AbstractSet[str]) -> bool:
    """True if an expression for `-m` selects tests with these marks, whichever further marks they have."""
    compiled = Expression.compile(expression)
    further = sorted(set(re.findall(r"\w+", expression)) - {"and", "or", "not"} - marks)
    subsets = itertools.chain.from_iterable(itertools.combinations(further, count) for count in range(len(further) + 1))
    return any(compiled.evaluate(lambda name, subset=subset, **_: name in {*marks, *subset}) for subset in subsets)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test, before `-m` selects some."""
    for item in items:
        for name in list_marks(item):
            item.add_marker(name)


def list_marks(item: pytest.Item) -> set[str]:
    """Return the marks of a test."""
    by_fixture = {mark for fixture, mark in _FIXTURES.items() if fixture in getattr(item, "fixturenames", ())}
    return by_fixture | list_marks_by_path(item.nodeid.partition("::")[0])


@functools.cache
def list_marks_by_path(path: str) -> frozenset[str]:
    """Return the marks of a file or folder, named relative to the repository. A folder ends with a slash."""
    return frozenset(mark for folder, mark in MARKS_BY_PATH.items() if path.startswith(folder))
