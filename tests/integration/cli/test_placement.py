"""dsf placement: OCM's scheduler is queried if it is set, and otherwise the result is computed and marked as such."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsf.cli.main import app
from dsf.errors import HttpError, SettingsError
from dsf.placements import reader
from dsf.placements.reader import make_scheduler_client
from dsf.placements.settings import PlacementSettings
from tests.support.httpserver import ScriptedServer, answer

ANSWER = {
    "filteredPiplieResults": [
        {"name": "Predicate", "filteredClusters": ["a", "b", "c"]},
        {"name": "Predicate,TaintToleration", "filteredClusters": ["a", "b"]},
    ],
    "prioritizeResults": [{"name": "Steady", "weight": 1, "scores": {"a": 100, "b": 0}}],
}


def test_scheduler_debugger_is_queried_with_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_TIMEOUT_SECONDS", 60.0)
    token = tmp_path / "token"
    token.write_text("sesame\n")
    with ScriptedServer(answer("no such path", 404)) as server:
        server.script(answer(ANSWER), path="/debug/placements/apps/best")
        scheduler_client = make_scheduler_client(
            PlacementSettings(placement_debugger=server.url + "/", placement_debugger_token_file=token)
        )
        assert scheduler_client is not None
        outcome = scheduler_client.fetch_result("apps", "best")
        assert outcome.passed == {"a", "b"}
        assert outcome.scores == {("Steady", 1): {"a": 100, "b": 0}}
        assert server.requests[-1].headers["Authorization"] == "Bearer sesame"
        with pytest.raises(HttpError):
            scheduler_client.fetch_result("apps", "other")
    with pytest.raises(HttpError):
        scheduler_client.fetch_result("apps", "best")
    token.unlink()
    with pytest.raises(SettingsError, match="DSF_PLACEMENT_DEBUGGER_TOKEN_FILE"):
        scheduler_client.fetch_result("apps", "best")


@pytest.mark.parametrize("arguments", [("--what-if", "c1=5"), ("best", "--score", "a/b")])
def test_options_without_effect_are_usage_errors(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["placement", *arguments], prog_name="dsf")
    assert result.exit_code == 2


def test_scheduler_debugger_is_not_queried_without_configuration() -> None:
    assert make_scheduler_client(PlacementSettings()) is None
