"""Trusted CAs for https, and client certificates.

Trusts the CAs of certifi, of the system's store, of the files and folders in the common environment variables, of OCM's
`proxyConfig.caBundle`, and of the folder DSF_TRUSTED_CA_DIR. Reads every file of a folder, like programs in Go and
unlike OpenSSL, so that a CA that a pod mounts into /etc/ssl/certs is trusted whatever its name is; only hidden files
are skipped. A request may add CAs for its server alone, and a client certificate, which is loaded without a file on
disk where the system supports files in memory.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import requests.utils
from urllib3.util.ssl_ import create_urllib3_context

import dsf.log
from dsf.errors import HttpError, SettingsError
from dsf.http.access import DEFAULT_TLS, TlsOptions

log = dsf.log.get(__name__)

#: Stores of the distributions Debian, Fedora and RHEL, openSUSE, and Alpine.
_SYSTEM_STORES: Final = (
    Path("/etc/ssl/certs"),
    Path("/etc/pki/tls/certs"),
    Path("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"),
    Path("/etc/ssl/ca-bundle.pem"),
    Path("/etc/ssl/cert.pem"),
)
#: Certificate in PEM. The pattern excludes dashes, which base64 does not contain, because many BEGIN lines without an
#: END line would otherwise take quadratic time.
PEM_CERTIFICATE_PATTERN: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*+-----END CERTIFICATE-----")
#: DER tag of the version in a certificate.
_VERSION_TAG: Final = 0xA0
#: DER tag of UTCTime. The alternative is GeneralizedTime.
_UTC_TIME_TAG: Final = 0x17


class _CaPath(NamedTuple):
    """A file or folder with CAs. Errors of a path are logged only if it `is_required`; other paths may be missing."""

    path: Path
    is_required: bool


_trusted_folder: Path | None = None
_context_lock = threading.Lock()
#: Unusable paths and their problems, so that each is logged once.
_logged_problems: set[tuple[Path, str]] = set()


def use_folder(folder: Path | None) -> None:
    """Trust the CAs in the PEM files of this folder in the whole process, in addition to all others.

    Raises SettingsError if the folder or a file in it cannot be used.
    """
    global _trusted_folder  # noqa: PLW0603 - the folder applies to the whole process
    if folder is not None:
        try:
            for file in _list_files(folder):
                ssl.create_default_context().load_verify_locations(cafile=file)
        except ssl.SSLError as error:
            raise SettingsError(
                f"DSF_TRUSTED_CA_DIR: {file} has no certificate in PEM ({error.reason or error}); remove or mend it"
            ) from None
        except OSError as error:
            raise SettingsError(
                f"DSF_TRUSTED_CA_DIR: cannot read {error.filename or folder}: {error.strerror}"
            ) from None
    _trusted_folder = folder


def get_ssl_context(tls: TlsOptions = DEFAULT_TLS) -> ssl.SSLContext:
    """Return the context for a new connection to a server with the options `tls`.

    Builds a new context within a second after a configured file or folder has changed, because a mounted ConfigMap may
    change while the process runs. In the system's folders it notices only added and removed files. Logs and skips
    unusable configured files. Raises HttpError (secret_invalid) for an unusable certificate in `tls`.
    """
    ca_paths = tuple(_iterate_ca_paths())
    # Drop the server's name, because it belongs to the connection and not to the context.
    tls = replace(tls, server_name="")
    get_context = _get_default_context if tls == DEFAULT_TLS else _get_server_context
    # Take the lock, because threads that start at the same time would each build a context.
    with _context_lock:
        return get_context(tls, ca_paths, _read_file_states(ca_paths, int(time.monotonic())))


def _build_context(tls: TlsOptions, ca_paths: tuple[_CaPath, ...], file_states: tuple[object, ...]) -> ssl.SSLContext:
    """Return a context for servers with the options `tls`. `file_states` is only a part of the caches' keys."""
    del file_states
    if tls.verify:
        ssl_context = _build_verifying_context(ca_paths)
    else:
        ssl_context = create_urllib3_context(cert_reqs=ssl.CERT_NONE)
        ssl_context.check_hostname = False
    if tls.ca and tls.verify:
        try:
            ssl_context.load_verify_locations(
                cadata=b"\n".join(PEM_CERTIFICATE_PATTERN.findall(tls.ca)).decode("ascii")
            )
        except (ValueError, ssl.SSLError):
            raise HttpError("secret_invalid", "the CA of this server (caRef) has no certificate in PEM") from None
    if tls.certificate:
        load_client_certificate(ssl_context, tls.certificate, tls.key)
    return ssl_context


# Two caches, because contexts of servers with their own CAs must not evict the default context. Each context contains
# all CAs, which take some hundred kB.
_get_default_context = lru_cache(maxsize=1)(_build_context)
_get_server_context = lru_cache(maxsize=16)(_build_context)


def _iterate_ca_paths() -> Iterator[_CaPath]:
    yield _CaPath(Path(requests.utils.DEFAULT_CA_BUNDLE_PATH), is_required=True)
    for path in _SYSTEM_STORES:
        yield _CaPath(path, is_required=False)
    # Each variable names a file or a folder. OCM sets CA_BUNDLE_FILE_PATH in agents. SSL_CERT_DIR contains folders,
    # separated by colons.
    variables = "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CA_BUNDLE_FILE_PATH"
    file_names = [os.environ.get(variable, "") for variable in variables]
    for name in [*file_names, *os.environ.get("SSL_CERT_DIR", "").split(":")]:
        if name:
            yield _CaPath(Path(name), is_required=True)
    if _trusted_folder is not None:
        yield _CaPath(_trusted_folder, is_required=True)


