"""`dsf mcp` without a client library: its standard output, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from typer.testing import CliRunner

from dsf.cli.main import app
from dsf.fleet.changes import read_changes
from dsf.settings import ENV_PREFIX
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.support.wait import wait_for

from ..bed import OptimizerHarness
from .server import environment
from .test_access import INITIALIZE
from .test_rescore import tick

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Talk:
    """The process, with both its streams in our hands."""

    def __init__(self, errors: Path, settings: dict[str, object]) -> None:
        with errors.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dsf.cli", "mcp"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(**settings),
                start_new_session=True,
                text=True,
            )

    def send(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        """Return the next line, which has to be a message."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def call(self, number: int, tool: str, arguments: dict[str, Any]) -> Any:
        params = {"name": tool, "arguments": arguments}
        self.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        response = self.read()
        assert response["id"] == number
        return response["result"]

    def end(self) -> tuple[int, str]:
        """Close its input, as clients do, and return the exit code and the output after the last message that was
        read.
        """
        remaining_output, _ = self.process.communicate(timeout=300)
        return self.process.returncode, remaining_output


@pytest.fixture
def talk(common: dict[str, object], tmp_path: Path) -> Iterator[Talk]:
    """A conversation that has begun."""
    session = Talk(tmp_path / "stderr", common)
    try:
        session.send(INITIALIZE)
        assert session.read()["result"]["serverInfo"]["name"] == "dynamic-scoring"
        session.send(INITIALIZED)
        yield session
    finally:
        session.process.kill()
        session.process.communicate()


def test_standard_output_contains_protocol_messages_only(
    talk: Talk, bed: OptimizerHarness, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """A malformed message does not end the session."""
    good_fleet(redis_client)
    talk.send("this is not JSON")
    talk.send("[")
    talk.send({"jsonrpc": "2.0", "id": 9, "method": "no/such/method"})
    responses = [talk.read()]
    while responses[-1].get("id") != 9:
        responses.append(talk.read())
    assert all("error" in response for response in responses)
    plan = talk.call(2, "propose_plan", bed.body())["structuredContent"]
    assert plan["objective_value"] == 115
    assert talk.call(3, "apply_plan", bed.body() | {"planId": plan["plan_id"]})["structuredContent"]["applied"] is True
    assert talk.call(4, "reset", {"namespace": bed.namespace})["structuredContent"]["deleted"]
    assert talk.call(5, "nonsense", {})["isError"] is True
    # On each cluster on which it runs, for the person who has started the process.
    runs = talk.call(6, "rescore", {"scorer": SAMPLE})["structuredContent"]["runs"]
    assert [run["cluster"] for run in runs] == ["worker01", "worker02"]
    assert all(tick(redis_client, run["cluster"]) == [SAMPLE, run["run_id"]] for run in runs)
    change = read_changes(redis_client).changes[0]
    assert (change.way, change.claimed, change.clusters, change.cluster_count) == ("mcp", True, [], 2)
    assert "@" in change.by
    assert talk.end() == (0, "")
    log = [json.loads(line) for line in (tmp_path / "stderr").read_text().splitlines()]
    tools = [line["tool"] for line in log if line["event"] == "tool called"]
    assert tools == ["propose_plan", "apply_plan", "reset", "rescore"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_server_and_its_solver(talk: Talk, bed: OptimizerHarness, number: signal.Signals) -> None:
    assert talk.call(2, "propose_plan", bed.body())["structuredContent"]["objective_value"] == 115
    children = psutil.Process(talk.process.pid).children(recursive=True)
    assert children
    talk.process.send_signal(number)
    remaining_output, _ = talk.process.communicate(timeout=300)
    assert remaining_output == ""
    wait_for(lambda: not any(child.is_running() for child in children), 20, "its processes have ended")


def test_server_without_a_hub_names_the_settings(tmp_path: Path) -> None:
    unset = dict.fromkeys((name for name in os.environ if name.startswith((ENV_PREFIX, "KUBE"))), None)
    variables = {"HOME": str(tmp_path), "DSF_REDIS_URL": "redis://:hunter2@127.0.0.1:1/0"}
    response = CliRunner().invoke(app, ["mcp"], prog_name="dsf", env={**unset, **variables})
    assert (response.exit_code, response.stdout) == (1, "")
    assert "Set DSF_KUBECONFIG" in response.stderr
    assert "hunter2" not in response.stderr


@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        (">/dev/full", "error: cannot write to standard output: No space left on device"),
        (">&-", "error: cannot write to standard output: Bad file descriptor"),
        ("| true", ""),
    ],
)
def test_unwritable_output_ends_it_without_a_traceback(
    common: dict[str, object], redirection: str, message: str
) -> None:
    lines = json.dumps(INITIALIZE) + "\n"
    process = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -m dsf.cli mcp {redirection}'],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        env=environment(**common),
        timeout=300,
    )
    assert "Traceback" not in process.stderr
    assert process.stderr.strip().endswith(message)
