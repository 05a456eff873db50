"""Tokens and keys are read at each use and never printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsf.agent.outbox import SigningKeyFile
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.types import AGENT_SECRETS
from dsf.api.urls import TokenHosts
from dsf.auth.methods import parse_token
from dsf.auth.secrets import SecretError, Use
from dsf.errors import SettingsError
from dsf.messages import derive_key
from dsf.settings import Settings

URL = "http://prometheus.example.com:9090/api/v1/query_range"


@pytest.fixture
def release(settings_factory: Callable[..., Settings]) -> Release:
    """Return a release list that allows the tokens of `my-secret` and `s` for one host."""
    host = ["prometheus.example.com"]
    return Release(
        settings_factory(agent_token_secrets={"my-secret": host, "s": host, **dict.fromkeys(AGENT_SECRETS, host)})
    )


class Tokens:
    """Write Secrets to a folder and return a reader of tokens."""

    def __init__(self, folder: Path | None, release: Release) -> None:
        self._secrets = FileSecrets(folder, release)

    def token(self, name: str, key: str, url: str) -> str:
        return parse_token(self._secrets.get_secret(name, key, Use((url,))), name, key)


def put(folder: Path, name: str, key: str, value: bytes) -> Path:
    path = folder / name / key
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name("draft")
    draft.write_bytes(value)
    draft.rename(path)
    return path


def test_rotation_and_removal_count_at_once(tmp_path: Path, release: Release) -> None:
    tokens = Tokens(tmp_path, release)
    with pytest.raises(SecretError, match="key 'token' of Secret 'my-secret' is missing"):
        tokens.token("my-secret", "token", URL)
    path = put(tmp_path, "my-secret", "token", b"one\n")
    assert tokens.token("my-secret", "token", URL) == "one"
    put(tmp_path, "my-secret", "token", b"two")
    assert tokens.token("my-secret", "token", URL) == "two"
    path.unlink()
    with pytest.raises(SecretError, match="missing"):
        tokens.token("my-secret", "token", URL)


@pytest.mark.parametrize(
    ("name", "key"),
    [("..", "token"), ("a/b", "token"), ("", "token"), ("s", ""), ("s", ".."), ("s", "."), ("s", "a/b"), ("s", "../x"),
     ("/etc", "passwd"), ("s", "a\x00b"), ("S", "token")],
)  # fmt: skip
def test_names_are_no_paths(tmp_path: Path, release: Release, name: str, key: str) -> None:
    (tmp_path / "token").write_text("reached")
    with pytest.raises(SecretError, match="not a possible name"):
        Tokens(tmp_path / "inside", release).token(name, key, URL)


@pytest.mark.parametrize("value", [b"", b"\n", b"two\nlines", b"a b", b"\xff\xfe", "ü".encode(), b"x\r\nInjected: 1"])
def test_invalid_token_is_neither_sent_nor_shown(tmp_path: Path, release: Release, value: bytes) -> None:
    put(tmp_path, "s", "k", value)
    with pytest.raises(SecretError, match=r"^key 'k' of Secret 's' holds no token: expected one line") as caught:
        Tokens(tmp_path, release).token("s", "k", URL)
    assert caught.value.reason == "secret_invalid"


def test_large_file_is_no_token(tmp_path: Path, release: Release) -> None:
    put(tmp_path, "s", "k", b"x" * 100_000)
    with pytest.raises(SecretError, match="holds no token"):
        Tokens(tmp_path, release).token("s", "k", URL)


def test_without_a_folder_the_setting_is_named(release: Release) -> None:
    with pytest.raises(SecretError, match="DSF_AGENT_SECRETS_DIR"):
        Tokens(None, release).token("s", "k", URL)


def test_token_goes_only_to_released_servers(tmp_path: Path, settings_factory: Callable[..., Settings]) -> None:
    tokens = Tokens(tmp_path, Release(settings_factory(agent_token_secrets={"listed": ["https://listed.example"]})))
    for name in ("listed", "marked"):
        put(tmp_path, name, "k", b"one")
    for name, url in (
        ("listed", "http://listed.example/"),
        ("listed", "https://listed.example:444/"),
        ("marked", "https://listed.example/"),
        ("marked", "not a URL"),
        ("marked", "http://user@listed.example/"),
    ):
        with pytest.raises(
            SecretError, match=f"Secret '{name}' is not released for .* usable-for|usable-for"
        ) as caught:
            tokens.token(name, "k", url)
        assert caught.value.reason == "secret_refused"
    assert tokens.token("listed", "k", "https://listed.example/x") == "one"
    # The CA is read at each use, too.
    put(tmp_path, "marked", "usable-for", b"a.example, b.example:81\n")
    assert tokens.token("marked", "k", "http://a.example:99/x") == "one"
    assert tokens.token("marked", "k", "https://b.example:81/x") == "one"
    with pytest.raises(SecretError, match=r"not released for http://b\.example, so it was not sent"):
        tokens.token("marked", "k", "http://b.example/x")
    put(tmp_path, "marked", "usable-for", b"a.example/path")
    with pytest.raises(SecretError, match=r"'a\.example/path' is not a server of the form"):
        tokens.token("marked", "k", "http://a.example:99/x")


def test_administrator_list_is_not_widened_by_bindings(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    hosts_by_secret = {"limited": ["thanos.example"], "open": [], "both": ["thanos.example"]}
    secrets = FileSecrets(tmp_path, Release(settings_factory(agent_token_secrets=hosts_by_secret)))
    for name in hosts_by_secret:
        put(tmp_path, name, "k", b"one")
    put(tmp_path, "both", "usable-for", b"marked.example")
    bound = TokenHosts(["thanos.example", "elsewhere.example"])
    for name, host, is_sent in (
        ("limited", "thanos.example", True),
        ("limited", "elsewhere.example", False),
        # A list without hosts only lets agents read the Secret.
        ("open", "elsewhere.example", True),
        ("both", "marked.example", True),
        ("both", "elsewhere.example", False),
    ):
        use = Use((f"https://{host}/",), bound)
        if is_sent:
            assert secrets.get_secret(name, "k", use) == b"one"
            continue
        with pytest.raises(SecretError, match=r"not released for https://elsewhere\.example") as caught:
            secrets.get_secret(name, "k", use)
        # The error proposes only effective remedies.
        assert "allowedHosts" not in str(caught.value)


@pytest.mark.parametrize("name", ["dynamic-scoring-agent-credentials", "dynamic-scoring-framework-hub-kubeconfig"])
def test_credentials_secrets_of_the_agent_are_never_sent(name: str, tmp_path: Path, release: Release) -> None:
    put(tmp_path, name, "password", b"stolen")
    with pytest.raises(SecretError, match="the agent's own") as caught:
        Tokens(tmp_path, release).token(name, "password", URL)
    assert caught.value.reason == "secret_refused"


def test_invalid_token_secret_list_is_refused_at_start(settings_factory: Callable[..., Settings]) -> None:
    with pytest.raises(SettingsError, match="DSF_AGENT_TOKEN_SECRETS: Secret 's': 'ftp://h' is not a server"):
        Release(settings_factory(agent_token_secrets={"s": ["ftp://h"]}))


def test_keys_from_a_file_are_read_again(settings_factory: Callable[..., Settings], tmp_path: Path) -> None:
    path = tmp_path / "key"
    key_file = SigningKeyFile(settings_factory(signing_key_file=path))
    with pytest.raises(SettingsError, match="DSF_SIGNING_KEY_FILE: cannot be read"):
        key_file.get_key()
    for number in (1, 2):
        key = derive_key(b"x" * 32, "c", number)
        put(tmp_path.parent, tmp_path.name, "key", key.dump().encode() + b"\n")
        assert key_file.get_key() == key
    for wrong in (b"nonsense", b"\xff\xff"):
        path.write_bytes(wrong)
        with pytest.raises(SettingsError, match="DSF_SIGNING_KEY") as caught:
            key_file.get_key()
        assert "nonsense" not in str(caught.value)


def test_unset_signing_key_is_named(settings_factory: Callable[..., Settings]) -> None:
    with pytest.raises(SettingsError, match="DSF_SIGNING_KEY_FILE: not set"):
        SigningKeyFile(settings_factory()).get_key()
