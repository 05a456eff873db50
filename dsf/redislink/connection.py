"""redis-py connections that trust only one CA and report errors in one line with a remedy."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import ssl
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

import redis
from redis.connection import HiredisRespSerializer
from redis.sentinel import SentinelManagedConnection

# OpenSSL's certificate verification errors (X509_V_ERR_...).
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_UNKNOWN_CA: Final = frozenset({2, 18, 19, 20, 21})
_OTHER_NAME: Final = frozenset({62, 64})
# Errors whose text tells enough; the last two are those of a Unix socket.
_PLAIN_ERRORS: Final = frozenset(
    {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOENT, errno.EACCES}
)

# redis-py's published types do not cover all that is used here.
_Plain: Any = redis.Connection
_Tls: Any = redis.SSLConnection
_Sentinel: Any = SentinelManagedConnection
_Hiredis: Any = HiredisRespSerializer


def why(error: BaseException, host: str, port: int, ca_file: str | None, other_end: str = "Redis") -> str:
    """Why a connection failed, and the remedy, in one line."""
    where = _where(host, port)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {other_end} at {where} is refused: {_certificate(error, host, ca_file)}"
    if isinstance(error, ssl.SSLError):
        return (
            f"no TLS with {other_end} at {where} ({error.reason or error}): does this port speak TLS, and does it want "
            "a client certificate (DSF_REDIS_CERT_FILE, DSF_REDIS_KEY_FILE)?"
        )
    if isinstance(error, socket.gaierror):
        return f"the name {host} of {other_end} is not known: {error.strerror}"
    if isinstance(error, OSError) and error.filename:
        return f"cannot read {error.filename} for the connection to {other_end}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _PLAIN_ERRORS:
        return f"{other_end} cannot be reached at {where}: {error.strerror}"
    return f"{other_end} cannot be reached at {where}: {error}"


def _where(host: str, port: int) -> str:
    return host if is_socket(host) else f"{host}:{port}"


def is_socket(host: str) -> bool:
    """Whether it is the path of a Unix socket."""
    return host.startswith("/")


def _certificate(error: ssl.SSLCertVerificationError, host: str, ca_file: str | None) -> str:
    if error.verify_code == _EXPIRED:
        return "it has expired (or this machine's clock is wrong); renew it"
    if error.verify_code == _NOT_YET_VALID:
        return "it is not valid yet; is this machine's clock right?"
    if error.verify_code in _OTHER_NAME:
        return f"it is not for the name {host}; use a name that it has in DSF_REDIS_URL, or renew it with this one"
    if error.verify_code in _UNKNOWN_CA:
        known = f"the CA in {ca_file} (DSF_REDIS_CA_FILE)" if ca_file else "a CA of this system; set DSF_REDIS_CA_FILE"
        return f"it is not signed by {known}"
    return error.verify_message


_NUMBERS: Final = (int, float)


class _Packer(_Hiredis):  # type: ignore[misc]
    """Commands as bytes, with numbers converted to text.

    hiredis converts numbers itself, without checking for failure. The conversion fails when a signal handler
    raises meanwhile, as those for SIGTERM (Celery's beat) and Ctrl-C do: the process then ends by a segmentation fault.
    """

    def pack(self, *args: Any) -> list[bytes]:
        """One command."""
        packed: list[bytes] = super().pack(*[repr(one) if isinstance(one, _NUMBERS) else one for one in args])
        return packed


class ReadableErrors:
    """Mixin of a connection class: readable connection errors."""

    host: str
    port: int
    ca_certs: str | None = None
    #: Name of the server, and its credential settings.
    other_end = "Redis"
    known_by = "DSF_REDIS_URL, DSF_REDIS_PASSWORD_FILE"
    tls_by = "rediss://"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"command_packer": _Packer()})
        # Saves two round trips per connect, and CLIENT SETINFO needs a right that older servers do not know.
        self.driver_info = self.lib_name = self.lib_version = None

    def activate_maint_notifications_handling_if_enabled(self, check_health: bool = True) -> None:
        """Disabled: only Redis Cloud knows this command, and it costs a round trip per connect."""

    def check_health(self) -> None:
        """Check that the server answers. One that takes no writes refuses even PING, and can be read all the same."""
        with contextlib.suppress(redis.ResponseError):
            super().check_health()  # type: ignore[misc]

    @property
    def _where(self) -> str:
        return _where(self.host, self.port)

    def _error_message(self, error: BaseException) -> str:
        return why(error, self.host, self.port, self.ca_certs, self.other_end)

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Read an answer. Waits for the rest of a partial one: redis-py would drop a subscriber's connection."""
        if options.get("timeout") == 0:
            del options["timeout"]
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except redis.ReadOnlyError as error:
            # After a failover only a new connection leads to the new primary; redis-py would keep this one.
            self.disconnect()  # type: ignore[attr-defined]
            raise redis.ConnectionError(
                f"{self.other_end} at {self._where} is a replica and takes no writes"
            ) from error

    def connect(self) -> None:
        """Connect. Raises redis.ConnectionError and its subclasses."""
        try:
            super().connect()  # type: ignore[misc]
        except redis.InvalidResponse as error:
            raise redis.ConnectionError(
                f"what answers at {self._where} is no {self.other_end} ({error}): is it the right port, "
                f"does it want TLS ({self.tls_by})?"
            ) from None
        except redis.AuthenticationError as error:
            if str(error).startswith("DSF_"):
                raise
            raise redis.AuthenticationError(
                f"{self.other_end} at {self._where} refuses user or password ({str(error).rstrip('.')}); is "
                f"it the newest one ({self.known_by})?"
            ) from None
        except redis.ConnectionError as error:
            # redis-py's own text when the server closes the connection; it names neither server nor reason.
            if type(error) is redis.ConnectionError and re.match(
                "Connection closed|Error .*(reading|writing)", str(error)
            ):
                raise redis.ConnectionError(
                    f"{self.other_end} at {self._where} ends new connections ({str(error).rstrip('.')}): "
                    f"does it want TLS ({self.tls_by}), or a client certificate, or has it reached its maxclients?"
                ) from None
            raise


class _Sessions:
    """TLS session cache of this process: reconnecting to a server needs no full handshake.

    A session belongs to the context that created it, so that is kept as long as its files are unchanged.
    """

    def __init__(self) -> None:
        # Beat connects in a signal handler, which may have interrupted its own thread in here.
        self._lock = threading.RLock()
        self._contexts: dict[Hashable, ssl.SSLContext] = {}
        # Server -> the context of its newest session, and that session.
        self._newest: dict[str, tuple[ssl.SSLContext, ssl.SSLSession]] = {}

    def find(
        self, stamps: Hashable, make: Callable[[], ssl.SSLContext], server: str
    ) -> tuple[ssl.SSLContext, ssl.SSLSession | None]:
        """The context for these files, and a session with this server if there is one. Raises what `make` raises."""
        with self._lock:
            context = self._contexts.get(stamps)
            if context is None:
                context = make()
                # Drops contexts of renewed files.
                self._contexts = {stamps: context}
            made_with, session = self._newest.get(server, (None, None))
        return context, session if made_with is context else None

    def keep(self, server: str, connection: object) -> None:
        """Store the session of a connection: the server may send it any time after the handshake."""
        if isinstance(connection, ssl.SSLSocket) and (session := connection.session) is not None:
            with self._lock:
                self._newest[server] = connection.context, session


_sessions = _Sessions()


class PinnedCA:
    """Mixin of a TLS connection class: the server's certificate must be from the given CA, and for its name."""

    host: str
    port: int
    _sock: object
    ca_certs: str | None
    certfile: str | None
    keyfile: str | None

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        context, session = _sessions.find(self._stamps(), self._context, f"{self.host}:{self.port}")
        # Fails when the server has reset the connection meanwhile; wrap_socket() would then leak the socket.
        sock.getpeername()
        return context.wrap_socket(sock, server_hostname=self.host, session=session)

    def disconnect(self, *args: Any, **options: Any) -> None:
        """Close; the next connection resumes its session."""
        _sessions.keep(f"{self.host}:{self.port}", self._sock)
        super().disconnect(*args, **options)  # type: ignore[misc]

    def _stamps(self) -> Hashable:
        """Changes when CA, certificate or key is renewed."""
        found: list[object] = []
        for file in (self.ca_certs, self.certfile, self.keyfile):
            try:
                found += [file, Path(file).stat().st_mtime_ns if file is not None else 0]
            except OSError:
                # Reading the file reports it.
                found += [file, None]
        return tuple(found)

    def _context(self) -> ssl.SSLContext:
        # The base class trusts the system's CAs as well as the given one: any public CA could then vouch for the hub.
        file: str | None = None
        try:
            file = self.ca_certs
            context = ssl.create_default_context(cafile=file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certfile is not None:
                file = self.certfile
                context.load_cert_chain(file, self.keyfile)
        except ssl.SSLError as error:
            raise redis.ConnectionError(
                f"{file} for the connection to Redis is no certificate in PEM, or its key is another one's "
                f"(DSF_REDIS_CA_FILE, DSF_REDIS_CERT_FILE, DSF_REDIS_KEY_FILE): {error.reason or error}"
            ) from None
        except OSError as error:
            # The file's name may be missing.
            raise OSError(error.errno, error.strerror, error.filename or file) from None
        return context


class PlainConnection(ReadableErrors, _Plain):  # type: ignore[misc]
    """Without TLS, also to a Unix socket, whose path is the host: kombu takes no connection class for one."""

    def _connect(self) -> Any:
        if not is_socket(self.host):
            return super()._connect()
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(self.socket_connect_timeout)
            made.connect(self.host)
        except OSError:
            made.close()
            raise
        made.settimeout(self.socket_timeout)
        return made


class TlsConnection(ReadableErrors, PinnedCA, _Tls):  # type: ignore[misc]
    """With TLS."""


class _AsksSentinel:
    """Mixin: also a retry asks Sentinel where the server is. redis-py asks in `connect` only, and would try the server
    that was lost again and again."""

    host: str
    port: int
    connection_pool: Any
    _sock: object

    def _connect_retry(self) -> None:
        # Once: the base class asks here.
        if not self._sock:
            self.connect_check_health(  # type: ignore[attr-defined]
                check_health=self.connection_pool.check_connection, retry_socket_connect=False
            )

    def _connect(self) -> Any:
        self.host, self.port = self.connection_pool.get_master_address()
        return super()._connect()  # type: ignore[misc]


class MasterConnection(ReadableErrors, _AsksSentinel, _Sentinel):  # type: ignore[misc]
    """To the server that Sentinel names, without TLS."""


class MasterTlsConnection(ReadableErrors, PinnedCA, _AsksSentinel, _Sentinel, _Tls):  # type: ignore[misc]
    """To the server that Sentinel names, with TLS. Sentinel must announce the name that is in the certificate."""


class _ToSentinel:
    """Mixin of a Sentinel connection class."""

    other_end = "Sentinel"
    known_by = "DSF_REDIS_SENTINEL_USERNAME, DSF_REDIS_SENTINEL_PASSWORD_FILE"
    tls_by = "DSF_REDIS_SENTINEL_TLS"


class SentinelConnection(_ToSentinel, ReadableErrors, _Plain):  # type: ignore[misc]
    """To a Sentinel, without TLS."""


class SentinelTlsConnection(_ToSentinel, ReadableErrors, PinnedCA, _Tls):  # type: ignore[misc]
    """To a Sentinel, with TLS."""
