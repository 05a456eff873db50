"""An agent's settings: what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.agent.main import Runtime
from dsf.errors import SettingsError
from dsf.messages import derive_key
from tests.support.fixtures import SettingsFactory


@pytest.mark.parametrize("missing", ["cluster", "agent_config", "signing_key_file"])
def test_missing_setting_is_named(settings_factory: SettingsFactory, tmp_path: Path, missing: str) -> None:
    key = tmp_path / "key"
    key.write_text(derive_key(bytes(32), "c1", 1).dump())
    given: dict[str, object] = {"cluster": "c1", "agent_config": tmp_path / "config", "signing_key_file": key}
    del given[missing]
    with pytest.raises(SettingsError, match=f"^DSF_{missing.upper()}: "):
        Runtime(settings_factory(role="agent", **given))
