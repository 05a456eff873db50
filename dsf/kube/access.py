"""How the API server is reached and what is shown to it: from a pod's ServiceAccount, or from a kubeconfig.

The official client does most of it. Ours is what must last as long as a process: certificates are in memory, for the
client writes those of a kubeconfig to temporary files, which others clean away; changed files are read again.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from urllib3.util.ssl_ import create_urllib3_context

from dsf.errors import SettingsError
from dsf.text import shown_url


def of_pod(configuration: client.Configuration) -> None:
    """The ServiceAccount of this pod. Raises ConfigException."""
    config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    # As client-go does. Proxies are for servers outside: the address of the API server differs by cluster, so that no
    # list of exceptions for all of them can have it.
    configuration.proxy = None


def of_kubeconfig(configuration: client.Configuration, kubeconfig: Path, context: str | None) -> None:
    """A context of a kubeconfig, by default its current one; of several files, separated as in KUBECONFIG, as client-go
    merges them: the first value of each name counts. Raises ConfigException and SettingsError."""
    files = _existing(kubeconfig)
    documents = {file: document for file in files if (document := _read(file))}
    where = ", ".join(map(str, files))
    if not documents:
        raise config.ConfigException(f"the kubeconfig {where} is empty")
    try:
        # The official client merges all but the current context, of which it takes the last one.
        context = context or next(
            filter(None, (document.get("current-context") for document in documents.values())), None
        )
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=os.pathsep.join(map(str, documents)), context=context, client_configuration=configuration
        )
        token_file = _token_file(documents, context)
    except OSError as error:
        raise SettingsError(
            f"the kubeconfig {where}: cannot read {error.filename or where}: {error.strerror}"
        ) from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise SettingsError(f"{where} is no kubeconfig ({type(error).__name__})") from None
    if token_file is not None:
        _reload_token_on_change(configuration, token_file)


def load(file: Path) -> tuple[client.Configuration, Certificates]:
    """Configuration and certificates of a kubeconfig's current context, read now. Raises SettingsError."""
    configuration = client.Configuration()
    try:
        of_kubeconfig(configuration, file, None)
    except config.ConfigException as error:
        raise SettingsError(f"{file}: {str(error).rstrip('.')}") from None
    return configuration, Certificates(configuration)


def _existing(kubeconfig: Path) -> list[Path]:
    """The files of a list, each once. Missing ones are left out, as by client-go. Raises ConfigException if all are."""
    names = dict.fromkeys(text for text in str(kubeconfig).split(os.pathsep) if text)
    files = [Path(name).expanduser() for name in names]
    existing = [file for file in files if file.exists()]
    if not existing:
        raise config.ConfigException(f"the kubeconfig {', '.join(map(str, files))} does not exist")
    return existing


def _read(file: Path) -> dict[str, Any] | None:
    """The document in the file; None if it is empty. Raises SettingsError, which never quotes it."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise SettingsError(f"the kubeconfig {file} is no YAML: {where}{error.problem}") from None
    except yaml.YAMLError:
        raise SettingsError(f"the kubeconfig {file} is no YAML") from None
    except OSError as error:
        raise SettingsError(f"cannot read the kubeconfig {file}: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"the kubeconfig {file} is not UTF-8") from None
    if document is not None and not isinstance(document, dict):
        raise SettingsError(f"{file} is no kubeconfig ({type(document).__name__})")
    return document


def _token_file(documents: Mapping[Path, Mapping[str, Any]], context: str | None) -> Path | None:
    """The file with the token, where the context's user names one."""
    contexts = _entries(documents, "contexts", "context")
    users = _entries(documents, "users", "user")
    if context is None:
        return None
    file, user = users.get(contexts[context][1].get("user"), (Path(), {}))
    token_file = user.get("tokenFile")
    return file.absolute().parent / token_file if token_file else None


def _entries(
    documents: Mapping[Path, Mapping[str, Any]], field: str, name: str
) -> dict[str | None, tuple[Path, Mapping[str, Any]]]:
    """Each entry of a list of all documents by its name, with the first file that has it."""
    entries: dict[str | None, tuple[Path, Mapping[str, Any]]] = {}
    for file, document in documents.items():
        for entry in document.get(field) or ():
            entries.setdefault(entry["name"], (file, entry.get(name) or {}))
    return entries


def _reload_token_on_change(configuration: client.Configuration, file: Path) -> None:
    """Read the token for each request, as client-go does each minute: without spaces around it, and the last one while
    there is none."""

    def read(target: client.Configuration) -> None:
        with contextlib.suppress(OSError, ValueError):
            if token := file.read_text().strip():
                target.api_key["BearerToken"] = f"Bearer {token}"

    read(configuration)
    configuration.refresh_api_key_hook = read  # type: ignore[assignment]


class Certificates:
    """The authority of the API server, and what this process shows to it."""

    def __init__(self, configuration: client.Configuration) -> None:
        """Raises SettingsError when they cannot be used."""
        self._authority = configuration.ssl_ca_cert
        self._own = configuration.cert_file, configuration.key_file
        self._stamps: list[tuple[int, int, int]] = []
        self.context = create_urllib3_context()
        if not configuration.verify_ssl:
            self.context.check_hostname = False
            self.context.verify_mode = ssl.CERT_NONE
        elif self._authority is None:
            self.context.load_default_certs()
        try:
            self._load()
        except (OSError, ValueError) as error:
            # An SSLError is an OSError.
            raise SettingsError(
                f"the certificates for {shown_url(configuration.host)} cannot be used: {error}"
            ) from None

    def refresh(self) -> None:
        """Read changed files again; what was read stays while a file is missing or unfinished."""
        with contextlib.suppress(OSError, ValueError):
            self._load()

    def use_in(self, api: client.ApiClient) -> None:
        """Have this client's connections use them."""
        options: dict[str, Any] = api.rest_client.pool_manager.connection_pool_kw
        # Settings with which urllib3 would load certificates itself.
        for name in ("ca_certs", "ca_cert_data", "cert_file", "key_file"):
            options.pop(name, None)
        options["ssl_context"] = self.context

    def _load(self) -> None:
        stamps = [
            (status.st_ino, status.st_mtime_ns, status.st_size)
            for file in (self._authority, *self._own)
            if file is not None
            for status in [Path(file).stat()]
        ]
        if stamps == self._stamps:
            return
        certificate, key = self._own
        if self._authority is not None:
            self.context.load_verify_locations(self._authority)
        if certificate is not None:
            # Without it, OpenSSL would prompt for the key's password on the terminal.
            self.context.load_cert_chain(certificate, key, password=lambda: b"")
        self._stamps = stamps
