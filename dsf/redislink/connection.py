"""redis-py connections that trust only one CA and report errors in one line with a remedy."""

from __future__ import annotations

import errno
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import redis
from redis.connection import HiredisRespSerializer

# OpenSSL's certificate verification errors (X509_V_ERR_...).
_UNKNOWN_CA: Final = frozenset({2, 18, 19, 20, 21})
_OTHER_NAME: Final = frozenset({62, 64})
# Errors whose text tells enough; the last two are those of a Unix socket.
_PLAIN_ERRORS: Final = frozenset(
    {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOENT, errno.EACCES}
)

# redis-py's published types do not cover all that is used here.
_Plain: Any = redis.Connection
_Tls: Any = redis.SSLConnection
_Socket: Any = redis.UnixDomainSocketConnection
_Hiredis: Any = HiredisRespSerializer


def why(error: OSError, where: str, host: str, ca_file: str | None, server_name: str = "Redis") -> str:
    """Why a connection to `where` failed, and the remedy, in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {server_name} at {where} is refused: {_certificate(error, host, ca_file)}"
    if isinstance(error, ssl.SSLError):
        return (
            f"no TLS with {server_name} at {where} ({error.reason or error}): does this port speak TLS, and does it "
            "want a client certificate (DSF_REDIS_CERT_FILE, DSF_REDIS_KEY_FILE)?"
        )
    if isinstance(error, socket.gaierror):
        return f"the name {host} of {server_name} is not known: {error.strerror}"
    if error.filename:
        return f"cannot read {error.filename} for the connection to {server_name}: {error.strerror}"
    if error.errno in _PLAIN_ERRORS:
        return f"{server_name} cannot be reached at {where}: {error.strerror}"
    return f"{server_name} cannot be reached at {where}: {error}"


def is_socket(host: str) -> bool:
    """True if it is the path of a Unix socket."""
    return host.startswith("/")


def _certificate(error: ssl.SSLCertVerificationError, host: str, ca_file: str | None) -> str:
    # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID
    if error.verify_code == 10:
        return "it has expired (or this machine's clock is wrong); renew it"
    if error.verify_code == 9:
        return "it is not valid yet; is this machine's clock right?"
    if error.verify_code in _OTHER_NAME:
        return f"it is not for the name {host}; use a name that it has in DSF_REDIS_URL, or renew it with this one"
    if error.verify_code in _UNKNOWN_CA:
        trusted_ca = (
            f"the CA in {ca_file} (DSF_REDIS_CA_FILE)" if ca_file else "a CA of this system; set DSF_REDIS_CA_FILE"
        )
        return f"it is not signed by {trusted_ca}"
    return error.verify_message


#: Seconds without an answer to PING after which a connection is replaced.
HEALTH_TIMEOUT: Final = 2.0
#: Options of TCP, so that a peer that is silently gone ends the connection within half a minute, and a balancer between
#: the two remembers it: seconds without traffic until the first probe, seconds between probes, their number, and
#: milliseconds for which sent data may stay without an answer. Systems other than Linux lack some.
KEEPALIVE: Final = {
    option: value
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPALIVE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 25_000),
    )
    if (option := getattr(socket, name, None)) is not None
}


class _Packer(_Hiredis):  # type: ignore[misc]
    """Commands as bytes, with numbers converted to text.

    hiredis converts numbers itself, without checking for failure. The conversion fails when a signal handler
    raises meanwhile, as those for SIGTERM (Celery's beat) and Ctrl-C do: the process then ends by a segmentation fault.
    """

    def pack(self, *args: Any) -> list[bytes]:
        """One command."""
        packed: list[bytes] = super().pack(
            *[repr(argument) if isinstance(argument, int | float) else argument for argument in args]
        )
        return packed


class ReadableErrors:
    """Mixin of a connection class: readable connection errors."""

    host: str
    port: int
    ca_certs: str | None = None
    # redis-py's own: seconds, and time.monotonic().
    health_check_interval: float
    next_health_check: float
    socket_timeout: float | None
    #: Name of the server, and its credential settings.
    server_name = "Redis"
    credential_settings = "DSF_REDIS_URL, DSF_REDIS_PASSWORD_FILE"
    tls_setting = "rediss://"

    def __init__(self, **options: Any) -> None:
        if options.get("socket_keepalive"):
            options["socket_keepalive_options"] = KEEPALIVE
        super().__init__(**options | {"command_packer": _Packer()})
        # Saves two round trips per connect, and CLIENT SETINFO needs a right that older servers do not know.
        self.driver_info = self.lib_name = self.lib_version = None

    def activate_maint_notifications_handling_if_enabled(self, check_health: bool = True) -> None:
        """Disabled: only Redis Cloud knows this command, and it costs a round trip per connect."""

    def check_health(self) -> None:
        """Check that the server answers if nothing came from it for a while, and connect anew if it does not.

        A balancer between the two may have forgotten the connection without a word. A server that takes no writes
        refuses even PING, and can be read all the same. Raises redis.ConnectionError and its subclasses.
        """
        # redis-py would wait for as long as for any command, and raise the error.
        if not self.health_check_interval or time.monotonic() <= self.next_health_check:
            return
        try:
            self.send_command("PING", check_health=False)  # type: ignore[attr-defined]
            self.read_response(timeout=min(self.socket_timeout or HEALTH_TIMEOUT, HEALTH_TIMEOUT))
        except redis.ResponseError:
            return
        except (redis.ConnectionError, redis.TimeoutError):
            self.disconnect()  # type: ignore[attr-defined]
            self.connect_check_health(check_health=False)

    @property
    def where(self) -> str:
        """Address of the server."""
        return f"{self.host}:{self.port}"

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
                f"{self.server_name} at {self.where} is a replica and takes no writes"
            ) from error

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        """Connect, unless it is connected. Raises redis.ConnectionError and its subclasses."""
        try:
            super().connect_check_health(*args, **options)  # type: ignore[misc]
        except redis.InvalidResponse as error:
            raise redis.ConnectionError(
                f"what answers at {self.where} is no {self.server_name} ({error}): is it the right port, "
                f"does it want TLS ({self.tls_setting})?"
            ) from None
        except redis.AuthenticationError as error:
            if str(error).startswith("DSF_"):
                raise
            raise redis.AuthenticationError(
                f"{self.server_name} at {self.where} refuses user or password ({str(error).rstrip('.')}); is "
                f"it the newest one ({self.credential_settings})?"
            ) from None
        except redis.ConnectionError as error:
            # redis-py's own text when the server closes the connection; it names neither server nor reason.
            if type(error) is redis.ConnectionError and re.match(
                "Connection closed|Error .*while (reading|writing)", str(error)
            ):
                raise redis.ConnectionError(
                    f"{self.server_name} at {self.where} ends new connections ({str(error).rstrip('.')}): "
                    f"does it want TLS ({self.tls_setting}), or a client certificate, or has it reached its maxclients?"
                ) from None
            if isinstance(error.__context__, OSError):
                text = why(error.__context__, self.where, self.host, self.ca_certs, self.server_name)
                raise redis.ConnectionError(text) from None
            raise


class PlainConnection(ReadableErrors, _Plain):  # type: ignore[misc]
    """Without TLS."""


class SocketConnection(ReadableErrors, _Socket):  # type: ignore[misc]
    """To a Unix socket, whose path is the host: in kombu's own URL of a socket there is no place for this class."""

    def __init__(self, host: str, port: int = 0, **options: Any) -> None:
        del port
        for name in ("socket_keepalive", "socket_keepalive_options"):
            options.pop(name, None)
        super().__init__(path=host, **options)

    @property
    def where(self) -> str:
        """Path of the socket."""
        return str(self.path)


class TlsConnection(ReadableErrors, _Tls):  # type: ignore[misc]
    """With TLS: the server's certificate must be from the given CA, and for its name."""

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        # redis-py trusts the system's CAs as well as the given one: any public CA could then vouch for the hub.
        # redis-py takes no SSLContext (https://github.com/redis/redis-py/issues/3599).
        context = _context(self.ca_certs, self.certfile, self.keyfile)
        # Fails when the server has reset the connection meanwhile; wrap_socket() would then leak the socket.
        sock.getpeername()
        return context.wrap_socket(sock, server_hostname=self.host)


def _context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """Raises OSError with the name of the file that cannot be used."""
    file = ca_file
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            file = cert_file
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        problem = error.strerror
        if isinstance(error, ssl.SSLError):
            settings = "DSF_REDIS_CA_FILE, DSF_REDIS_CERT_FILE, DSF_REDIS_KEY_FILE"
            problem = f"no certificate in PEM, or its key is another one's ({settings})"
        raise OSError(error.errno, problem, error.filename or file) from None
    return context


class _AsksSentinel:
    """Mixin: each connect asks Sentinel where the server is, by `find` of the credential provider (dsf.redislink.link).

    redis-py's class asks in `connect` only, so its retries would try the server that was lost again and again; and it
    needs a pool of its own, which kombu does not have.
    """

    host: str
    port: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._find: Callable[[], tuple[str, int]] = options["credential_provider"].find

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        """Connect, unless it is connected. Raises redis.ConnectionError and its subclasses."""
        if not self.is_connected:  # type: ignore[attr-defined]
            self.host, self.port = self._find()
            # The new connection leads to the newest server, whatever was noted of connections that were made before.
            self.reset_should_reconnect()  # type: ignore[attr-defined]
        super().connect_check_health(*args, **options)  # type: ignore[misc]


class MasterConnection(_AsksSentinel, PlainConnection):
    """To the server that Sentinel names, without TLS."""


class MasterTlsConnection(_AsksSentinel, TlsConnection):
    """To the server that Sentinel names, with TLS. Sentinel must announce the name that is in the certificate."""


class _ToSentinel:
    """Mixin of a Sentinel connection class."""

    server_name = "Sentinel"
    credential_settings = "DSF_REDIS_SENTINEL_USERNAME, DSF_REDIS_SENTINEL_PASSWORD_FILE"
    tls_setting = "DSF_REDIS_SENTINEL_TLS"


class SentinelConnection(_ToSentinel, PlainConnection):
    """To a Sentinel, without TLS."""


class SentinelTlsConnection(_ToSentinel, TlsConnection):
    """To a Sentinel, with TLS."""
