"""Distributes tests over processes (`-n 2 --dist loadgroup`) by file.

Most files have servers of their own, whose tests follow each other; the files of some folders share them. The mark of
pytest-xdist for that, `xdist_group`, does nothing with pytest 9.2
(https://github.com/pytest-dev/pytest-xdist/issues/1386).
"""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Folders whose files run in one process: they use well-known ports, or share what takes seconds to build.
_TOGETHER = (
    "demo/tests/integration/demo/",
    "tests/integration/release/",
    "tests/integration/security/running/",
    "deploy/tests/unit/",
)
#: Name of the group of all files that use the shared API server, so that a run starts one. Hubs process all objects of
#: a server, so tests in other processes would interfere.
_API_SERVER = "api-server/"
#: Folder of files that each run a whole fleet and measure times. In parallel they would be late.
_FLEETS = "tests/faults/"
#: Distance between files of that folder: every eighth file that starts is one of them.
_APART = 8
_ROOT = Path(__file__).parents[2]


@functools.cache
def uses_api_server(file: str) -> bool:
    """True if tests of this file or folder, named relative to the repository, use the shared API server."""
    path = _ROOT / file
    sources = (
        path,
        path / "conftest.py",
        *(folder / "conftest.py" for folder in path.parents if folder != _ROOT),
    )
    return any(
        re.search(r"\bcontrol_plane: ControlPlane", source.read_text()) for source in sources if source.is_file()
    )


def is_unit(file: str) -> bool:
    """True if a file, named relative to the repository, has tests of single modules."""
    return "tests/unit/" in file


def get_group(nodeid: str) -> str:
    """Return the group of a test, which one process runs: its file, or a folder or name that files share."""
    file = nodeid.partition("::")[0]
    if uses_api_server(file):
        return _API_SERVER
    return next((folder for folder in _TOGETHER if file.startswith(folder)), file)


def _order(file: str) -> int:
    # A folder in one process takes longer than a file, so it starts first: the others would wait for it at the end.
    if file in (*_TOGETHER, _API_SERVER):
        return 0
    return 2 if is_unit(file) else 1


class Spread(OrderedDict[str, dict[str, bool]]):
    """Tests by file, in the order of names, with three exceptions.

    Groups that one process runs come first. Files of fleets are spread over the others. Unit tests come last.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given = 0

    def popitem(self, last: bool = True) -> tuple[str, dict[str, bool]]:
        """Return the next file; always from the front, as the scheduler does it."""
        is_turn = self._given % _APART == 0
        self._given += 1
        names = sorted(self, key=_order)
        file = next((name for name in names if name.startswith(_FLEETS) == is_turn), "") or names[0]
        return file, self.pop(file)


class _ByFile(LoadScopeScheduling):
    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self.workqueue = Spread()

    def _split_scope(self, nodeid: str) -> str:
        return get_group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Return the scheduler of `--dist loadgroup`."""
    if config.getvalue("dist") != "loadgroup":
        return None
    # In the order of names: slow files come first, and short files of single modules fill the end.
    config.option.loadscopereorder = False
    return _ByFile(config, log)
