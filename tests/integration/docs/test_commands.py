"""Every command on every page is run by a test, or listed with the reason why not, and then at least parsed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from dsf.cli.main import app
from tests.integration.docs import helm, pages, venues
from tests.integration.docs.pages import PAGES, ROOT, Command
from tests.integration.docs.venues import NOWHERE, OWN_TESTS, Venue, reason, venue
from tests.support import programs
from tests.support.child import run_program
from tests.support.controlplane import ControlPlaneMissingError, find

COMMANDS = pages.all_commands()
#: Prefixes of paths in commands.
_FOLDERS = tuple(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_commands_have_a_venue(page: Path) -> None:
    for command in pages.commands(page):
        assert venue(command) in Venue


def test_excused_commands_appear_on_a_page() -> None:
    texts = [command.text for command in COMMANDS]
    assert [pattern for pattern in NOWHERE if not any(re.search(pattern, text) for text in texts)] == []
    for page, test in OWN_TESTS.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def test_unlisted_command_is_an_error() -> None:
    for text in ("terraform apply", "kubectl get pods | frobnicate", "sed s/a/b/ file"):
        with pytest.raises(LookupError):
            venue(Command("docs/new.md", 1, text))
    assert venue(Command("docs/new.md", 1, "A=$(kubectl get pods)")) is Venue.CLUSTER
    assert "container" in reason(Command("docs/new.md", 1, "docker run x"))


def _dsf_lines() -> Iterator[tuple[str, list[str]]]:
    for command in COMMANDS:
        tokens = shlex.split(re.sub(r"[|;&].*", "", command.text) if "dsf" in command.programs else command.text)
        for index, token in enumerate(tokens):
            if token == "dsf" and (index == 0 or tokens[index - 1] in ("--", "hub", "kubectl")):
                yield f"{command.page}:{command.line}", tokens[index + 1 :]
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for inline in re.findall(r"`dsf ([^`]+)`", text):
            # `dsf scores [--cluster C]`, `dsf schedule list|set`, `dsf hub|agent`
            alone = inline.partition(" | ")[0]
            plain = re.sub(r"(\w+)(\|\w+)+", r"\1", re.sub(r"[\[\]]|\.\.\.", "", alone))
            yield pages.name(page), shlex.split(plain)


def test_dsf_commands_parse() -> None:
    whole: Any = typer.main.get_command(app)
    for location, arguments in sorted(_dsf_lines()):
        command, remaining_arguments = whole, arguments
        while hasattr(command, "commands") and remaining_arguments:
            assert remaining_arguments[0] in command.commands, (
                f"{location}: dsf has no command {remaining_arguments[0]}"
            )
            command, remaining_arguments = command.commands[remaining_arguments[0]], remaining_arguments[1:]
        flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        flags |= {"-h", "--help"}
        for argument in remaining_arguments:
            if argument.startswith("-"):
                assert argument.partition("=")[0] in flags, (
                    f"{location}: dsf {' '.join(arguments)}: no option {argument}"
                )


def test_referenced_files_exist() -> None:
    for command in venues.of(*set(Venue) - {Venue.OWN}):
        for token in shlex.split(command.text):
            path = token.partition("=")[2] if token.startswith("-") else token
            if path.startswith(_FOLDERS):
                assert (ROOT / path).exists(), f"{command}: {path}"


@pytest.mark.parametrize(
    "command",
    [
        c
        for c in venues.of(Venue.NOWHERE)
        if "kubectl" in c.programs and not c.text.startswith(("kubectl dsf ", "kubectl krew "))
    ],
    ids=str,
)
def test_kubectl_accepts_the_flags(command: Command) -> None:
    tokens = shlex.split(command.text)
    end = next((index for index, token in enumerate(tokens) if token in ("--", "|")), len(tokens))
    # With --help it parses all flags and has no effect.
    arguments = [*tokens[1:end], "--help"]
    process = run_program([_kubectl(), *arguments])
    assert process.returncode == 0, process.stderr
    assert "Usage:" in process.stdout


def _kubectl() -> str:
    try:
        return str(find("kubectl") / "kubectl")
    except ControlPlaneMissingError as error:
        if kubectl_path := shutil.which("kubectl"):
            return kubectl_path
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.mark.parametrize("command", [c for c in COMMANDS if "helm" in c.programs], ids=str)
def test_helm_accepts_the_flags(command: Command) -> None:
    helm.parser().parse_args(shlex.split(command.text.partition(" > ")[0])[1:])


@pytest.mark.parametrize("command", [c for c in COMMANDS if "make" in c.programs], ids=str)
def test_make_targets_exist(command: Command) -> None:
    process = run_program(["make", "-n", *shlex.split(command.text)[1:]], cwd=ROOT)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("command", venues.of(Venue.HERE), ids=str)
def test_standalone_commands_run_here(command: Command) -> None:
    program_folders = [str(Path(program).parent) for program in (programs.find("promtool"), sys.executable)]
    path = os.pathsep.join([*program_folders, os.environ["PATH"]])
    process = run_program(["/bin/bash", "-euc", command.text], cwd=ROOT, env=os.environ | {"PATH": path})
    assert process.returncode == 0, process.stdout + process.stderr
