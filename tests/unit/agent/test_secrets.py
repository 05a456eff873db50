"""Tokens and keys: read when they are used, never shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsf.agent.secrets import KeyRing, SecretError, Tokens
from dsf.errors import SettingsError
from dsf.messages import derive_key
from dsf.settings import Settings


def put(folder: Path, name: str, key: str, value: bytes) -> Path:
    path = folder / name / key
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name("draft")
    draft.write_bytes(value)
    draft.rename(path)
    return path


def test_rotation_and_removal_count_at_once(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    with pytest.raises(SecretError, match="key 'token' of Secret 'my-secret' is missing"):
        tokens.token("my-secret", "token")
    path = put(tmp_path, "my-secret", "token", b"one\n")
    assert tokens.token("my-secret", "token") == "one"
    put(tmp_path, "my-secret", "token", b"two")
    assert tokens.token("my-secret", "token") == "two"
    path.unlink()
    with pytest.raises(SecretError, match="missing"):
        tokens.token("my-secret", "token")


def test_no_reference_is_no_token(tmp_path: Path) -> None:
    assert Tokens(tmp_path).token("", "") is None
    assert Tokens(None).token("", "") is None


@pytest.mark.parametrize(
    ("name", "key"),
    [("..", "token"), ("a/b", "token"), ("", "token"), ("s", ""), ("s", ".."), ("s", "."), ("s", "a/b"), ("s", "../x"),
     ("/etc", "passwd"), ("s", "a\x00b"), ("S", "token")],
)  # fmt: skip
def test_names_are_no_paths(tmp_path: Path, name: str, key: str) -> None:
    (tmp_path / "token").write_text("reached")
    with pytest.raises(SecretError, match="not a possible name"):
        Tokens(tmp_path / "inside").token(name, key)


@pytest.mark.parametrize("value", [b"", b"\n", b"two\nlines", b"a b", b"\xff\xfe", "ü".encode(), b"x\r\nInjected: 1"])
def test_what_is_no_token_is_not_sent_and_not_shown(tmp_path: Path, value: bytes) -> None:
    put(tmp_path, "s", "k", value)
    with pytest.raises(SecretError, match=r"^key 'k' of Secret 's' holds no token: expected one line"):
        Tokens(tmp_path).token("s", "k")


def test_a_large_file_is_no_token(tmp_path: Path) -> None:
    put(tmp_path, "s", "k", b"x" * 100_000)
    with pytest.raises(SecretError, match="holds no token"):
        Tokens(tmp_path).token("s", "k")


def test_without_a_folder_the_setting_is_named() -> None:
    with pytest.raises(SecretError, match="DSF_AGENT_SECRETS_DIR"):
        Tokens(None).token("s", "k")


def test_keys_from_a_file_are_read_again(settings_factory: Callable[..., Settings], tmp_path: Path) -> None:
    path = tmp_path / "key"
    keyring = KeyRing(settings_factory(signing_key_file=path))
    with pytest.raises(SettingsError, match="DSF_SIGNING_KEY_FILE: cannot be read"):
        keyring.key()
    for number in (1, 2):
        key = derive_key(b"x" * 32, "c", number)
        put(tmp_path.parent, tmp_path.name, "key", key.dump().encode() + b"\n")
        assert keyring.key() == key
    for wrong in (b"nonsense", b"\xff\xff"):
        path.write_bytes(wrong)
        with pytest.raises(SettingsError, match="DSF_SIGNING_KEY") as caught:
            keyring.key()
        assert "nonsense" not in str(caught.value)


def test_a_key_from_the_environment(settings_factory: Callable[..., Settings]) -> None:
    key = derive_key(b"x" * 32, "c", 1)
    assert KeyRing(settings_factory(signing_key=key.dump())).key() == key
    with pytest.raises(SettingsError, match="DSF_SIGNING_KEY_FILE: not set"):
        KeyRing(settings_factory()).key()
