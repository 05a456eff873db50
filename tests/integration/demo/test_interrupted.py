"""`dsf demo --once` that is ended from outside."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.integration.demo.test_demo import check_nothing_is_left, make_environment
from tests.support.child import Child
from tests.support.wait import wait_for

pytestmark = pytest.mark.xdist_group("demo")


def test_once_is_no_success_without_all_scores(tmp_path: Path) -> None:
    environment = make_environment(tmp_path)
    command = ("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items()))
    # It is not to end by itself before the signal comes.
    code = (
        "from dsf.demo.report import DemoReport; DemoReport.missing = lambda *_: {'all': 'one is missing'}; "
        "from dsf.cli.main import run; run()"
    )
    demo = Child([*command, sys.executable, "-c", code, "demo", "--once"], tmp_path / "demo.log")
    wait_for(lambda: list((tmp_path / "state" / "dsf" / "contexts").glob("*.json")), 60, demo.tail())
    demo.signal(signal.SIGTERM)
    assert demo.wait(120) == 130, demo.tail()
    assert "every cluster has every score" not in demo.tail()
    assert "all processes have ended" in demo.tail()
    assert not list(tmp_path.glob("dsf-demo-*"))
    check_nothing_is_left(environment)
