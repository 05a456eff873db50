"""Tokens and the signing key: files that Kubernetes mounts, read when they are used, so that rotation needs nothing.

A token is known to this module and to the request that carries it. It is in no message, log or exception.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from dsf.agent.files import WatchedFile
from dsf.errors import SettingsError
from dsf.keys import is_name
from dsf.messages import SigningKey
from dsf.settings import Settings

#: Bytes of a token; more is some other file.
_MAX_TOKEN_BYTES = 64 * 1024
#: What Kubernetes allows as a key of a Secret. A key of dots only would be a path.
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_TOKEN = re.compile(r"[!-~]+")


class TokenSource(Protocol):
    """Where tokens come from. Implementations are thread-safe."""

    def token(self, name: str, key: str) -> str | None:
        """The token as of now; None when the scorer names no Secret. Raises SecretError."""


class KeySource(Protocol):
    """Where the agent's signing key comes from. Implementations are thread-safe."""

    def key(self) -> SigningKey:
        """The key to sign with, as of now. Raises SettingsError."""


class SecretError(Exception):
    """There is no usable token; the message names Secret and key, and never what is in them."""


class Tokens:
    """Tokens in a folder of mounted Secrets: `<folder>/<secret name>/<key>`."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[tuple[str, str], WatchedFile[str]] = {}

    def token(self, name: str, key: str) -> str | None:
        """The token as of now; None when the scorer names no Secret. Raises SecretError."""
        if not name and not key:
            return None
        label = secret_label(name, key)
        if self._folder is None:
            raise SecretError(f"{label} is needed, but this agent has no Secrets; set DSF_AGENT_SECRETS_DIR")
        file = self._files.get((name, key))
        if file is None:
            file = WatchedFile(self._folder / name / key, parse_token, max_bytes=_MAX_TOKEN_BYTES)
            self._files[name, key] = file
        try:
            return file.read()
        except OSError:
            # Forget it: after a deletion the old token must not stay in memory.
            self._files.pop((name, key), None)
            raise SecretError(
                f"{label} is missing on the managed cluster; create it in the agent's namespace"
            ) from None
        except ValueError:
            raise SecretError(f"{label} holds no token: expected one line of printable ASCII") from None


def secret_label(name: str, key: str) -> str:
    """How a key of a Secret is named to people. Raises SecretError when it cannot exist: a name may become a path."""
    label = f"key {key!r} of Secret {name!r}"
    if not is_name(name) or _KEY.fullmatch(key) is None or not key.strip("."):
        raise SecretError(f"{label} is not a possible name; correct the tokenSecretRef")
    return label


def parse_token(data: bytes) -> str:
    """The token in what a Secret holds. Raises ValueError (without the text) when it is none."""
    text = data.decode("ascii").strip()
    if _TOKEN.fullmatch(text) is None:
        raise ValueError
    return text


class KeyRing:
    """The agent's own signing key, as of now."""

    def __init__(self, settings: Settings) -> None:
        self._fixed = settings.signing_key
        self._file: WatchedFile[SigningKey] | None = None
        if settings.signing_key_file is not None:
            self._file = WatchedFile(
                settings.signing_key_file, lambda data: SigningKey.parse(data.decode()), max_bytes=_MAX_TOKEN_BYTES
            )
        self._parsed = SigningKey.parse(self._fixed.get_secret_value()) if self._fixed and self._file is None else None

    def key(self) -> SigningKey:
        """The key to sign with. Raises SettingsError naming the variable."""
        if self._parsed is not None:
            return self._parsed
        if self._file is None:
            raise SettingsError(
                "DSF_SIGNING_KEY_FILE: not set; it is the file with the agent's key `<id>:<hex>` that the hub delivers"
            )
        try:
            return self._file.read()
        except OSError as error:
            raise SettingsError(f"DSF_SIGNING_KEY_FILE: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError("DSF_SIGNING_KEY_FILE: not a signing key, expected `<id>:<hex>`") from None
