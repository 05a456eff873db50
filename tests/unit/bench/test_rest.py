"""The chart's memory requests follow the benches' figures of processes at rest."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench.common import ROOT
from bench.rest import measure_processes
from tests.support import chart

#: Share of the memory at rest that is requested in addition, and MiB to which a request may be rounded up.
QUARTER, ROUNDING = 1.25, 8.0
#: Processes that need most of their memory for their work, whose requests are higher.
GROWING = {"optimizer"}


def _section(process: str) -> dict[str, Any]:
    section: dict[str, Any] = chart.DEFAULTS["spokeSetting"]["agent"] if process == "agent" else chart.DEFAULTS[process]
    return section


def _request(process: str) -> float:
    """Return the requested MiB of memory."""
    quantity = _section(process)["resources"]["requests"]["memory"]
    assert quantity.endswith("Mi"), quantity
    return float(quantity.removesuffix("Mi"))


def _documented() -> dict[str, float]:
    """Return MiB at rest by process, of docs/benchmarks.md."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    text = page.partition("## Memory at rest\n")[2].partition("\n## ")[0]
    return {name: float(value) for name, value in re.findall(r"^\| (\w+)[^|]* \| ([0-9.]+) \|$", text, re.MULTILINE)}


def test_requests_are_the_documented_memory_at_rest_and_a_quarter() -> None:
    documented = _documented()
    assert documented.keys() == {"hub", *chart.SERVICES, "flower", "optimizer", "agent"}
    wrong_requests = {
        process: (_request(process), QUARTER * memory)
        for process, memory in documented.items()
        if _request(process) < QUARTER * memory
        or (process not in GROWING and _request(process) > QUARTER * memory + ROUNDING)
    }
    assert wrong_requests == {}


@pytest.mark.whole
def test_processes_at_rest_take_less_than_the_chart_requests() -> None:
    memory = measure_processes(8.0)
    assert memory.keys() == _documented().keys()
    assert {process: mib for process, mib in memory.items() if mib > _request(process)} == {}
