"""Marks tests by what they need, so that `make test` runs without Go, a browser and whole installations.

pyproject.toml registers these marks:

kube     a real API server or kubectl: `make test-kube`
browser  Chromium: `make test-browser`
whole    releases, downloads of packages, documentation pages command by command, attacks, and whole installations: only
         `make test-all`

A test gets marks from the fixtures that it uses, from its path, or from a decorator.
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

#: Fixture -> mark of the tests that use the fixture, directly or through another fixture.
_MARKS_BY_FIXTURE: Final = {"control_plane": "kube", "browser": "browser"}
#: Start of a path -> mark, for tests that build their own environment, and for files that are costly to import.
MARKS_BY_PATH: Final = {
    # The tests start API servers themselves or use the shared one.
    "tests/e2e/": "kube",
    "deploy/tests/integration/": "kube",
    "packages/dsf-optimizer/tests/integration/optimizer/mcp/": "kube",
    "tests/integration/agent/kube/": "kube",
    "tests/integration/api/test_crds.py": "kube",
    # The tests open pages in Chromium.
    "tests/integration/web/test_browser.py": "browser",
    "tests/unit/docs/test_site_browser.py": "browser",
    # The tests run the commands of documentation pages one by one.
    "packages/dsf-backtest/tests/integration/backtest/test_page.py": "whole",
    "tests/integration/docs/": "whole",
    # The tests run a whole demo, and download large packages.
    "demo/tests/integration/demo/": "whole",
    # The tests follow a tick through all processes of an installation.
    "tests/integration/cycle/test_path.py": "whole",
    # The tests attack each reader of foreign bytes in its own process, with large documents.
    "tests/integration/hostile/": "whole",
    # The tests build, install or check all files of a release.
    "tests/integration/release/": "whole",
    "tests/unit/release/": "whole",
    # Each test starts all processes of a hub and of agents.
    "tests/integration/security/running/": "whole",
    "tests/integration/security/test_canary.py": "whole",
    "tests/integration/security/test_page.py": "whole",
    "tests/integration/security/test_roles.py": "whole",
    "tests/integration/security/test_sentinel.py": "whole",
    "tests/integration/security/test_sentinel_chart.py": "whole",
    "tests/integration/security/test_url_secrets.py": "whole",
    "tests/faults/": "whole",
    # The tests check or build the pictures and the site of the documentation.
    "tests/unit/docs/test_pictures.py": "whole",
    "tests/unit/docs/test_site.py": "whole",
    # The policy watcher is a sample, which is a separate program.
    "tests/unit/policywatcher/": "whole",
    "tests/integration/policywatcher/": "whole",
    # The import of Schemathesis takes a tenth of the time of all tests together.
    "packages/dsf-scorer/tests/unit/scorer/test_schemathesis.py": "whole",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files and folders without a test that `-m` selects: their import takes seconds in each test process."""
    path = collection_path.relative_to(config.rootpath).as_posix() + ("/" if collection_path.is_dir() else "")
    marks = list_marks_by_path(path)
    expression = config.getoption("markexpr")
    return True if marks and expression and not may_select(expression, marks) else None


def may_select(expression: str, marks: AbstractSet[str]) -> bool:
    """True if an expression for `-m` selects a test with these marks and some set of further marks, or none."""
    compiled = Expression.compile(expression)
    further_marks = sorted(set(re.findall(r"\w+", expression)) - {"and", "or", "not"} - marks)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(further_marks, count) for count in range(len(further_marks) + 1)
    )
    return any(compiled.evaluate(lambda name, subset=subset, **_: name in {*marks, *subset}) for subset in subsets)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add its marks to each test, before pytest selects tests by `-m`."""
    for item in items:
        for mark in list_marks(item):
            item.add_marker(mark)


def list_marks(item: pytest.Item) -> set[str]:
    """Return the marks of a test."""
    fixture_marks = {
        mark for fixture, mark in _MARKS_BY_FIXTURE.items() if fixture in getattr(item, "fixturenames", ())
    }
    return fixture_marks | list_marks_by_path(item.nodeid.partition("::")[0])


@functools.cache
def list_marks_by_path(path: str) -> frozenset[str]:
    """Return the marks of a file or folder, named relative to the repository. A folder ends with a slash."""
    return frozenset(mark for path_start, mark in MARKS_BY_PATH.items() if path.startswith(path_start))
