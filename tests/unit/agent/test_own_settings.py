"""An agent's settings: what is missing is named, and each is read again as it was where it becomes the process's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsf.agent.main import Runtime
from dsf.errors import SettingsError
from dsf.messages import derive_key
from tests.conftest import SettingsFactory

_SAY = """
from dsf.agent.main import _own
from dsf.settings import Settings
given = Settings.load()
own = _own(given)
assert own.role == "agent"
wrong = [name for name in given.model_fields_set - {"role"} if getattr(own, name) != getattr(given, name)]
print(wrong)
"""
_GIVEN = {
    "CLUSTER": "c1",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "REDIS_USERNAME": "a b'\"",
    "AGENT_OBJECTS": json.dumps(["pods", "deployments.apps"]),
    "AGENT_TOKEN_SECRETS": json.dumps({"token": ["prometheus"]}),
}


def test_each_setting_is_read_again_as_it_was() -> None:
    environment = {f"DSF_{name}": value for name, value in _GIVEN.items()}
    done = subprocess.run(
        [sys.executable, "-c", _SAY], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("missing", ["cluster", "agent_config", "signing_key_file"])
def test_a_missing_setting_is_named(settings_factory: SettingsFactory, tmp_path: Path, missing: str) -> None:
    key = tmp_path / "key"
    key.write_text(derive_key(bytes(32), "c1", 1).dump())
    given: dict[str, object] = {"cluster": "c1", "agent_config": tmp_path / "config", "signing_key_file": key}
    del given[missing]
    with pytest.raises(SettingsError, match=f"^DSF_{missing.upper()}: "):
        Runtime(settings_factory(role="agent", **given))
