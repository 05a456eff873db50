"""Runs the page: `dsf web`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import uvicorn

import dsf.log
from dsf.errors import SettingsError
from dsf.http.protocol import PatientProtocol
from dsf.http.serving import end_on_signals, listen
from dsf.settings import Settings
from dsf.store.client import connect
from dsf.web.app import Options, make_app
from dsf.web.guard import is_prefix, parse_networks
from dsf.web.objects import FolderObjects, HubObjects, NoObjects
from dsf.web.reading import Reading
from dsf.web.views import Sources

log = dsf.log.get(__name__)

#: Seconds within which Redis must answer: a person waits.
_CONNECT_TIMEOUT: Final = 2.0
_ANSWER_TIMEOUT: Final = 5.0
#: Seconds that requests under way get at the end; open event streams are cut.
_SHUTDOWN_TIMEOUT: Final = 2


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code.

    Raises SettingsError for settings that cannot be used and an address that cannot be taken.
    """
    dsf.log.setup(settings)
    options = _options(settings)
    quick = settings.model_copy(
        update={
            "redis_connect_timeout": min(settings.redis_connect_timeout, _CONNECT_TIMEOUT),
            "redis_socket_timeout": min(settings.redis_socket_timeout, _ANSWER_TIMEOUT),
        }
    )
    client = connect(quick, name="dsf-web", retries=0)
    sources = Sources(Reading(client), _objects(settings))
    with listen(settings.web_host, settings.web_port, "DSF_WEB_PORT") as listener:
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            make_app(sources, options),
            # Our logging stays as it is; what people do is logged where it is done.
            log_config=None,
            access_log=False,
            http=PatientProtocol,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
        )
        server = uvicorn.Server(config)
        end_on_signals(server)
        log.info("page listens", host=host, port=port)
        try:
            server.run(sockets=[listener])
        finally:
            client.close()
    log.info("page ended")
    return 0


def _options(settings: Settings) -> Options:
    root = settings.web_root_path.rstrip("/")
    if root and not is_prefix(root):
        raise SettingsError(f"DSF_WEB_ROOT_PATH: {root!r} is no path such as /scores")
    return Options(
        hosts=tuple(settings.web_hosts),
        proxies=parse_networks(settings.web_trusted_proxies),
        root_path=root,
        flower_url=settings.web_flower_url,
        grafana_url=settings.web_grafana_url,
    )


def _objects(settings: Settings) -> HubObjects:
    if settings.backend == "dir":
        out = settings.out_dir or (settings.manifests / "_out" if settings.manifests is not None else None)
        return FolderObjects(Path(out)) if out is not None else NoObjects()
    return NoObjects()
