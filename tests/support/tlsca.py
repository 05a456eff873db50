"""A certificate authority for tests, made with the `openssl` program."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

_CONFIG = """
[ca]
default_ca = this
[this]
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = anything
copy_extensions = copy
unique_subject = no
[anything]
commonName = supplied
[req]
distinguished_name = names
prompt = no
[names]
commonName = {name}
[v3_ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[plain]
basicConstraints = CA:TRUE
"""


class Certificate(NamedTuple):
    """Files in PEM."""

    cert: Path
    key: Path


class TestCa:
    """A certificate authority with its files in `folder`."""

    #: Prevents pytest from collecting this class.
    __test__ = False

    def __init__(self, folder: Path, name: str = "test CA", extensions: str = "v3_ca") -> None:
        """Create the authority. `extensions` is v3_ca, or plain for a CA without key usage and key identifiers."""
        self._extensions = extensions
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._number = 0
        self.cert = folder / "ca.crt"
        self._key = folder / "ca.key"
        self._config = folder / "ca.cnf"
        self._config.write_text(_CONFIG.format(folder=folder, name=name))
        (folder / "index.txt").touch()
        self._sign_itself(*_new_key(self._key))

    def renew(self) -> None:
        """Create the authority's certificate again, with its name and key."""
        self._sign_itself("-key", str(self._key))

    def _sign_itself(self, *key: str) -> None:
        _openssl(
            *("req", "-x509", "-config", str(self._config), "-extensions", self._extensions, "-days", "2"),
            *(*key, "-out", str(self.cert)),
        )

    def issue(
        self, *names: str, start: timedelta = timedelta(hours=-1), end: timedelta = timedelta(days=1)
    ) -> Certificate:
        """Return a certificate for these names or IP addresses, valid from `start` to `end`, relative to now."""
        self._number += 1
        certificate = Certificate(self._folder / f"{self._number}.crt", self._folder / f"{self._number}.key")
        request = self._folder / f"{self._number}.csr"
        kinds = ("IP" if name.replace(".", "").isdigit() else "DNS" for name in names)
        alternatives = ",".join(f"{kind}:{name}" for kind, name in zip(kinds, names, strict=True))
        _openssl(
            *("req", "-new", "-config", str(self._config), "-subj", f"/CN={names[0]}"),
            *("-addext", f"subjectAltName={alternatives}"),
            *_new_key(certificate.key),
            *("-out", str(request)),
        )
        _openssl(
            *("ca", "-batch", "-notext", "-config", str(self._config), "-cert", str(self.cert)),
            *("-keyfile", str(self._key), "-in", str(request), "-out", str(certificate.cert)),
            *("-startdate", _format_time(start), "-enddate", _format_time(end)),
        )
        return certificate


def _new_key(path: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path))


def _format_time(distance: timedelta) -> str:
    return (datetime.now(UTC) + distance).strftime("%Y%m%d%H%M%SZ")


def _openssl(*arguments: str) -> None:
    response = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert response.returncode == 0, f"openssl {' '.join(arguments)}: {response.stderr}"
