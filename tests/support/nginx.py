"""A real nginx as a reverse proxy, in a folder of its own, as any user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.child import Child
from tests.support.programs import find
from tests.support.redisserver import free_port, is_listening
from tests.support.tlsca import Certificate
from tests.support.wait import wait_for

_CONF = """
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port}{tls};
        {server}
    }}
}}
"""


@contextmanager
def nginx(folder: Path, server: str, certificate: Certificate | None = None) -> Iterator[str]:
    """Yield its URL once it listens. `server` is the content of its `server` block; with a certificate it uses TLS."""
    port = free_port()
    if certificate is not None:
        server = f"ssl_certificate {certificate.cert};\nssl_certificate_key {certificate.key};\n{server}"
    conf = _CONF.format(folder=folder, port=port, tls=" ssl" if certificate is not None else "", server=server)
    (folder / "nginx.conf").write_text(conf, encoding="utf-8")
    child = Child(
        [str(find("nginx")), "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")], folder / "nginx.log"
    )
    try:
        wait_for(lambda: is_listening(port), 30, child.tail())
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"
    finally:
        child.kill()
