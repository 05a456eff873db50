"""Readiness of an agent: it is ready while it scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from structlog.testing import capture_logs

from dsf.agent.metrics import ScoringProbe
from dsf.api.summary import ScorerSummary


class Config:
    """A delivered configuration: intervals by scorer."""

    problem = ""
    loaded_at = 0.0

    def __init__(self) -> None:
        self.intervals: dict[str, int] = {}

    def get_summaries(self) -> Mapping[str, ScorerSummary]:
        return MappingProxyType(
            {
                name: ScorerSummary(name=name, score_name=name, scoring_interval=interval)
                for name, interval in self.intervals.items()
            }
        )

    def get(self, scorer: str) -> ScorerSummary | None:
        return self.get_summaries().get(scorer)


class ProbedAgent:
    def __init__(self, file: Path) -> None:
        self.now = 1000.0
        self.file = file
        self.config = Config()
        self.probe = ScoringProbe(file, self.config, lambda: self.now)

    def ready(self, after: float = 0.0) -> bool:
        self.now += after
        self.probe.refresh()
        return self.file.exists()


@pytest.fixture
def world(tmp_path: Path) -> ProbedAgent:
    return ProbedAgent(tmp_path / "ready")


def test_without_scorers_it_is_ready_while_it_consumes(world: ProbedAgent) -> None:
    assert not world.ready()
    world.probe.set_consuming(True)
    assert world.ready()
    assert world.ready(1e6)
    world.probe.set_consuming(False)
    assert not world.file.exists(), "that is seen at once"
    assert not world.ready()


def test_scorer_has_three_intervals_from_start_and_after_each_success(world: ProbedAgent) -> None:
    world.config.intervals = {"a": 60}
    world.probe.set_consuming(True)
    assert world.ready()
    assert world.ready(179)
    assert not world.ready(2)
    world.probe.record_success("a", 60)
    assert world.ready()
    assert world.ready(179)
    world.probe.record_success("a", 60)
    assert world.ready(179)
    assert not world.ready(2)


def test_readiness_uses_an_overridden_interval(world: ProbedAgent) -> None:
    world.config.intervals = {"a": 60}
    world.probe.set_consuming(True)
    world.probe.record_success("a", 600)
    assert world.ready(1799)
    assert not world.ready(2)


def test_single_working_scorer_is_enough_and_removed_scorers_are_ignored(world: ProbedAgent) -> None:
    world.config.intervals = {"a": 60, "b": 60}
    world.probe.set_consuming(True)
    assert world.ready()
    world.probe.record_success("a", 6000)
    assert world.ready(1000)
    world.config.intervals = {"b": 60}
    assert not world.ready()
    # Without scorers, no scorer can fail.
    world.config.intervals = {}
    assert world.ready()


def test_short_interval_scorer_has_ten_seconds(world: ProbedAgent) -> None:
    world.config.intervals = {"a": 1}
    world.probe.set_consuming(True)
    world.probe.record_success("a", 1)
    assert world.ready(9)
    assert not world.ready(2)


def test_success_does_not_make_a_non_consuming_agent_ready(world: ProbedAgent) -> None:
    world.config.intervals = {"a": 60}
    world.probe.set_consuming(True)
    world.probe.set_consuming(False)
    world.probe.record_success("a", 60)
    assert not world.ready()
    world.probe.set_consuming(True)
    assert world.ready()


def test_stale_readiness_file_is_removed_at_start_and_end(world: ProbedAgent) -> None:
    world.file.touch()
    world.config.intervals = {"a": 60}
    world.probe.set_consuming(False)
    assert not world.file.exists()
    world.probe.set_consuming(True)
    assert world.ready()
    world.probe.set_consuming(False)
    assert not world.file.exists()


def test_unwritable_readiness_file_is_reported_and_retried(tmp_path: Path) -> None:
    world = ProbedAgent(tmp_path / "missing" / "ready")
    with capture_logs() as logs:
        world.probe.set_consuming(True)
        assert not world.ready()
        assert not world.ready()
    assert [entry["event"] for entry in logs] == ["readiness file cannot be written"]
    world.file.parent.mkdir()
    assert world.ready()


def test_never_read_configuration_is_not_ready(world: ProbedAgent) -> None:
    world.probe.set_consuming(True)
    world.config.problem = "403: configmaps is forbidden"
    assert not world.ready()
    world.config.loaded_at = 1.0
    assert world.ready()
