"""Runs the exporter: `dsf exporter`."""

from __future__ import annotations

import uvicorn

import dsf.log
from dsf.exporter.app import make_app
from dsf.http.serving import configured, listen, serve
from dsf.process import memory
from dsf.settings import Settings
from dsf.store.client import connect

log = dsf.log.get(__name__)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; open requests are finished. Returns the exit code.

    Raises SettingsError when the address cannot be bound.
    """
    dsf.log.setup(settings)
    memory.prepare()
    # Below Prometheus' scrape timeout of 10 s, so that a scrape reports Redis as down instead of timing out.
    quick = settings.model_copy(update={"redis_socket_timeout": min(settings.redis_socket_timeout, 5.0)})
    client = connect(quick, name="dsf-exporter", retries=0)
    with listen(*settings.listen_address("exporter")) as listener:
        host, port = listener.getsockname()[:2]
        app = make_app(client, series_limit=settings.exporter_series_limit, hosts=settings.host_names)
        server = uvicorn.Server(configured(app, shutdown_seconds=5))
        memory.settle()
        try:
            serve(server, listener, lambda: log.info("exporter listens", host=host, port=port))
        finally:
            client.close()
    log.info("exporter ended")
    return 0
