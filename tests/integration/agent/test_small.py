"""An agent in the environment of its image: omitted modules can be neither imported nor are they needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.integration.agent.conftest import AgentFactory
from tests.integration.agent.harness import summary
from tests.support.httpserver import ScriptedServer

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

#: All packages of an agent. Each package added here is in every agent of a fleet.
NEEDED = {
    "celery",
    "h11",
    "kombu",
    "kubernetes",
    "prometheus-client",
    "pydantic",
    "pydantic-settings",
    "pyyaml",
    "redis",
    "requests",
    "rich",
    "structlog",
    "typer",
    "uvicorn",
    "websocket-client",
}
#: Further packages of a plain installation, for the exporter, the page and Flower.
FOR_THE_HUB = {"cryptography", "fastapi", "flower", "jinja2"}
#: Modules that are not in its image: of the extras, and what the Dockerfile takes out. `cryptography` may be there, for
#: tokens of clouds.
EXTRAS = ("cryptography", "matplotlib", "mcp", "numpy", "pandas", "highspy")
LEFT_OUT = tuple(name.replace("-", "_") for name in re.findall(r"--no-install-package ([a-z0-9-]+)", DOCKERFILE))

#: Python reads it at its start. Modules below a name of the list cannot be imported.
_ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {names!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def image_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started from here on find no more than in the image."""
    folder = tmp_path / "absent"
    folder.mkdir()
    names = (*EXTRAS, *LEFT_OUT, "kubernetes.aio")
    (folder / "sitecustomize.py").write_text(_ABSENT.format(names=names))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), str(ROOT))))


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False, cwd="/"
    )


def test_base_dependencies_match_the_lists_of_agent_and_hub() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    base = {re.split(r"[^A-Za-z0-9_-]", dependency)[0].lower() for dependency in dependencies}
    assert base == NEEDED | FOR_THE_HUB
    assert "kubernetes/aio" in DOCKERFILE
    assert {"aiohttp", "prompt_toolkit", *(FOR_THE_HUB - {"cryptography"})} <= set(LEFT_OUT)


@pytest.mark.usefixtures("image_like")
def test_agent_without_optional_packages_completes_a_cycle(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    agent = make_agent()
    agent.configure(summary("sample", f"{source.url}/api/v1/query_range", f"{scorer.url}/scoring"))
    agent.start()
    agent.tick("sample")
    assert agent.result().outcome == "ok"


@pytest.mark.usefixtures("image_like")
def test_agent_modules_import_without_optional_packages() -> None:
    sources_package = ROOT / "packages" / "dsf-sources" / "dsf"
    folders = [
        ROOT / "dsf" / "agent",
        ROOT / "dsf" / "sources",
        sources_package / "otlp",
        sources_package / "owncluster",
    ]
    files = [path for folder in folders for path in folder.glob("*.py") if path.stem != "__main__"]
    names = [".".join(("dsf", path.parent.name, path.stem)) for path in files]
    assert {"dsf.agent.main", "dsf.sources.registry", "dsf.otlp.plugin", "dsf.owncluster.kubelisting"} <= set(names)
    names += ["dsf.cli.explain", "dsf.cli.dryrun", "dsf.backtest.commands.replay"]
    code = (
        "import importlib\nfrom typer.testing import CliRunner\nfrom dsf.cli.main import app\n"
        f"for name in {json.dumps(names)}: importlib.import_module(name)\n"
        "for words in (['--help'], ['explain', '--help'], ['backtest', '--help']):\n"
        "    done = CliRunner().invoke(app, words)\n    assert done.exit_code == 0\n    print(done.stdout)"
    )
    process = _python("-c", code)
    assert process.returncode == 0, process.stderr
    assert "explain" in process.stdout


@pytest.mark.usefixtures("image_like")
def test_hub_commands_in_the_agent_image_name_the_missing_package() -> None:
    packages = {"hub": "fastapi", "flower": "flower", "optimizer": "starlette"}
    code = (
        "from typer.testing import CliRunner\nfrom dsf.cli.main import app\n"
        f"for command in {[*packages]}:\n"
        "    done = CliRunner().invoke(app, [command])\n    assert done.exit_code == 1\n    print(done.stderr.strip())"
    )
    process = _python("-c", code)
    assert process.stdout.splitlines() == [
        f"error: this needs {package}, which the agent's image leaves out: use the hub's image, or pip install "
        "dynamic-scoring-framework"
        for package in packages.values()
    ], process.stderr
