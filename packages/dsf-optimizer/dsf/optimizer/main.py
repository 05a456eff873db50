"""Runs the optimiser over HTTP: `dsf optimizer`."""

from __future__ import annotations

import socket
from contextlib import closing

import uvicorn
from anyio import to_thread

import dsf.log
from dsf.http.front import RequestMiddleware
from dsf.http.listening import Listener
from dsf.http.serving import make_config, serve
from dsf.kube.session import Session
from dsf.optimizer.access import make_access
from dsf.optimizer.app import make_app
from dsf.optimizer.mcp import McpMount
from dsf.optimizer.service import OptimizerService, make_service
from dsf.optimizer.settings import DEFAULT_PORT, OptimizerSettings

log = dsf.log.get(__name__)


def run(settings: OptimizerSettings, owner: str = "") -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    At the end, requests in progress are finished, but searches are cut short. `owner` is the author of actions without
    a caller. Raises SettingsError for invalid settings, an unavailable address, and a service that would be open to
    other machines.
    """
    dsf.log.setup(settings)
    host, port = settings.listen_address(DEFAULT_PORT)
    with closing(Session.load(settings.kubeconfig)) as session:
        access = make_access(
            settings.optimizer_auth,
            host,
            settings.client_token_file,
            session,
            settings.namespace,
        )
        with (
            closing(make_service(settings, "api", owner, access)) as service,
            Listener(host, port) as listener,
        ):
            _serve(listener, service)
    log.info("optimizer ended")
    return 0


class _OptimizerServer(uvicorn.Server):
    """A server that cuts searches short when it shuts down.

    Searches may take longer than the grace period, but their callers must get a response.
    """

    def __init__(self, config: uvicorn.Config, service: OptimizerService) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the searches, then shut down as usual."""
        await to_thread.run_sync(self._service.stop_solving)
        await super().shutdown(sockets)


def _serve(listener: Listener, service: OptimizerService) -> None:
    app = RequestMiddleware(make_app(service, McpMount(service)))
    server = _OptimizerServer(make_config(app, listener, shutdown_seconds=5), service)
    host, port = listener.getsockname()[:2]
    service.warm_up()
    auth = type(service.access).__name__
    serve(server, listener, lambda: log.info("optimizer listens", host=host, port=port, auth=auth))
