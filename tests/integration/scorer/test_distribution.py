"""The library alone: its wheel in a new virtual environment, without the framework and what that needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.support.uv import ROOT, built, uv

PACKAGE = ROOT / "packages" / "dsf-scorer"

_PROGRAM = """
import importlib.util
import dsf.scorer
from starlette.routing import Route

assert {framework} == (dsf.__file__ is not None), dsf.__file__
for name in ("celery", "redis", "kubernetes", "requests", "pandas"):
    assert importlib.util.find_spec(name) is None, name

app = dsf.scorer.Scorer(name="a", description="b", score_name="c", interval=1)
app.score(lambda series: [])
paths = app.app.api.openapi()["paths"]
assert set(paths) == {{"/config", "/scoring", "/healthz", "/metrics"}}, paths
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built through the source distribution, so that this one is whole too."""
    return built(PACKAGE, tmp_path_factory.mktemp("dist"))


def test_it_has_the_library_and_its_check_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    files = (path for path in (PACKAGE / "dsf").rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    assert names == {str(path.relative_to(PACKAGE)) for path in files}
    assert {name.split("/")[1] for name in names} == {"scorer", "conformance"}
    assert "dsf/scorer/py.typed" in names
    assert licenses


def test_its_metadata_say_what_an_index_shows(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = message_from_bytes(archive.read(name))
    assert found["Author"]
    assert found["Summary"]
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_all("Project-URL")
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert "dsf.scorer" in str(found.get_payload())


def test_it_works_alone_and_beside_the_framework(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    uv("venv", "--quiet", "--python", sys.executable, str(environment))
    python = environment / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", str(python), str(wheel))
    (packages,) = environment.glob("lib/python*/site-packages")
    for framework in (False, True):
        if framework:
            # What makes the difference of the framework: a package where there was a namespace.
            shutil.copy2(ROOT / "dsf" / "__init__.py", packages / "dsf")
        program = _PROGRAM.format(framework=framework)
        done = subprocess.run(
            [str(python), "-I", "-c", program], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
