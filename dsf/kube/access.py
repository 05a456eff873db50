"""Reads the API server's address and credentials from a pod's ServiceAccount or from a kubeconfig.

The official client parses both, and writes the certificates of a kubeconfig to temporary files. Other programs may
remove these files while the process runs, so this module keeps the certificates in memory. Changed files are read
again.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from urllib3.util.ssl_ import create_urllib3_context

from dsf.errors import SettingsError
from dsf.text import shorten_url


def load_pod_config(configuration: client.Configuration) -> None:
    """Configure the client with the ServiceAccount of this pod. Raises ConfigException outside of a pod."""
    config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    # Bypass proxies, as client-go does. Each cluster's API server has another address, so that a single NO_PROXY list
    # cannot cover a fleet.
    configuration.proxy = None


def load_kubeconfig(configuration: client.Configuration, kubeconfig: Path, context: str | None) -> None:
    """Configure the client with a context of a kubeconfig, by default the current context.

    Several files, separated as in KUBECONFIG, are merged as by client-go: the first file that defines a name wins.
    Raises ConfigException and SettingsError.
    """
    files = _find_files(kubeconfig)
    documents = {file: document for file in files if (document := _read_document(file))}
    file_names = ", ".join(map(str, files))
    if not documents:
        raise config.ConfigException(f"the kubeconfig {file_names} is empty")
    try:
        # Choose the current context of the first file. The official client would use that of the last file.
        context = context or next(
            filter(None, (document.get("current-context") for document in documents.values())), None
        )
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=os.pathsep.join(map(str, documents)), context=context, client_configuration=configuration
        )
        token_file = _find_token_file(documents, context)
        _check_credentials(documents, context, configuration)
    except config.ConfigException as error:
        # Put the error on one line, because errors of credential commands have several.
        raise config.ConfigException(" ".join(str(error).split())) from None
    except OSError as error:
        raise SettingsError(
            f"the kubeconfig {file_names}: cannot read {error.filename or file_names}: {error.strerror}"
        ) from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise SettingsError(f"{file_names} is no kubeconfig ({type(error).__name__})") from None
    except Exception as error:  # noqa: BLE001
        # Plug-ins of the official client (`auth-provider`) raise their own exceptions.
        raise SettingsError(
            f"the kubeconfig {file_names}: its user has no credentials: {type(error).__name__}"
        ) from None
    if token_file is not None:
        _reload_token_on_change(configuration, token_file)


def load_current_context(file: Path) -> tuple[client.Configuration, Certificates]:
    """Read the configuration and certificates of a kubeconfig's current context. Raises SettingsError."""
    configuration = client.Configuration()
    try:
        load_kubeconfig(configuration, file, None)
    except config.ConfigException as error:
        raise SettingsError(f"{file}: {str(error).rstrip('.')}") from None
    return configuration, Certificates(configuration)


def _find_files(kubeconfig: Path) -> list[Path]:
    """Return the existing files in a path list, without duplicates. Raises ConfigException if none exists.

    Skips missing files, as client-go does.
    """
    names = dict.fromkeys(text for text in str(kubeconfig).split(os.pathsep) if text)
    try:
        files = [Path(name).expanduser() for name in names]
        existing_files = [file for file in files if file.exists()]
    except RuntimeError:
        raise config.ConfigException(f"the kubeconfig {kubeconfig} is in the home directory of nobody") from None
    except OSError as error:
        raise config.ConfigException(f"cannot read the kubeconfig {error.filename}: {error.strerror}") from None
    if not existing_files:
        raise config.ConfigException(f"the kubeconfig {', '.join(map(str, files))} does not exist")
    return existing_files


def _read_document(file: Path) -> dict[str, Any] | None:
    """Return the document in the file; None if the file is empty. Raises SettingsError, without quoting the file."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        position = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise SettingsError(f"the kubeconfig {file} is no YAML: {position}{error.problem}") from None
    except yaml.YAMLError:
        raise SettingsError(f"the kubeconfig {file} is no YAML") from None
    except OSError as error:
        raise SettingsError(f"cannot read the kubeconfig {file}: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"the kubeconfig {file} is not UTF-8") from None
    if document is not None and not isinstance(document, dict):
        raise SettingsError(f"{file} is no kubeconfig ({type(document).__name__})")
    return document


def _find_token_file(documents: Mapping[Path, Mapping[str, Any]], context: str | None) -> Path | None:
    """Return the path of the token file of the context's user; None without a token file."""
    file, user = _find_user(documents, context)
    token_file = user.get("tokenFile")
    return file.absolute().parent / token_file if token_file else None


def _find_user(documents: Mapping[Path, Mapping[str, Any]], context: str | None) -> tuple[Path, Mapping[str, Any]]:
    """Return the file that defines the context's user, and the user; empty ones without a user.

    Raises ConfigException if no file defines the user.
    """
    contexts = _merge_entries(documents, "contexts", "context")
    users = _merge_entries(documents, "users", "user")
    name = contexts[context][1].get("user") if context is not None else None
    if not name:
        return Path(), {}
    if name not in users:
        raise config.ConfigException(f"no user {name!r} is in {', '.join(map(str, documents))}")
    return users[name]


