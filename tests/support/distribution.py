"""How tests are shared out between processes (`-n 2 --dist loadgroup`): whole files, never single tests.

Most files have servers of their own, whose tests follow each other. pytest-xdist 3.8 should keep tests of one
`xdist_group` together, but with pytest 9.2 it quietly does not (https://github.com/pytest-dev/pytest-xdist/issues/1386).
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Folders whose files must not run at the same time: they take well-known ports.
_TOGETHER = ("tests/integration/demo/",)


class _ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in _TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """The scheduler of `--dist loadgroup`."""
    if config.getvalue("dist") != "loadgroup":
        return None
    # In the order of their names: the slow ones come first, and the short ones of tests/unit fill up the end.
    config.option.loadscopereorder = False
    return _ByFile(config, log)
