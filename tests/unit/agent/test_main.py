"""The parts of an agent in combination."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dsf.agent import ticks
from dsf.agent.cycles import AgentCycle
from dsf.agent.main import AgentRuntime
from dsf.api.summary import dump_summaries
from dsf.messages import derive_key, make_run_id
from tests.support.fixtures import SettingsFactory
from tests.unit.agent.test_metrics import scorer


def test_cycles_of_a_removed_scorer_end_as_soon_as_anybody_sees_the_change(
    settings_factory: SettingsFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "on_refused", [])
    key, config = tmp_path / "key", tmp_path / "config"
    key.write_text(derive_key(bytes(32), "c1", 1).dump())
    config.write_text(dump_summaries([scorer("a"), scorer("b")]))
    agent = AgentRuntime(settings_factory(role="agent", cluster="c1", agent_config=config, signing_key_file=key))
    summary = agent.config.get("a")
    assert summary is not None
    cycles = [AgentCycle(name, make_run_id(), summary, time.monotonic() + 600, interval=600) for name in ("a", "b")]
    for cycle in cycles:
        assert agent.cycles._running.register_cycle(cycle)
    config.write_text(dump_summaries([scorer("b")]))
    # A tick of the other scorer also reads the configuration.
    assert agent.config.get("b") is not None
    assert [cycle.deadline <= time.monotonic() for cycle in cycles] == [True, False]
