"""The two versions of a scorer that the demo has for `dsf compare`, and the Placement."""

from __future__ import annotations

from dsf.backtest.scorers import read_summary_from_manifest
from dsf.demo.services import PROMETHEUS_NAME
from dsf.placements.explanation import make_summary
from dsf.placements.situations import read_situations_from_file
from tests.support.uv import ROOT

HERE = ROOT / "demo" / "backtest"


def test_worse_version_queries_a_shorter_range() -> None:
    files = (HERE / f"{name}-scorer.yaml" for name in ("steady", "hasty"))
    steady, hasty = (read_summary_from_manifest(file, None, "worker01") for file in files)
    assert hasty.source_range < steady.source_range
    assert hasty.score_name == steady.score_name
    for scorer_summary in (steady, hasty):
        assert scorer_summary.source_endpoint.startswith(f"http://{PROMETHEUS_NAME}/")
        assert scorer_summary.source_range % scorer_summary.source_step == 0


def test_placement_prefers_the_score_of_both_versions() -> None:
    (situation,) = read_situations_from_file(HERE / "placement.yaml", ["worker01", "worker02"])
    assert make_summary(situation.placement).scores == ["sample-my-score/cpu0"]
    assert sorted(situation.clusters) == ["worker01", "worker02"]
