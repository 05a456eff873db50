"""Settings are read from the environment; an unusable setting is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.errors import SettingsError
from dsf.placements.settings import PlacementSettings
from dsf.settings import Settings, find_unknown_variables, list_settings_classes
from tests.support.fixtures import SettingsFactory


def test_explicit_setting_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_CLUSTER", "there")
    monkeypatch.setenv("DSF_LISTEN_PORT", "1234")
    settings = Settings(cluster="here")
    assert (settings.cluster, settings.listen_port) == ("here", 1234)
    assert settings.model_fields_set >= {"cluster", "listen_port"}


def test_settings_of_other_distributions_are_known_and_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PlacementSettings in list_settings_classes()
    assert find_unknown_variables(
        {"DSF_PLACEMENT_DEBUGGER": "", "DSF_AGENT_OBJECTS": "", "DSF_OPTIMIZER_AUTHS": ""}
    ) == ["DSF_OPTIMIZER_AUTHS"]
    monkeypatch.setenv("DSF_PLACEMENT_DEBUGGER", "debugger:8080")
    with pytest.raises(SettingsError, match=r"^wrong setting: DSF_PLACEMENT_DEBUGGER: "):
        PlacementSettings.load()


def test_lists_and_objects_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_HOST_NAMES", '["a", "b"]')
    monkeypatch.setenv("DSF_AGENT_TOKEN_SECRETS", '{"token": ["prometheus"]}')
    settings = Settings.load()
    assert (settings.host_names, settings.agent_token_secrets) == (["a", "b"], {"token": ["prometheus"]})


def test_null_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chart renders a list without a value this way."""
    monkeypatch.setenv("DSF_HOST_NAMES", "null")
    monkeypatch.setenv("DSF_AGENT_TOKEN_SECRETS", "null")
    assert (Settings.load().host_names, Settings.load().agent_token_secrets) == ([], {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "valid dictionary, as JSON: "),
        ('{"a": "b"}', "valid list (in 'a'), as JSON: "),
    ],
)
def test_lists_in_objects_are_shown_whole(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setenv("DSF_AGENT_TOKEN_SECRETS", text)
    with pytest.raises(SettingsError) as caught:
        Settings.load()
    example = '{"a": ["b"]}'
    assert str(caught.value) == f"wrong setting: DSF_AGENT_TOKEN_SECRETS: Input should be a {words}{example}"
    # The shown value is valid.
    monkeypatch.setenv("DSF_AGENT_TOKEN_SECRETS", example)
    assert Settings.load().agent_token_secrets == {"a": ["b"]}


@pytest.mark.parametrize("text", ["a,b", '["a"', "[" * 100_000, '{"a": 1}'])
def test_invalid_json_setting_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DSF_HOST_NAMES", text)
    with pytest.raises(
        SettingsError, match=r"^wrong setting: DSF_HOST_NAMES: Input should be a valid list, as JSON: \["
    ):
        Settings.load()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"auths": []}', '{"password": "sesame"}', "[" * 100_000])
def test_invalid_pull_secret_is_refused_and_not_shown(
    text: str, tmp_path: Path, settings_factory: SettingsFactory
) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match="AGENT_PULL_SECRET_FILE: ") as caught:
        settings_factory(role="hub", agent_pull_secret_file=file).resolved_agent_pull_secret()
    assert "sesame" not in str(caught.value)


def test_non_text_secret_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"\xff\xfe")
    settings = Settings(signing_secret_file=file)
    with pytest.raises(SettingsError, match=r"DSF_SIGNING_SECRET_FILE: .*secret is no text in UTF-8"):
        settings.resolved_signing_secret()
