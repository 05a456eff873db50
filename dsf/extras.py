"""Finds the extra that installs a missing command, module or plug-in, in the metadata of the distribution.

`pyproject.toml` lists it as entry points of the group `dsf.extras`: a command, module or source plug-in, and its extra.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import entry_points


@functools.cache
def read_extras() -> Mapping[str, str]:
    """Return the extra of each command, module and source plug-in that has one."""
    return {entry.name: entry.value for entry in entry_points(group="dsf.extras")}


def describe_missing_extra(extra: str, subject: str = "this") -> str:
    """Return a sentence that says which extra `subject` needs, and how to install it."""
    return f"{subject} needs the extra `{extra}`: pip install 'dynamic-scoring-framework[{extra}]'"
