"""Runs the optimiser: `dsf optimizer`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing

import uvicorn
from anyio import to_thread

import dsf.log
from dsf.http.serving import configured, listen, serve
from dsf.kube.session import Session
from dsf.optimizer.access import CallerAccess, make_access
from dsf.optimizer.app import Mounted, make_app
from dsf.optimizer.backend import ManifestClient
from dsf.optimizer.selector import PlacementSelector
from dsf.optimizer.service import Board, OptimizerService, Record, Rescore
from dsf.optimizer.solver import SolverProcess
from dsf.settings import Settings

log = dsf.log.get(__name__)

#: Creates another interface of the service, served beside HTTP.
Mount = Callable[[OptimizerService], Mounted]


def make_service(
    settings: Settings,
    rescore: Rescore | None = None,
    access: CallerAccess | None = None,
    record: Record | None = None,
    board: Board | None = None,
) -> OptimizerService:
    """The service over the hub of the settings. Raises SettingsError."""
    selector = PlacementSelector.parse(settings.optimizer_cluster_selector)
    return OptimizerService(
        ManifestClient(Session.load(settings.kubeconfig)),
        SolverProcess(patience=settings.optimizer_time_limit),
        selector,
        access=access,
        rescore=rescore,
        record=record,
        board=board,
        time_limit=settings.optimizer_time_limit,
    )


def run(
    settings: Settings,
    rescore: Rescore | None = None,
    mount: Mount | None = None,
    record: Record | None = None,
    board: Board | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; requests under way are finished, searches are cut. Returns the exit code.

    Raises SettingsError for invalid settings, an unavailable address, and a service that would be open to other
    machines.
    """
    dsf.log.setup(settings)
    host, port = settings.listen_address("optimizer")
    with closing(Session.load(settings.kubeconfig)) as session:
        access = make_access(
            settings.optimizer_auth,
            host,
            settings.client_token_file,
            session,
            settings.namespace,
        )
        with (
            closing(make_service(settings, rescore, access, record, board)) as service,
            listen(host, port) as listener,
        ):
            _serve(listener, service, mount(service) if mount is not None else None)
    log.info("optimizer ended")
    return 0


class _OptimizerServer(uvicorn.Server):
    """Cuts searches when it ends: they may take longer than the process is given, and callers shall get an answer."""

    def __init__(self, config: uvicorn.Config, service: OptimizerService) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As it was, but first the searches."""
        await to_thread.run_sync(self._service.stop_solving)
        await super().shutdown(sockets)


def _serve(listener: socket.socket, service: OptimizerService, mounted: Mounted | None) -> None:
    server = _OptimizerServer(configured(make_app(service, mounted), shutdown_seconds=5), service)
    host, port = listener.getsockname()[:2]
    service.warm_up()
    auth = type(service.access).__name__
    serve(server, listener, lambda: log.info("optimizer listens", host=host, port=port, auth=auth))
