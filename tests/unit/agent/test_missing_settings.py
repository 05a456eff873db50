"""Errors for missing settings of an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.agent.main import AgentRuntime
from dsf.errors import SettingsError
from dsf.messages import derive_key
from tests.support.fixtures import SettingsFactory


@pytest.mark.parametrize("setting", ["cluster", "agent_config", "signing_key_file"])
def test_missing_setting_is_named(settings_factory: SettingsFactory, tmp_path: Path, setting: str) -> None:
    key = tmp_path / "key"
    key.write_text(derive_key(bytes(32), "c1", 1).dump())
    settings: dict[str, object] = {"cluster": "c1", "agent_config": tmp_path / "config", "signing_key_file": key}
    del settings[setting]
    with pytest.raises(SettingsError, match=f"^DSF_{setting.upper()}: "):
        AgentRuntime(settings_factory(role="agent", **settings))
