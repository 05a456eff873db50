"""Trusted CAs for https: public ones, the system's, and the operator's.

The union of: certifi's, the system's store, the files and folders that the usual environment variables name, OCM's
`proxyConfig.caBundle`, and the folder DSF_TRUSTED_CA_DIR. Like Go's programs, and unlike OpenSSL, every file of a
folder is read, whatever its name: a CA that a pod mounts into /etc/ssl/certs is trusted. A request may add CAs for
its server alone, and a client certificate, which is loaded without a file on disk.
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
from dsf.http.access import USUAL_TLS, TlsOptions

log = dsf.log.get(__name__)

#: Where distributions keep their store: Debian, Fedora and RHEL, openSUSE, Alpine.
_SYSTEM: Final = (
    Path("/etc/ssl/certs"),
    Path("/etc/pki/tls/certs"),
    Path("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"),
    Path("/etc/ssl/ca-bundle.pem"),
    Path("/etc/ssl/cert.pem"),
)
#: A certificate in PEM. Base64 has no dash: without one, many beginnings without an end would take time squared.
CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*+-----END CERTIFICATE-----")


class _Place(NamedTuple):
    """A file or a folder. Errors are logged if it is named."""

    path: Path
    is_named: bool


_folder: Path | None = None
_lock = threading.Lock()
#: Unusable files that were logged, so that each is logged once.
_logged: set[tuple[Path, str]] = set()


def use_folder(folder: Path | None) -> None:
    """Trust the CAs in the PEM files of this folder as well, in the whole process.

    Raises SettingsError when the folder or a file in it cannot be used.
    """
    global _folder  # noqa: PLW0603 - one per process, as with the aliases of hosts
    if folder is not None:
        try:
            for file in _files(folder):
                ssl.create_default_context().load_verify_locations(cafile=file)
        except ssl.SSLError as error:
            raise SettingsError(
                f"DSF_TRUSTED_CA_DIR: {file} has no certificate in PEM ({error.reason or error}); remove or mend it"
            ) from None
        except OSError as error:
            raise SettingsError(
                f"DSF_TRUSTED_CA_DIR: cannot read {error.filename or folder}: {error.strerror}"
            ) from None
    _folder = folder


def context(tls: TlsOptions = USUAL_TLS) -> ssl.SSLContext:
    """Return the context for a new connection; `tls` is specific to its server.

    Rebuilt within a second after a file has changed: a mounted ConfigMap does so while the process runs. An unusable
    file is logged and left out. Raises HttpError (secret_invalid) for a certificate of `tls` that cannot be used.
    """
    places = tuple(_places())
    # The name is the connection's, not the context's.
    tls = replace(tls, server_name="")
    make_context = _usual if tls == USUAL_TLS else _own
    # Threads that begin at once would each make one.
    with _lock:
        return make_context(tls, places, _states(places, int(time.monotonic())))


def _made(tls: TlsOptions, places: tuple[_Place, ...], states: tuple[object, ...]) -> ssl.SSLContext:
    """Return the context for servers with these options while the `states` of the places are the same."""
    del states
    if tls.verify:
        ssl_context = _context(places)
    else:
        ssl_context = create_urllib3_context(cert_reqs=ssl.CERT_NONE)
        ssl_context.check_hostname = False
    if tls.ca and tls.verify:
        try:
            ssl_context.load_verify_locations(cadata=b"\n".join(CERTIFICATE.findall(tls.ca)).decode("ascii"))
        except (ValueError, ssl.SSLError):
            raise HttpError("secret_invalid", "the CA of this server (caRef) has no certificate in PEM") from None
    if tls.certificate:
        load_identity(ssl_context, tls.certificate, tls.key)
    return ssl_context


# Each context has all CAs, which are some hundred kB. Contexts of servers with their own CAs do not displace the one of
# all others.
_usual = lru_cache(maxsize=1)(_made)
_own = lru_cache(maxsize=16)(_made)


def _places() -> Iterator[_Place]:
    yield _Place(Path(requests.utils.DEFAULT_CA_BUNDLE_PATH), is_named=True)
    for path in _SYSTEM:
        yield _Place(path, is_named=False)
    # Each names a file or a folder; OCM sets the last one in agents. SSL_CERT_DIR has a colon between folders.
    variables = "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CA_BUNDLE_FILE_PATH"
    file_names = [os.environ.get(variable, "") for variable in variables]
    for name in [*file_names, *os.environ.get("SSL_CERT_DIR", "").split(":")]:
        if name:
            yield _Place(Path(name), is_named=True)
    if _folder is not None:
        yield _Place(_folder, is_named=True)


@lru_cache(maxsize=1)
def _states(places: tuple[_Place, ...], second: int) -> tuple[object, ...]:
    """As of this second: a folder may have hundreds of files, and each request asks."""
    del second
    return tuple(_state(place) for place in places)


def _state(place: _Place) -> object:
    """Differs when a place has changed. System folders are not listed: they have hundreds of files."""
    path = place.path
    try:
        paths = [path, *(_files(path) if place.is_named and path.is_dir() else ())]
        return tuple((file, (stat := file.stat()).st_mtime_ns, stat.st_size, stat.st_ino) for file in paths)
    except OSError as error:
        return path, error.errno


def _context(places: tuple[_Place, ...]) -> ssl.SSLContext:
    ssl_context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    loaded: set[bytes] = set()
    for path, is_named in places:
        try:
            files = _files(path) if path.is_dir() else [path]
        except OSError as error:
            files = []
            if is_named:
                _log_problem(path, error.strerror or str(error))
        for file in files:
            try:
                # The stores repeat CAs, Debian's three times, and OpenSSL takes a millisecond for each.
                certificates = CERTIFICATE.findall(file.read_bytes())
                if new := [certificate for certificate in dict.fromkeys(certificates) if certificate not in loaded]:
                    ssl_context.load_verify_locations(cadata=b"\n".join(new).decode("ascii"))
                    loaded.update(new)
                elif not certificates:
                    raise ValueError("it has no certificate in PEM")
            except (ValueError, OSError) as error:
                if is_named:
                    _log_problem(file, str(error))
    return ssl_context


def _files(folder: Path) -> list[Path]:
    # Hidden ones are Kubernetes' own links.
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _log_problem(path: Path, problem: str) -> None:
    if (path, problem) not in _logged:
        _logged.add((path, problem))
        log.error("trusted CA cannot be used", file=str(path), error=problem)


class Period(NamedTuple):
    """Validity of a certificate."""

    begin: datetime
    end: datetime


def load_identity(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load this certificate into the context. Raises HttpError (secret_invalid)."""
    with _as_file(certificate + b"\n" + key) as path:
        try:
            # Otherwise a key's password is asked for on the terminal.
            context.load_cert_chain(path, password=lambda: b"")
        except ssl.SSLError as error:
            why = error.reason or "it is no PEM"
            if "KEY_VALUES_MISMATCH" in why:
                why = "the key is not that of the certificate"
            raise HttpError("secret_invalid", f"the client certificate cannot be used: {why}") from None
        except (ValueError, OSError):
            raise HttpError(
                "secret_invalid", "the client certificate cannot be used: certificate or key are no PEM"
            ) from None


