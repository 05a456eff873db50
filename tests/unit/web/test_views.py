"""Commands that the page of a scorer on a cluster suggests."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

from dsf.web.views import _list_commands


def test_names_in_commands_are_one_word_of_a_shell() -> None:
    name = "a; $(b) 'c'"
    row: Any = SimpleNamespace(cluster=name, scorer=name, entry=None)
    commands = _list_commands(row, name)
    assert shlex.split(commands[0]) == ["dsf", "explain", name, "--cluster", name]
    assert shlex.split(commands[2]) == ["kubectl", "describe", "dynamicscorer", name, "-n", name]
    assert shlex.split(_list_commands(row, "")[2])[-1] == "-A"
