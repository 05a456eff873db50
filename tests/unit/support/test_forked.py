"""A forked command is what a process is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (("version",), {}),
        (("nonsense",), {}),
        (("status",), {"DSF_REDIS_URL": "nothing://here"}),
        (("status", "--unknown"), {}),
        (("schedule", "list"), {"DSF_LOG_LEVEL": "wrong"}),
        (("history", "x", "-c", "c1"), {"DSF_REDIS_URL": "redis://127.0.0.1:1/0", "DSF_REDIS_CONNECT_TIMEOUT": "1"}),
    ],
)
def test_it_says_and_returns_what_a_process_does(
    arguments: tuple[str, ...], settings: dict[str, str], tmp_path: Path
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    environment = kept | {"COLUMNS": "100", "XDG_STATE_HOME": str(tmp_path)} | settings
    fresh = subprocess.run(
        [sys.executable, "-m", "dsf.cli", *arguments],
        env=environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    made = forked.dsf(arguments, environment)
    assert (made.returncode, made.stdout, made.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert fresh.stdout + fresh.stderr


def test_much_is_whole_and_nothing_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_LOG_LEVEL", "wrong")
    done = forked.dsf(["crds"], {"PYTHONUTF8": "1", "XDG_STATE_HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("---\napiVersion:")
    assert len(done.stdout) > 65_536


def test_what_commands_load_in_their_own_order_is_not_loaded_before_them() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys, tests.support.loaded; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.split()  # fmt: skip
    assert {"dsf.cli.main", "redis", "pydantic"} <= set(told)
    assert {"rich", "structlog", "dsf.celery"}.isdisjoint(told)