def _check_credentials(
    documents: Mapping[Path, Mapping[str, Any]], context: str | None, configuration: client.Configuration
) -> None:
    """Raise ConfigException for configurations that the official client ignores, so that its requests are anonymous."""
    if not str(configuration.host or "").removeprefix("http").removeprefix("s").strip(":/"):
        raise config.ConfigException(f"the cluster of context {context!r} has no server")
    _, user = _find_user(documents, context)
    token = str(configuration.api_key.get("BearerToken", ""))
    command = (user.get("exec") or {}).get("command")
    if command and not token and not configuration.cert_file:
        raise config.ConfigException(f"the command {command} (exec) gave no credentials; run it to see why")
    if impersonated := [field for field in ("as", "as-uid", "as-groups", "as-user-extra") if user.get(field)]:
        # Reject impersonation, because requests would have the rights of the user itself, who may be an administrator.
        raise config.ConfigException(
            f"the user acts as somebody else ({', '.join(impersonated)}), which needs credentials of that user here"
        )
    if not token.strip().isprintable():
        raise config.ConfigException("the token of the user has a line break or another control character")
    if token != token.strip():
        # Remove the line break at the end of a YAML block.
        _strip_token(configuration)
    if str(configuration.proxy or "").startswith("socks") and find_spec("socks") is None:
        raise config.ConfigException(
            "the proxy (proxy-url, HTTPS_PROXY) is one of SOCKS, which needs `pip install PySocks`"
        )


def _merge_entries(
    documents: Mapping[Path, Mapping[str, Any]], field: str, name: str
) -> dict[str | None, tuple[Path, Mapping[str, Any]]]:
    """Merge the lists in `field` of all documents: name -> (file, entry), with the first entry of each name.

    The entry is the mapping in its field `name`.
    """
    entries: dict[str | None, tuple[Path, Mapping[str, Any]]] = {}
    for file, document in documents.items():
        for entry in document.get(field) or ():
            entries.setdefault(entry["name"], (file, entry.get(name) or {}))
    return entries


def _reload_token_on_change(configuration: client.Configuration, file: Path) -> None:
    """Read the token file before each request. The last token stays in use while the file is missing or empty."""

    def update_token(target: client.Configuration) -> None:
        with contextlib.suppress(OSError, ValueError):
            if token := file.read_text().strip():
                target.api_key["BearerToken"] = f"Bearer {token}"

    update_token(configuration)
    configuration.refresh_api_key_hook = update_token  # type: ignore[assignment]


def _strip_token(configuration: client.Configuration) -> None:
    """Strip white space from the token, also each time the official client has set it again."""
    load_token: Any = configuration.refresh_api_key_hook

    def update_token(target: client.Configuration) -> None:
        if load_token is not None:
            load_token(target)
        target.api_key["BearerToken"] = target.api_key["BearerToken"].strip()
        # Set this function again, because the official client has replaced it by its own.
        target.refresh_api_key_hook = update_token  # type: ignore[assignment]

    update_token(configuration)


class Certificates:
    """The CA of the API server, and the client certificate of this process."""

    def __init__(self, configuration: client.Configuration) -> None:
        """Load the certificates. Raises SettingsError if a certificate is invalid."""
        self._ca_file = configuration.ssl_ca_cert
        self._client_certificate_files = configuration.cert_file, configuration.key_file
        self._stamps: list[tuple[int, int, int]] = []
        self.context = create_urllib3_context()
        # Clear the flag, which Python 3.13 sets by default: it rejects certificates without key identifiers, which API
        # servers of older clusters have.
        self.context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not configuration.verify_ssl:
            self.context.check_hostname = False
            self.context.verify_mode = ssl.CERT_NONE
        elif self._ca_file is None:
            self.context.load_default_certs()
        try:
            self._load()
        except (OSError, ValueError) as error:
            # OSError includes SSLError.
            raise SettingsError(
                f"the certificates for {shorten_url(configuration.host)} cannot be used: {error}"
            ) from None

    def refresh(self) -> None:
        """Read changed files again. Keeps the loaded certificates while a file is missing or incomplete."""
        with contextlib.suppress(OSError, ValueError):
            self._load()

    def configure_client(self, api: client.ApiClient) -> None:
        """Make the connections of an API client use these certificates."""
        options: dict[str, Any] = api.rest_client.pool_manager.connection_pool_kw
        # Remove these options, with which urllib3 would load the certificates itself.
        for name in ("ca_certs", "ca_cert_data", "cert_file", "key_file"):
            options.pop(name, None)
        options["ssl_context"] = self.context

    def _load(self) -> None:
        """Load the files if they have changed. Raises OSError or ValueError."""
        stamps = [
            (status.st_ino, status.st_mtime_ns, status.st_size)
            for file in (self._ca_file, *self._client_certificate_files)
            if file is not None
            for status in [Path(file).stat()]
        ]
        if stamps == self._stamps:
            return
        certificate, key = self._client_certificate_files
        if self._ca_file is not None:
            self.context.load_verify_locations(self._ca_file)
        if certificate is not None:
            # Pass a password function, without which OpenSSL would prompt for the password on the terminal.
            self.context.load_cert_chain(certificate, key, password=lambda: b"")
        self._stamps = stamps
