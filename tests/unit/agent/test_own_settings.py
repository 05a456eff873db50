"""The agent makes its settings those of its process: each is read again as it was."""

from __future__ import annotations

import json
import subprocess
import sys

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
