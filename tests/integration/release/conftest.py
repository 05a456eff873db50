"""All files of a release, made once for the tests of this folder, which run in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.child import ran
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
    done = ran(command)
    if done.returncode:
        failed(done.stderr)
    return folder


@pytest.fixture(scope="session")
def version() -> str:
    """That of this checkout."""
    return ran([ROOT / "scripts" / "version"], check=True).stdout.strip()


def wheel(dist: Path, name: str) -> Path:
    """The wheel of `dynamic-scoring-<name>`."""
    (found,) = dist.glob(f"dynamic_scoring_{name}-*.whl")
    return found
