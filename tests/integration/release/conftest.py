"""All files of a release, made once for the tests of this folder, which run in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.uv import ROOT, failed

#: The index that a release before this one has left.
EARLIER = """
apiVersion: v1
entries:
  dynamic-scoring-framework:
    - {apiVersion: v2, name: dynamic-scoring-framework, version: 0.0.9, digest: abc, urls: [https://example.com/0.0.9.tgz]}
"""


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` fills."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    index = folder.parent / "index.yaml"
    index.write_text(EARLIER)
    command = (sys.executable, str(ROOT / "scripts" / "artefacts"), str(folder), str(index))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        failed(done.stderr)
    return folder


@pytest.fixture(scope="session")
def version() -> str:
    """That of this checkout."""
    return subprocess.run([ROOT / "scripts" / "version"], capture_output=True, text=True, check=True).stdout.strip()


def wheel(dist: Path, name: str) -> Path:
    """The wheel of `dynamic-scoring-<name>`."""
    (found,) = dist.glob(f"dynamic_scoring_{name}-*.whl")
    return found
