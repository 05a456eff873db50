"""Runs the exporter: `dsf exporter`."""

from __future__ import annotations

import signal
import socket
from types import FrameType

import uvicorn

import dsf.log
from dsf.errors import SettingsError
from dsf.exporter.app import make_app
from dsf.settings import Settings
from dsf.store.client import connect

log = dsf.log.get(__name__)

#: Seconds within which Redis must answer. Below Prometheus' scrape timeout of 10 s, so that a scrape says that Redis is
#: away instead of timing out.
_CONNECT_TIMEOUT = 2.0
_ANSWER_TIMEOUT = 5.0
#: Seconds that requests under way get at the end.
_SHUTDOWN_TIMEOUT = 5


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; requests under way are finished. Returns the exit code.

    Raises SettingsError when the address cannot be taken.
    """
    dsf.log.setup(settings)
    quick = settings.model_copy(
        update={
            "redis_connect_timeout": min(settings.redis_connect_timeout, _CONNECT_TIMEOUT),
            "redis_socket_timeout": min(settings.redis_socket_timeout, _ANSWER_TIMEOUT),
        }
    )
    client = connect(quick, name="dsf-exporter", retries=0)
    with _listen(settings.exporter_host, settings.exporter_port) as listener:
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            make_app(client),
            # Our logging stays as it is; an access log line per scrape and probe says nothing.
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
        )
        server = uvicorn.Server(config)
        _end_on_signals(server)
        log.info("exporter listens", host=host, port=port)
        try:
            server.run(sockets=[listener])
        finally:
            client.close()
    log.info("exporter ended")
    return 0


def _end_on_signals(server: uvicorn.Server) -> None:
    """End the server on SIGTERM and SIGINT.

    It has handlers of its own while it runs. These are for a signal before that; and at its end it raises the signal
    once more, which would otherwise kill the process before `run` returns.
    """

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _listen(host: str, port: int) -> socket.socket:
    # Here and not in uvicorn, which ends the process with its own words when the port is in use.
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With the protocol named: asyncio switches off Nagle's delay, 40 ms of every answer, for such sockets only.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SettingsError(
            f"DSF_EXPORTER_PORT: cannot listen on {host}:{port} ({error.strerror}); "
            "choose another port, 0 takes a free one"
        ) from None
    return listener
