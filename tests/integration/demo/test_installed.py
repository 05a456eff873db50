"""The demo of an installation that has no checkout around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dsf
import dsf.demo
from dsf.settings import ENV_PREFIX


def test_without_the_samples_it_says_at_once_what_to_do(tmp_path: Path) -> None:
    """As from a wheel: the packages alone, in a folder of their own."""
    site = tmp_path / "site-packages"
    for package in (dsf, dsf.demo):
        folder = site / package.__name__.replace(".", "/")
        shutil.copytree(Path(str(package.__file__)).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dsf.cli", "demo", "--once"],
        env=kept
        | {
            "PYTHONPATH": str(site),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    for words in ("samples is not there", "run `make demo` in it", "dsf up --manifests"):
        assert words in said[0]
    assert "Traceback" not in done.stderr
    # Nothing was downloaded or started first.
    assert not (tmp_path / "cache").exists()
    assert not list(tmp_path.glob("dsf-demo-*"))
