"""Runs `dsf` in this process."""

from __future__ import annotations

import functools

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from dsf.cli.main import app

#: Builds all commands, once, because that takes longer than most of them.
_made = functools.cache(get_command)


def dsf(*arguments: str) -> Result:
    """Run a command with the environment of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", _made)
        return CliRunner().invoke(app, list(arguments), prog_name="dsf")
