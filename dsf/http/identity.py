"""Client certificates in memory: validation and loading without a file on disk."""

from __future__ import annotations

import base64
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, NamedTuple

from dsf.errors import HttpError

#: A certificate in PEM. Base64 has no dash: without one, many beginnings without an end would take time squared.
CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*+-----END CERTIFICATE-----")
#: The ASN.1 tags that are used.
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


class Period(NamedTuple):
    """Validity of a certificate."""

    begin: datetime
    end: datetime


def load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
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
    if tag == _VERSION:
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
    shown = text.decode("ascii")
    if tag == _UTC_TIME:
        # Two-digit year, by the rule of X.509.
        shown = ("19" if int(shown[:2]) >= 50 else "20") + shown
    return datetime.strptime(shown, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


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
