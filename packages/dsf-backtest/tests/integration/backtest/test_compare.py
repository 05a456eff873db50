"""`dsf compare` of scores as they are now, and of scorers of a hub on a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis
import yaml

from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.backtest.recording import Recording
from tests.integration.cli.conftest import Dsf, dsf, fleet
from tests.integration.exporter.fleet import Fleet
from tests.support.httpserver import ScriptedServer, answer, matrix
from tests.support.scoringservices import ROOT

from ...unit.backtest.test_summary import QUESTION, record

__all__ = ["dsf", "fleet"]

PLACEMENT = ROOT / "demo" / "backtest" / "placement.yaml"


def test_compare_shows_current_scores(dsf: Dsf, fleet: Fleet, redis_client: redis.Redis, tmp_path: Path) -> None:
    del redis_client
    result = dsf("compare", "sample-scorer", "sample-scorer", "--placement", str(PLACEMENT))
    assert result.exit_code == 0, result.output
    assert "Placement apps/web: with B the same clusters" in result.stdout
    assert "A sample-scorer, B sample-scorer on worker01, worker02: now" in result.stdout
    unknown = dsf("compare", "sample-scorer", "nobody")
    assert unknown.exit_code == 1
    assert "nobody" in unknown.stderr
    needs = dsf("compare", str(tmp_path / "a.yaml"), "sample-scorer")
    assert needs.exit_code == 2
    assert "--since" in needs.output


def test_compare_without_a_common_item_says_what_there_is(dsf: Dsf, tmp_path: Path) -> None:
    files = []
    for name, items in (("nodes", {"n1": 5, "n2": 7}), ("pods", {"p1": 5}), ("nothing", {})):
        files.append(tmp_path / f"{name}.jsonl")
        with Recording(files[-1], writing=True) as recording:
            recording.begin_question(QUESTION)
            recording.add_record(record(3000, items))
    nodes, pods, nothing = map(str, files)
    result = dsf("compare", nodes, pods)
    assert result.exit_code == 1, result.output
    expected = f"note: no item is in both: {nodes} has n1, n2, {pods} has p1; items are compared by name, so give both"
    assert expected in result.stdout.replace("\n", " ")
    # There is no table without rows.
    assert "LARGEST" not in result.stdout
    assert f"{nothing} has no items" in dsf("compare", nodes, nothing).stdout.replace("\n", " ")
    report = json.loads(dsf("compare", nodes, pods, "-o", "json").stdout)
    assert (report["items"], len(report["notes"])) == ([], 1)


def test_compare_without_the_scheduler_names_the_missing_package(
    dsf: Dsf, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsf.backtest.comparison.entry_points", lambda group: ())
    extra = "this needs the extra `optimizer`: pip install 'dynamic-scoring-framework[optimizer]'"
    result = dsf("compare", "sample-scorer", "sample-scorer", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["notes"] == [f"which Placements would have chosen otherwise: {extra}"]
    result = dsf("compare", "sample-scorer", "sample-scorer", "--placement", str(PLACEMENT))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: --placement: {extra}" in result.stderr


def test_compare_notes_a_missing_placement(
    dsf: Dsf, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(answer({"items": []})) as server:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "c",
        }
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        monkeypatch.setenv("DSF_KUBECONFIG", str(kubeconfig))
        result = dsf("compare", "sample-scorer", "sample-scorer", "--placement", "apps/gone")
    assert result.exit_code == 1
    assert "note: there is no Placement 'apps/gone' (any more); `dsf placement` lists them" in result.stdout
    # The existing clusters are compared nevertheless.
    assert "CLUSTER   ITEM" in result.stdout
    assert "worker02" in result.stdout


def test_compare_reads_two_scorers_of_a_hub_on_a_folder(
    dsf: Dsf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cluster is tested with the summary that was delivered to it."""
    monkeypatch.setenv("DSF_OUT_DIR", str(tmp_path))
    with (
        ScriptedServer(matrix({"metric": {"node": "n1"}, "values": [[1, "1"]]})) as source,
        ScriptedServer(answer({"results": [{"metric": {"node": "n1"}, "score": 3}]})) as first,
        ScriptedServer(answer({"results": [{"metric": {"node": "n1"}, "score": 8}]})) as second,
    ):
        for cluster in ("worker01", "worker02"):
            folder = tmp_path / "clusters" / cluster
            folder.mkdir(parents=True)
            summaries = [
                ScorerSummary(
                    name=name,
                    score_name=name,
                    source_type="Prometheus",
                    source_endpoint=f"{source.url}/{cluster}",
                    source_query="up",
                    source_range=60,
                    source_step=15,
                    scoring_endpoint=f"{server.url}/scoring",
                    scoring_interval=30,
                    score_dimension_format="${node}",
                )
                for name, server in (("before", first), ("after", second))
            ]
            manifest = {"kind": "ConfigMap", "data": {"summaries": dump_summaries(summaries)}}
            (folder / "dynamic-scoring-config.yaml").write_text(yaml.safe_dump(manifest))
        result = dsf("compare", "before", "after", "--since", "10m", "--every", "1m", "--rate", "1000", "-o", "json")
        assert {request.path.partition("?")[0] for request in source.requests} == {"/worker01", "/worker02"}
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["clusters"] == ["worker01", "worker02"]
    assert [(item["cluster"], item["meanDifference"]) for item in report["items"]] == [("worker01", 5), ("worker02", 5)]


def test_compare_aligns_recordings_of_different_intervals(dsf: Dsf, tmp_path: Path) -> None:
    sides = []
    for every, moments in ((300, range(3000, 6001, 300)), (60, range(3240, 6241, 60))):
        file = tmp_path / f"{every}.jsonl"
        sides.append(str(file))
        with Recording(file, writing=True) as recording:
            recording.begin_question(QUESTION.model_copy(update={"every": every}))
            for at in moments:
                recording.add_record(record(at, {"n": 1}))
    result = dsf("compare", *sides, "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert not [note for note in report["notes"] if "to come" in note]
    [first], [second] = report["backtestsA"], report["backtestsB"]
    assert (first["notes"], second["notes"]) == ([], [])
    assert (first["moments"], first["asked"]) == (10, 10)
    assert (second["moments"], second["asked"]) == (47, 47)
