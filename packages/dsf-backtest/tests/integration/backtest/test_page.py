"""docs/backtest.md works as it is written, with a Prometheus that has a day of the past for each cluster.

Only ports are replaced, because others may use them. Commands in pods and beside a demo are not typed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.document import Command, File, parse_steps
from tests.support.recordedprometheus import RecordedPrometheus
from tests.support.scoringservices import ROOT

PAGE = ROOT / "docs" / "backtest.md"
#: Need pods, a running demo, or a hub.
NOT_TYPED = ("kubectl ", "dsf compare demo/", "dsf compare before.jsonl")


@pytest.fixture(scope="module")
def printed_outputs(
    past: dict[str, RecordedPrometheus], sample_scorer: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Command of the page -> its output."""
    folder = tmp_path_factory.mktemp("page")
    urls = {"http://localhost:9091": past["worker01"].url, "http://localhost:9092": past["worker02"].url}
    urls["http://localhost:8000"] = sample_scorer
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    environment |= {"PATH": path, "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}
    outputs: dict[str, str] = {}
    for step in parse_steps(PAGE):
        if isinstance(step, File):
            (folder / step.path).write_text(step.text, encoding="utf-8")
            continue
        assert isinstance(step, Command)
        if step.text.startswith(NOT_TYPED):
            continue
        text = re.sub(r"http://localhost:\d+", lambda match: urls[match[0]], step.text)
        process = subprocess.run(
            ["/bin/bash", "-euc", text],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert process.returncode == 0, f"{step.text}: {process.stdout}{process.stderr}"
        outputs[step.text] = process.stdout
    return outputs


def test_documented_backtests_have_a_value_at_every_moment(printed_outputs: dict[str, str]) -> None:
    backtests = {text: output for text, output in printed_outputs.items() if text.startswith("dsf backtest")}
    assert len(backtests) == 5
    for text, output in backtests.items():
        title, _, row, *notes = output.splitlines()
        assert "289 of 289 moments" in title, output
        assert title.rstrip().endswith("289 ok")
        assert row.split()[0] == ("busy_blend" if "blend.yaml" in text else "busy")
        assert notes == [], text


def test_documented_comparison_shows_that_the_hasty_version_moves_workloads(printed_outputs: dict[str, str]) -> None:
    (output,) = [output for text, output in printed_outputs.items() if text.startswith("dsf compare")]
    placement_match = re.search(
        r"Placement apps/web: (\d+) of 2[89]\d decisions differ; flaps (\S+) -> (\S+) a day", output
    )
    assert placement_match is not None, output
    assert int(placement_match[1]) > 20
    # The slow wave crosses twice a day, and rounded values meet some times more around that.
    assert float(placement_match[2]) <= 15
    assert float(placement_match[3]) > 3 * float(placement_match[2])
    assert "rank correlation" in output


def test_documented_output_matches_the_printed_output(printed_outputs: dict[str, str]) -> None:
    """Times and counts are of another day; words, columns and their order are these."""
    page = PAGE.read_text(encoding="utf-8")
    for output in printed_outputs.values():
        for line in output.splitlines():
            words = re.findall(r"[A-Za-z]{3,}", line)
            assert any(re.findall(r"[A-Za-z]{3,}", page_line) == words for page_line in page.splitlines()), line
