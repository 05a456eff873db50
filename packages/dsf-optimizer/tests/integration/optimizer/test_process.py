"""`dsf optimizer` and `dsf optimize` as processes, against a real API server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import requests
from typer.testing import CliRunner, Result

from dsf.cli.main import app
from dsf.settings import ENV_PREFIX
from tests.support import forked
from tests.support.child import Child
from tests.support.redisserver import RedisServer
from tests.support.wait import PATIENCE, wait_for

from .bed import POWER, OptimizerHarness


def environment(bed: OptimizerHarness, **values: object) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
    test_variables = {f"{ENV_PREFIX}{name.upper()}": str(value) for name, value in values.items()}
    return variables | {"KUBECONFIG": str(bed.plane.kubeconfig), "PYTHONUNBUFFERED": "1"} | test_variables


@pytest.fixture
def optimize(bed: OptimizerHarness, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`dsf optimize` in this process, by somebody who may do everything."""
    monkeypatch.setenv("KUBECONFIG", str(bed.plane.kubeconfig))
    return lambda *arguments: CliRunner().invoke(app, ["optimize", *arguments], prog_name="dsf")


@contextmanager
def served(bed: OptimizerHarness, folder: Path, **settings: object) -> Iterator[tuple[Child, str]]:
    """The server as a process, and its URL."""
    command = [sys.executable, "-m", "dsf.cli", "optimizer", "--auth", "none", "--port", "0"]
    child = forked.child(command, folder / "log", environment(bed, log_format="json", **settings), inherit=False)
    try:
        listening = wait_for(lambda: re.search(r'"port": ?(\d+)', child.tail()), 60, "the optimizer listens")
        url = f"http://127.0.0.1:{listening.group(1)}"
        wait_for(lambda: _is_ready(url), 30, child.tail())
        yield child, url
    finally:
        child.kill()


def _solver_of(child: Child) -> int:
    """Return the process id of a server's solver, which was started with it; 0 if there is none."""
    children = psutil.Process(child.pid).children()
    return next((child.pid for child in children if any("spawn_main" in part for part in child.cmdline())), 0)


def test_plan_request_times_out_while_busy_and_sigterm_ends_a_running_search(
    bed: OptimizerHarness, tmp_path: Path
) -> None:
    with served(bed, tmp_path, optimizer_time_limit=1) as (child, url), ThreadPoolExecutor(2) as threads:
        # The search does not end by itself.
        os.kill(wait_for(lambda: _solver_of(child), 30, "the solver"), signal.SIGSTOP)
        requested_plans = [
            threads.submit(requests.post, f"{url}/optimize", json=bed.body(), timeout=300) for _ in range(2)
        ]
        finished, unfinished = wait(requested_plans, timeout=300, return_when=FIRST_COMPLETED)
        (busy,) = (future.result() for future in finished)
        assert (busy.status_code, busy.json()["title"]) == (503, "No plan")
        assert "other plans have been written for 1 s by now; try again" in busy.json()["detail"]
        child.signal(signal.SIGTERM)
        assert child.wait() == 0, child.tail()
        (cut,) = (future.result(PATIENCE) for future in unfinished)
        assert (cut.status_code, cut.json()["title"]) == (503, "No plan")
        assert cut.json()["detail"] == "the optimiser is shutting down, no plan was made; try again"
        assert "Traceback" not in child.log.read_text()
    assert bed.objects() == {}


def test_service_plans_and_ends_despite_a_failing_redis(bed: OptimizerHarness, tmp_path: Path) -> None:
    with RedisServer() as server, served(bed, tmp_path, redis_url=server.url) as (child, url):
        document = requests.get(f"{url}/openapi.json", timeout=300).json()
        assert document["paths"]["/optimize"]["post"]["responses"]["200"]["content"]["application/json"]["example"]
        assert document["components"]["schemas"]["OptimizeParams"]["examples"]
        assert requests.post(f"{url}/optimize", json=bed.body(), timeout=300).json()["applied"] is True
        server.kill()
        response = requests.post(f"{url}/optimize", json=bed.body(POWER), timeout=300)
        assert (response.status_code, response.json()["applied"], response.json()["objective_value"]) == (
            200,
            True,
            170,
        )
        assert bed.bound() == [bed.policy("enable-mig-2g", 0), bed.policy("enable-mig-2g", 1)]
        log = child.log.read_text()
        assert "the change cannot be recorded" in log
        assert "the plan cannot be stored for the page" in log
        response = requests.post(f"{url}/reset", json={"namespace": bed.namespace}, timeout=300)
        assert (response.status_code, len(response.json()["deleted"])) == (200, 6)
        child.signal(signal.SIGTERM)
        assert child.wait() == 0, child.tail()
    assert bed.objects() == {}


