"""Certificate authorities of the clusters, certificates that they sign, and kubeconfigs."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.node.lab.command import run

_DAYS = ("-days", "365")


class Authority:
    """Keys and certificates in a folder; existing ones are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not self.path("ca.crt").exists():
            request = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *_DAYS, "-subj", "/CN=node-ca")
            run(*request, "-keyout", self.path("ca.key"), "-out", self.path("ca.crt"))
        if not self.path("sa.key").exists():
            run("openssl", "genrsa", "-out", self.path("sa.key"), "2048")

    def path(self, name: str) -> Path:
        """Return a file of this folder."""
        return self.folder / name

    def sign(self, name: str, subject: str, names: str = "") -> None:
        """`name.crt` and `name.key`, for clients and servers; `names` are subjectAltNames."""
        if self.path(f"{name}.crt").exists():
            return
        request, extensions = self.path(f"{name}.csr"), self.path(f"{name}.ext")
        lines = "keyUsage=digitalSignature,keyEncipherment\nextendedKeyUsage=serverAuth,clientAuth\n"
        extensions.write_text(lines + (f"subjectAltName={names}\n" if names else ""))
        key = self.path(f"{name}.key")
        run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-subj", subject, "-out", request)
        ca = ("-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"), "-CAcreateserial")
        run(
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            *ca,
            *_DAYS,
            "-extfile",
            extensions,
            "-out",
            self.path(f"{name}.crt"),
        )

    def sign_client(self, name: str, user: str, groups: Sequence[str]) -> None:
        """Write `name.crt` and `name.key` of a user in groups; openssl allows names of 64 characters only."""
        authority = x509.load_pem_x509_certificate(self.path("ca.crt").read_bytes())
        authority_key = serialization.load_pem_private_key(self.path("ca.key").read_bytes(), None)
        if not isinstance(authority_key, rsa.RSAPrivateKey):
            raise TypeError("the key of an authority is of RSA")
        key = rsa.generate_private_key(65537, 2048)
        # Kubernetes takes any length, and so does Go, in which OCM makes these requests.
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group, _validate=False) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user, _validate=False))
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=365))
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        self.path(f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self.path(f"{name}.key").write_bytes(key.private_bytes(*encoding))

    def kubeconfig(self, name: str, server: str) -> Path:
        """Write `name.conf`, a kubeconfig for that server with that certificate."""
        path = self.path(f"{name}.conf")
        path.write_text(json.dumps(merged({"default": (self, server)}, name)))  # JSON is YAML.
        return path


def merged(clusters: dict[str, tuple[Authority, str]], user: str = "admin") -> dict[str, object]:
    """Return a kubeconfig with a context for each cluster, the first one current."""

    def encoded(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    config: dict[str, object] = {"apiVersion": "v1", "kind": "Config", "current-context": next(iter(clusters))}
    config["clusters"] = [
        {"name": name, "cluster": {"server": server, "certificate-authority-data": encoded(authority.path("ca.crt"))}}
        for name, (authority, server) in clusters.items()
    ]
    config["users"] = [
        {
            "name": name,
            "user": {
                "client-certificate-data": encoded(authority.path(f"{user}.crt")),
                "client-key-data": encoded(authority.path(f"{user}.key")),
            },
        }
        for name, (authority, _) in clusters.items()
    ]
    config["contexts"] = [{"name": name, "context": {"cluster": name, "user": name}} for name in clusters]
    return config