def period(certificate: bytes) -> Period:
    """Validity of the first PEM certificate. Raises ValueError when there is none."""
    match = CERTIFICATE.search(certificate)
    if match is None:
        raise ValueError("no certificate in PEM")
    try:
        return _period(base64.b64decode(match[0].split(b"-----")[2]))
    except (IndexError, ValueError):
        raise ValueError("no certificate in PEM") from None


def _period(data: bytes) -> Period:
    # Certificate { tbsCertificate { [0] version, serialNumber, signature, issuer, validity { notBefore, notAfter }}}
    _, certificate, _ = _element(data)
    _, rest, _ = _element(certificate)
    tag, _, after = _element(rest)
    if tag == 0xA0:
        # A version.
        rest = after
    for _ in range(3):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    kind, begin, rest = _element(validity)
    last_kind, end, _ = _element(rest)
    return Period(_time(kind, begin), _time(last_kind, end))


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first DER element, and the rest."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("it ends too early")
    return tag, data[start : start + length], data[start + length :]


def _time(tag: int, text: bytes) -> datetime:
    time_text = text.decode("ascii")
    if tag == 0x17:
        # UTCTime: a two-digit year, by the rule of X.509.
        time_text = ("19" if int(time_text[:2]) >= 50 else "20") + time_text
    return datetime.strptime(time_text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """The data as a file, as OpenSSL requires; in memory where the system supports that."""
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
