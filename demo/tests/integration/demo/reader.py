"""A reader who follows the tutorial, from an empty folder to a score."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import yaml

from dsf.up.httpcheck import make_http_check
from tests.support import forked
from tests.support.child import Child, run_program
from tests.support.document import Command, File
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.scoringservices import ROOT, load, served
from tests.support.wait import wait_for

TUTORIAL = ROOT / "docs" / "tutorial.md"


class Reader:
    """Works in an empty folder below `folder`, beside the demo that runs on the folder `demo`. A context manager.

    The first server of the page runs as a process. Ports are exchanged, because others may use those of the page.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], demo: Path) -> None:
        self.folder = folder / "my-scorer"
        self.folder.mkdir()
        self._log = folder / "scorer.log"
        self._demo = demo
        self._cleanup = ExitStack()
        self._ports: dict[str, str] = {}
        self._environment = {
            **environment,
            "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}:{find('curl').parent}",
            # Plugins installed beside pytest here take seconds to load, and the page needs none.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        self.outputs: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def follow(self, step: File | Command) -> None:
        """Write a file, or run a command: a server until the end, another one until it succeeds."""
        if isinstance(step, File):
            path = self.folder / step.path
            assert path.parent.is_dir(), path
            path.write_text(self._replace_ports(step.text))
        elif step.text.startswith("dsf demo"):
            assert step.text == "dsf demo --keep demo"
            (self.folder / "demo").symlink_to(self._demo)
        elif step.text.startswith("uvicorn"):
            self._serve(*step.text.split())
        else:
            if step.text.startswith("dsf status"):
                # Checking files costs less than running a command; the first commands would run too early.
                wait_for(lambda: len(self.scores()) == 2, 90, "the scores of both clusters")
            process = wait_for(lambda: self._run_successfully(step.text), 45, step.text, interval=0.3)
            self.outputs[step.text] = process.stdout

    def scores(self) -> dict[str, list[dict[str, object]]]:
        """Return cluster -> values that OCM's scheduler reads from the scorer of the page."""
        files = self.folder.glob("demo/_out/clusters/*/addonplacementscores/cpu-headroom.yaml")
        return {file.parents[1].name: yaml.safe_load(file.read_text())["status"]["scores"] for file in files}

    def _replace_ports(self, text: str) -> str:
        return re.sub(r"\b80(?:00|11|12|13)\b", lambda match: self._ports[match[0]], text)

    def _serve(self, program: str, target: str, option: str, port: str) -> None:
        module, _, name = target.partition(":")
        if not self._ports:
            self._ports[port] = str(free_port())
            command = [str(Path(sys.executable).parent / program), target, option, self._ports[port]]
            child = Child(command, self._log, self._environment, inherit=False)
            self._cleanup.callback(child.kill)
            wait_for(make_http_check(f"http://127.0.0.1:{self._ports[port]}/healthz"), 30, f"{target} to answer")
        else:
            assert option == "--port"
            url = self._cleanup.enter_context(served(getattr(load(self.folder / f"{module}.py"), name)))
            self._ports[port] = url.rpartition(":")[2]

    def _run_successfully(self, command: str) -> subprocess.CompletedProcess[str]:
        text = self._replace_ports(command)
        if text.startswith("dsf "):
            process = forked.dsf(shlex.split(text)[1:], self._environment)
        else:
            process = run_program(["/bin/bash", "-c", text], cwd=self.folder, env=self._environment)
        assert process.returncode == 0, f"{command}: {process.stdout}{process.stderr}"
        if command.startswith("dsf scores"):
            assert "worker02" in process.stdout, process.stdout
        return process