@lru_cache(maxsize=1)
def _read_file_states(ca_paths: tuple[_CaPath, ...], second: int) -> tuple[object, ...]:
    """Return the states of all paths, cached for one second.

    The cache is needed because each request reads the states, and a folder may contain hundreds of files. `second` is
    only a part of the cache's key.
    """
    del second
    return tuple(_read_file_state(ca_path) for ca_path in ca_paths)


def _read_file_state(ca_path: _CaPath) -> object:
    """Return a value that changes if the path changes: for a configured folder, if any of its files changes.

    For a system folder only its own modification time counts, because it contains hundreds of files.
    """
    path = ca_path.path
    try:
        paths = [path, *(_list_files(path) if ca_path.is_required and path.is_dir() else ())]
        return tuple((file, (stat := file.stat()).st_mtime_ns, stat.st_size, stat.st_ino) for file in paths)
    except OSError as error:
        return path, error.errno


def _build_verifying_context(ca_paths: tuple[_CaPath, ...]) -> ssl.SSLContext:
    """Return a context with the CAs of all paths. Logs unusable required paths."""
    ssl_context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    # urllib3 sets this flag by default from Python 3.13 on. It rejects CAs without a key usage or key identifiers, such
    # as the CAs that many organisations have made with `openssl req`.
    ssl_context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    loaded_certificates: set[bytes] = set()
    for path, is_required in ca_paths:
        try:
            files = _list_files(path) if path.is_dir() else [path]
        except OSError as error:
            files = []
            if is_required:
                _log_problem(path, error.strerror or str(error))
        for file in files:
            try:
                certificates = PEM_CERTIFICATE_PATTERN.findall(file.read_bytes())
                # Load each certificate once, because the stores repeat them (Debian's store three times), and OpenSSL
                # takes a millisecond for each.
                new_certificates = [
                    certificate for certificate in dict.fromkeys(certificates) if certificate not in loaded_certificates
                ]
                if new_certificates:
                    ssl_context.load_verify_locations(cadata=b"\n".join(new_certificates).decode("ascii"))
                    loaded_certificates.update(new_certificates)
                elif not certificates:
                    raise ValueError("it has no certificate in PEM")
            except (ValueError, OSError) as error:
                if is_required:
                    _log_problem(file, str(error))
    return ssl_context


def _list_files(folder: Path) -> list[Path]:
    # Skip hidden entries, because Kubernetes creates hidden links in mounted volumes.
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _log_problem(path: Path, problem: str) -> None:
    if (path, problem) not in _logged_problems:
        _logged_problems.add((path, problem))
        log.error("trusted CA cannot be used", file=str(path), error=problem)


class Validity(NamedTuple):
    """Validity period of a certificate."""

    begin: datetime
    end: datetime


def load_client_certificate(ssl_context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate and its private key into the context. Raises HttpError (secret_invalid)."""
    with _open_as_file(certificate + b"\n" + key) as path:
        try:
            # Pass an empty password, because OpenSSL otherwise asks for the key's password on the terminal.
            ssl_context.load_cert_chain(path, password=lambda: b"")
        except ssl.SSLError as error:
            problem = error.reason or "it is no PEM"
            if "KEY_VALUES_MISMATCH" in problem:
                problem = "the key is not that of the certificate"
            raise HttpError("secret_invalid", f"the client certificate cannot be used: {problem}") from None
        except (ValueError, OSError):
            raise HttpError(
                "secret_invalid", "the client certificate cannot be used: certificate or key are no PEM"
            ) from None


def parse_validity(certificate: bytes) -> Validity:
    """Return the validity of the first PEM certificate. Raises ValueError without a valid certificate."""
    match = PEM_CERTIFICATE_PATTERN.search(certificate)
    if match is None:
        raise ValueError("no certificate in PEM")
    try:
        return _parse_der_validity(base64.b64decode(match[0].split(b"-----")[2]))
    except (IndexError, ValueError):
        raise ValueError("no certificate in PEM") from None


def _parse_der_validity(data: bytes) -> Validity:
    # Certificate { tbsCertificate { [0] version, serialNumber, signature, issuer, validity { notBefore, notAfter }}}
    _, certificate, _ = _split_element(data)
    _, fields, _ = _split_element(certificate)
    tag, _, fields_after_version = _split_element(fields)
    # The version is optional.
    if tag == _VERSION_TAG:
        fields = fields_after_version
    # Skip serialNumber, signature and issuer.
    for _ in range(3):
        _, _, fields = _split_element(fields)
    _, validity, _ = _split_element(fields)
    begin_tag, begin, remaining_data = _split_element(validity)
    end_tag, end, _ = _split_element(remaining_data)
    return Validity(_parse_time(begin_tag, begin), _parse_time(end_tag, end))


def _split_element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first DER element, and the data after it. Raises ValueError or IndexError."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("it ends too early")
    return tag, data[start : start + length], data[start + length :]


def _parse_time(tag: int, encoded_time: bytes) -> datetime:
    time_text = encoded_time.decode("ascii")
    if tag == _UTC_TIME_TAG:
        # UTCTime has a two-digit year. X.509 assigns years from 50 on to the 20th century.
        time_text = ("19" if int(time_text[:2]) >= 50 else "20") + time_text
    return datetime.strptime(time_text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


@contextmanager
def _open_as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file with the data, because OpenSSL loads client certificates only from files.

    The file is in memory if the system supports that, and a temporary file otherwise.
    """
    if hasattr(os, "memfd_create"):
        descriptor, path = os.memfd_create("dsf-certificate"), ""
    else:
        descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield path or f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
        if path:
            os.unlink(path)
