"""What may be a pull Secret for managed clusters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsf.errors import SettingsError
from dsf.settings import Settings


@pytest.mark.parametrize("text", ["", "{", "[]", '{"auths": []}', '{"password": "sesame"}', "[" * 100_000])
def test_what_is_no_pull_secret_is_refused_and_not_shown(
    text: str, tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match="AGENT_PULL_SECRET_FILE: ") as caught:
        settings_factory(role="hub", agent_pull_secret_file=file).resolved_agent_pull_secret()
    assert "sesame" not in str(caught.value)
