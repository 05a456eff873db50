"""The demo of an installation that has no checkout around it."""

from __future__ import annotations

from pathlib import Path

from dsf.demo.extras import EXTRAS
from tests.integration.demo.test_demo import PAIRS, check_nothing_is_left, make_environment
from tests.support.child import ran
from tests.support.uv import ROOT, built, environment

#: What the processes of the demo load.
LOADED = (
    *("celery.bin.celery", "dsf.agent.main", "dsf.demo.command", "dsf.exporter.app", "dsf.hub.main"),
    *("dsf.results.worker", "dsf.schedule.dispatch", "dsf.scorer", "dsf.web.main", "flower.command", "uvicorn"),
)
PACKAGES = (ROOT, ROOT / "demo", ROOT / "packages" / "dsf-scorer")


def test_once_from_wheels_in_an_empty_environment(tmp_path: Path) -> None:
    wheels = [built(package, tmp_path / f"dist{number}") for number, package in enumerate(PACKAGES)]
    programs = environment(tmp_path / "environment", *wheels)
    variables = make_environment(tmp_path)
    # They begin at once: each would compile what the others compile just then.
    ran([programs / "python", "-c", f"import {', '.join(LOADED)}"], env=variables, cwd=tmp_path, check=True)
    # A busy machine may need more than the minute that a person's has.
    code = "import dsf.demo.command; dsf.demo.command.ONCE_TIMEOUT = 200; from dsf.cli.main import run; run()"
    done = ran(
        [programs / "python", "-c", code, "demo", "--once", "--with", ",".join(EXTRAS)],
        env=variables,
        cwd=tmp_path,
        timeout=270,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every cluster has every score" in done.stderr
    assert "Traceback" not in done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0][:5] == ["CLUSTER", "SCORER", "ITEMS", "LOW", "HIGH"]
    extra = [(cluster, one.sample) for cluster in ("worker01", "worker02") for one in EXTRAS.values()]
    assert [(row[0], row[1]) for row in rows[1:]] == sorted([*PAIRS, *extra])
    assert all(int(row[2]) >= 1 and -100 <= int(row[3]) <= int(row[4]) <= 100 for row in rows[1:])
    # A demo that is not kept leaves neither folder nor context.
    assert not list(tmp_path.glob("dsf-demo-*"))
    assert not list((tmp_path / "state" / "dsf" / "contexts").iterdir())
    check_nothing_is_left(variables)
