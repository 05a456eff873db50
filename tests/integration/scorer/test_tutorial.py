"""The tutorial works as it is written, from an empty folder to a score.

What is exchanged: ports, because others may use them; the Prometheus of the demo's clusters, which is one that knows
its answer; and `dsf demo`, which is `dsf up` on the demo's own manifests, since the demo downloads programs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.integration.scorer.server import ROOT
from tests.support.child import Child
from tests.support.document import Command, File, steps
from tests.support.httpserver import ScriptedServer, matrix
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

PAGE = ROOT / "docs" / "tutorial.md"
PROMETHEUS = "kube-prometheus-kube-prome-prometheus.monitoring.svc:9090"
IDLE = {"metric": {"node": "n1"}, "values": [[1718600000, "90"], [1718600005, "70"]]}


class Reader:
    """Somebody who follows the page."""

    def __init__(self, folder: Path, prometheus: str, cleanup: ExitStack) -> None:
        self.folder = folder / "my-scorer"
        self.folder.mkdir()
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._cleanup = cleanup
        self._ports = {port: str(free_port()) for port in ("8000", "8011", "8012", "8013")}
        self._prometheus = prometheus.removeprefix("http://")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DSF_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:{find('curl').parent}",
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.outputs: dict[str, str] = {}

    def exchanged(self, text: str) -> str:
        """The text with ports and servers of this test."""
        text = text.replace(PROMETHEUS, self._prometheus)
        return re.sub(r"\b80(?:00|11|12|13)\b", lambda match: self._ports[match[0]], text)

    def write(self, file: File) -> None:
        """Write a file of the page."""
        path = self.folder / file.path
        assert path.parent.is_dir(), path
        path.write_text(self.exchanged(file.text))

    def run(self, command: str) -> None:
        """Run a command: a server until the end of the test, another one until it succeeds."""
        if command.startswith("dsf demo"):
            self._demo(command)
        elif command.startswith("uvicorn"):
            self._start(command.split()[1].partition(":")[0], self.exchanged(command).split())
            port = self.exchanged(command).split()[-1]
            wait_for(lambda: self._ask(f"curl -sf http://127.0.0.1:{port}/healthz").returncode == 0, 20, command)
        else:
            if command.startswith("dsf status"):
                # A look at files costs less than a command, of which the first ones would come too early.
                wait_for(lambda: len(self.scores()) == 2, 90, "the scores of both clusters")
            done = wait_for(lambda: self._succeeded(command), 45, command, interval=0.3)
            self.outputs[command] = done.stdout

    def scores(self) -> list[Path]:
        """The files of the demo's clusters with the scorer's scores."""
        return sorted(self.folder.glob("demo/_out/clusters/*/addonplacementscores/cpu-headroom.yaml"))

    def _succeeded(self, command: str) -> subprocess.CompletedProcess[str]:
        done = self._ask(self.exchanged(command))
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        if command.startswith("dsf scores"):
            assert "worker02" in done.stdout, done.stdout
        return done

    def _ask(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def _demo(self, command: str) -> None:
        assert command == "dsf demo --keep demo"
        manifests = self.folder / "demo"
        manifests.mkdir()
        for name in ("clusters.yaml", "dynamic-scoring-config.yaml"):
            shutil.copy(ROOT / "demo" / "manifests" / name, manifests)
        options = ["--no-flower", "--manifests", str(manifests)]
        self._start("dsf-up", [str(Path(sys.executable).parent / "dsf"), "up", "--backend", "dir", *options])

    def _start(self, name: str, command: list[str]) -> None:
        program = str(Path(sys.executable).parent / Path(command[0]).name)
        child = Child([program, *command[1:]], self._logs / name, self._environment, inherit=False)
        self._cleanup.callback(_interrupt, child)


def _interrupt(child: Child) -> None:
    """Ctrl-C."""
    child.signal(signal.SIGINT)
    child.wait()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """In an empty folder."""
    with ExitStack() as cleanup:
        prometheus = cleanup.enter_context(ScriptedServer(matrix(IDLE)))
        made = Reader(tmp_path, prometheus.url, cleanup)

        # Where servers are started.
        monkeypatch.chdir(made.folder)
        yield made


def test_from_an_empty_folder_to_a_score(reader: Reader) -> None:
    for step in steps(PAGE):
        if isinstance(step, File):
            reader.write(step)
        else:
            assert isinstance(step, Command)
            reader.run(step.text)
    for file in reader.scores():
        assert yaml.safe_load(file.read_text())["status"]["scores"] == [{"name": "n1", "value": 71}]
    scored = [output for command, output in reader.outputs.items() if "/scoring -d" in command]
    assert [json.loads(output)["results"][0]["score"] for output in scored] == [71.0, 50.0]
    assert all(output in PAGE.read_text() for output in scored)