def _is_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=300).status_code == 200
    except requests.ConnectionError:
        return False


def test_open_service_on_a_public_address_is_refused(bed: OptimizerHarness, tmp_path: Path) -> None:
    for overrides, message in (
        ({"optimizer_auth": "none", "listen_host": "0.0.0.0"}, "every client could move workloads"),
        ({"kubeconfig": tmp_path / "none"}, "no Kubernetes API server is configured"),
    ):
        process = forked.dsf(["optimizer", "--port", "0"], environment(bed, **overrides), timeout=300)
        assert (process.returncode, process.stdout) == (1, "")
        assert message in process.stderr
        assert "Traceback" not in process.stderr


def test_optimize_command_plans_applies_and_resets(
    bed: OptimizerHarness, optimize: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "params.json"
    file.write_text(json.dumps(bed.body()))
    picture = tmp_path / "plan.png"
    result = optimize("-f", str(file), "--dry-run", "--plot", str(picture))
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.search(r"mwrs-app01 +\S+ +3g\.48gb +60 +\S+ with 3g\.48gb \(60\): is worth the same", result.stdout)
    assert "Optimal, sum of scores 115" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert bed.objects() == {}
    command = [sys.executable, "-m", "dsf.cli", "optimize", "-f", "-", "-o", "json"]
    body = json.dumps(bed.body())
    process = subprocess.run(
        command, env=environment(bed), input=body, capture_output=True, text=True, timeout=300, check=False
    )
    report = json.loads(process.stdout)
    assert (process.returncode, report["applied"], report["objective_value"]) == (0, True, 115)
    assert len(bed.objects()) == 6
    # The file is YAML and has one workload too many.
    file.write_text(json.dumps(bed.body(clusters=bed.body()["clusters"][:1])))
    yaml_result = optimize("-f", str(file), "-o", "yaml", "--dry-run")
    assert yaml_result.exit_code == 1
    assert "reason: capacity" in yaml_result.stdout
    result = optimize("--reset", bed.namespace, "--dry-run")
    assert (result.exit_code, result.stdout.count("would be deleted")) == (0, 6)
    assert len(bed.objects()) == 6
    undone = optimize("--reset", bed.namespace)
    assert (undone.exit_code, undone.stdout.count("deleted")) == (0, 6)
    assert "no plan is in force" in optimize("--reset", bed.namespace).stdout


def test_optimize_command_reports_errors(
    bed: OptimizerHarness, optimize: Callable[..., Result], tmp_path: Path
) -> None:
    bed.service().apply(bed.params())
    in_force = bed.versions()
    params = tmp_path / "params.yaml"
    params.write_text("namespace: default\nclusters: []\n")
    for arguments, code, message in (
        ([], 2, "give either --file or --reset"),
        (["-f", str(tmp_path / "none.json")], 1, "No such file"),
        (["-f", str(params)], 1, "targetWorkloads: Field required"),
        (["-f", str(params), "--plot", "plan.gif", "--reset", "default"], 2, "give either"),
        # A shell variable that is not set must not reset every namespace.
        (["--reset", ""], 2, "'' is not a valid namespace name"),
        (["--reset", ".."], 2, "'..' is not a valid namespace name"),
        (["--reset", bed.namespace, "--plot", "plan.png"], 2, "not allowed with --reset, which draws no plan"),
    ):
        result = optimize(*arguments)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert message in re.sub(r"[\s│]+", " ", result.stderr)
    params.write_text(json.dumps(bed.body()))
    result = optimize("-f", str(params), "--plot", str(tmp_path / "plan.gif"))
    assert (result.exit_code, "the name has to end in" in result.stderr) == (1, True)
    assert bed.versions() == in_force
