"""Secrets that sources and scoring APIs require: mounted files, read at each use, so that rotation needs no restart.

Messages, logs and exceptions never contain the value of a Secret.

The author of a DynamicScorer names a Secret and the server that receives its content. Therefore a Secret is usable only
if an admin of its cluster or of the hub released it for that server. The agent's own Secrets are never usable.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dsf.agent.config import read_limited
from dsf.api.authentication import CaKind
from dsf.api.types import AGENT_SECRETS
from dsf.api.urls import NO_HOSTS, TokenHosts, get_base_url, is_valid_url
from dsf.auth.secrets import SecretError, Token, Use
from dsf.errors import SettingsError
from dsf.http.trust import PEM_CERTIFICATE_PATTERN
from dsf.keys import is_name
from dsf.settings import Settings

#: Maximum bytes of the value of a Secret's key. The largest expected value is a CA bundle.
_MAX_VALUE_BYTES: Final = 1024 * 1024
#: Name of the file, beside the keys of a mounted Secret, that lists the servers to which the Secret may be sent.
USABLE_FOR_FILE: Final = "usable-for"
#: Pattern of the keys that Kubernetes allows in a Secret. `format_secret_key` rejects dots only (a path).
_KEY_PATTERN = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def find_token_folder(out_dir: Path, cluster: str) -> Path:
    """Return the folder of a cluster's tokens with a folder-backed hub. It is beside the hub's output, not below it."""
    return out_dir.parent / "_secrets" / cluster


class Release:
    """Decides to which servers a Secret may be sent. The hub's admin lists servers, and so does the Secret itself."""

    def __init__(self, settings: Settings) -> None:
        """Parse the hub admin's list. Raises SettingsError if it is not valid."""
        self._hosts_by_secret: dict[str, TokenHosts] = {}
        for name, hosts in settings.agent_token_secrets.items():
            try:
                self._hosts_by_secret[name] = TokenHosts(hosts)
            except ValueError as error:
                raise SettingsError(f"DSF_AGENT_TOKEN_SECRETS: Secret {name!r}: {error}") from None

    def check(self, name: str, key: str, use: Use, servers: str, location: str, *, is_bindable: bool = True) -> None:
        """Raise SecretError unless the Secret may be used for all URLs of `use`.

        `servers` is the list of servers on the Secret itself, which may be empty. `location` tells in messages where an
        admin edits this list. The binding of a ScoringAuthentication counts only if neither the Secret nor the hub's
        admin names servers, and only for a Secret that `is_bindable`.
        """
        label = f"key {key!r} of Secret {name!r}"
        try:
            hosts = TokenHosts.split(servers)
        except ValueError as error:
            raise SecretError(f"{label} cannot be sent anywhere: {location}: {error}", "secret_refused") from None
        listed_hosts = self._hosts_by_secret.get(name, NO_HOSTS)
        is_bindable = is_bindable and not hosts and not listed_hosts
        for url in use.urls:
            if hosts.allow(url) or listed_hosts.allow(url) or (is_bindable and use.hosts.allow(url)):
                continue
            server = get_base_url(url) if is_valid_url(url) else "what is no URL of a server"
            binding = ", or to allowedHosts of a ScoringAuthentication in the hub's namespace" if is_bindable else ""
            raise SecretError(
                f"{label} is not released for {server}, so it was not sent there: if it may be, an admin adds the "
                f"server to {location}{binding}",
                "secret_refused",
            )


class FileSecrets:
    """Reads Secrets and ConfigMaps that are mounted as `<folder>/<name>/<key>`.

    Implements dsf.auth.secrets.SecretSource. The file `usable-for` beside the keys lists the allowed servers.
    """

    def __init__(self, folder: Path | None, release: Release) -> None:
        self._folder = folder
        self._release = release

    def get_secret(self, name: str, key: str, use: Use) -> bytes:
        """Return the value of a Secret's key. Raises SecretError if it is missing or not released for this use."""
        label = format_secret_key(name, key)
        folder = self._find_folder(name, key, label)
        usable_for_file = folder / USABLE_FOR_FILE
        try:
            servers = usable_for_file.read_text()
        except (OSError, ValueError):
            servers = ""
        self._release.check(name, key, use, servers, f"the file {usable_for_file}")
        return self._read(name, key, label)

    def get_certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        """Return the PEM certificates in a key of a Secret or ConfigMap. Raises SecretError if there are none."""
        label = format_secret_key(name, key, kind)
        self._find_folder(name, key, label)
        return extract_certificates(self._read(name, key, label), label)

    def request_account_token(self, audience: str, seconds: int, deadline: float) -> Token:
        """Raise SecretError, because no ServiceAccount exists outside of a cluster."""
        del seconds
        raise SecretError(
            f"a token of the agent's ServiceAccount for {audience!r} needs an agent that runs with DSF_AGENT_KUBE=true"
        )

    def _find_folder(self, name: str, key: str, label: str) -> Path:
        """Return the folder of a Secret or ConfigMap. Raises SecretError if it does not exist."""
        if self._folder is None:
            raise SecretError(f"{label} is needed, but this agent has no Secrets; set DSF_AGENT_SECRETS_DIR")
        folder = self._folder / name
        if not folder.is_dir():
            raise SecretError(f"{label} is missing; its place is the file {folder / key}")
        return folder

    def _read(self, name: str, key: str, label: str) -> bytes:
        path = (self._folder or Path()) / name / key
        try:
            return read_limited(path, _MAX_VALUE_BYTES)
        except OSError:
            raise SecretError(f"{label} is missing; its place is the file {path}") from None
        except ValueError:
            raise SecretError(f"{label} has more than {_MAX_VALUE_BYTES} bytes", "secret_invalid") from None


def format_secret_key(name: str, key: str, kind: CaKind = CaKind.Secret) -> str:
    """Return the display name of a key of a Secret or ConfigMap.

    Raises SecretError if the name or the key is not valid, because each may become a path, or if the Secret is the
    agent's own.
    """
    label = f"key {key!r} of {kind} {name!r}"
    if not is_name(name) or _KEY_PATTERN.fullmatch(key) is None or not key.strip("."):
        raise SecretError(f"{label} is not a possible name; correct it in the DynamicScorer")
    if name in AGENT_SECRETS:
        raise SecretError(f"{label} is the agent's own and never sent anywhere", "secret_refused")
    return label


def extract_certificates(data: bytes, label: str) -> bytes:
    """Return only the PEM certificates in `data`, so that no other content of the Secret stays in memory.

    Raises SecretError if there is no certificate. `label` names the key in the message.
    """
    certificates = PEM_CERTIFICATE_PATTERN.findall(data)
    if not certificates:
        raise SecretError(f"{label} has no certificate in PEM", "secret_invalid")
    return b"\n".join(certificates) + b"\n"
