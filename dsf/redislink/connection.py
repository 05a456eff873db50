"""redis-py connection classes that trust a single CA, and report errors in one line with a remedy."""

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
# Errors whose `strerror` is a sufficient description. ENOENT and EACCES are errors of Unix sockets.
_CLEAR_ERRORS: Final = frozenset(
    {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOENT, errno.EACCES}
)

# redis-py's published types lack members that this module uses.
_Plain: Any = redis.Connection
_Tls: Any = redis.SSLConnection
_Socket: Any = redis.UnixDomainSocketConnection
_Hiredis: Any = HiredisRespSerializer


def describe_error(error: OSError, server_text: str, host: str, ca_file: str | None, server_name: str = "Redis") -> str:
    """Return one line with the reason why a connection to the server at `server_text` failed, and the remedy.

    `host` is the name or address in the URL, `ca_file` the file of the trusted CA, and `server_name` Redis or Sentinel.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = _describe_certificate(error, host, ca_file)
        return f"the certificate of {server_name} at {server_text} is refused: {problem}"
    if isinstance(error, ssl.SSLError):
        return (
            f"no TLS with {server_name} at {server_text} ({error.reason or error}): does this port speak TLS, and does "
            "it want a client certificate (DSF_REDIS_CERT_FILE, DSF_REDIS_KEY_FILE)?"
        )
    if isinstance(error, socket.gaierror):
        return f"the name {host} of {server_name} is not known: {error.strerror}"
    if error.filename:
        return f"cannot read {error.filename} for the connection to {server_name}: {error.strerror}"
    if error.errno in _CLEAR_ERRORS:
        return f"{server_name} cannot be reached at {server_text}: {error.strerror}"
    return f"{server_name} cannot be reached at {server_text}: {error}"


def is_socket(host: str) -> bool:
    """True if `host` is the path of a Unix socket."""
    return host.startswith("/")


def _describe_certificate(error: ssl.SSLCertVerificationError, host: str, ca_file: str | None) -> str:
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


#: Maximum seconds to wait for the response to PING; then the connection is replaced.
HEALTH_TIMEOUT: Final = 2.0
#: TCP options that detect a lost peer within 30 s, and prevent load balancers from dropping idle connections: idle
#: seconds before the first probe (two names), seconds between probes, number of probes, and milliseconds for which sent
#: data may remain unacknowledged. Systems other than Linux do not support all options.
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
    """Packs commands with hiredis, after converting numbers to text in Python.

    hiredis does not check whether its own conversion of a number has failed. If a signal handler raises an exception
    during the conversion, as those for SIGTERM (Celery's beat) and Ctrl-C do, the process ends with a segmentation
    fault.
    """

    def pack(self, *args: Any) -> list[bytes]:
        """Return the bytes of one command."""
        packed_command: list[bytes] = super().pack(
            *[repr(argument) if isinstance(argument, int | float) else argument for argument in args]
        )
        return packed_command


class ReadableErrors:
    """Mixin for connection classes that reports connection errors in one line, with the remedy."""

    host: str
    port: int
    ca_certs: str | None = None
    # Attributes of redis-py: an interval in seconds, and a time by time.monotonic().
    health_check_interval: float
    next_health_check: float
    socket_timeout: float | None
    #: Server name, credential settings and TLS setting, for error texts.
    server_name = "Redis"
    credential_settings = "DSF_REDIS_URL, DSF_REDIS_PASSWORD_FILE"
    tls_setting = "rediss://"

    def __init__(self, **options: Any) -> None:
        if options.get("socket_keepalive"):
            options["socket_keepalive_options"] = KEEPALIVE
        super().__init__(**options | {"command_packer": _Packer()})
        # Skip CLIENT SETINFO, which takes two round trips per connect and has no ACL category on older servers.
        self.driver_info = self.lib_name = self.lib_version = None

    def activate_maint_notifications_handling_if_enabled(self, check_health: bool = True) -> None:
        """Do nothing, because the command takes a round trip per connect and only Redis Cloud supports it."""

    def check_health(self) -> None:
        """Send PING on a connection that was idle for a while, and reconnect if there is no response.

        A load balancer may have dropped the connection silently. An error response is accepted: a server that rejects
        writes also rejects PING, and can still be read. Raises redis.ConnectionError and its subclasses.
        """
        # redis-py's method would wait for the timeout of a command, and would raise the error.
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
    def server_address(self) -> str:
        """Host and port of the server, for error texts."""
        return f"{self.host}:{self.port}"

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Read a response, and wait until a partial response is complete.

        redis-py would close a subscriber's connection after a partial response. Raises redis.ConnectionError, also if
        the server is a replica.
        """
        if options.get("timeout") == 0:
            del options["timeout"]
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except redis.ReadOnlyError as error:
            # Close the connection, which redis-py would keep: after a failover, only a new one reaches the primary.
            self.disconnect()  # type: ignore[attr-defined]
            raise redis.ConnectionError(
                f"{self.server_name} at {self.server_address} is a replica and takes no writes"
            ) from error

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        """Connect, unless it is connected. Raises redis.ConnectionError and its subclasses."""
        try:
            super().connect_check_health(*args, **options)  # type: ignore[misc]
        except redis.InvalidResponse as error:
            raise redis.ConnectionError(
                f"the server at {self.server_address} is not {self.server_name} ({error}): is it the right port, "
                f"does it want TLS ({self.tls_setting})?"
            ) from None
        except redis.AuthenticationError as error:
            if str(error).startswith("DSF_"):
                raise
            raise redis.AuthenticationError(
                f"{self.server_name} at {self.server_address} refuses user or password ({str(error).rstrip('.')}); is "
                f"it the newest one ({self.credential_settings})?"
            ) from None
        except redis.ConnectionError as error:
            # Replace redis-py's text about a closed connection, which names neither the server nor a reason.
            if type(error) is redis.ConnectionError and re.match(
                "Connection closed|Error .*while (reading|writing)", str(error)
            ):
                raise redis.ConnectionError(
                    f"{self.server_name} at {self.server_address} closes new connections ({str(error).rstrip('.')}): "
                    f"does it want TLS ({self.tls_setting}), or a client certificate, or has it reached its maxclients?"
                ) from None
            if isinstance(error.__context__, OSError):
                text = describe_error(
                    error.__context__, self.server_address, self.host, self.ca_certs, self.server_name
                )
                raise redis.ConnectionError(text) from None
            raise


class PlainConnection(ReadableErrors, _Plain):  # type: ignore[misc]
    """Connection to a server without TLS."""


class SocketConnection(ReadableErrors, _Socket):  # type: ignore[misc]
    """Connection to a Unix socket. `host` is the path, because kombu's URL for a socket selects another class."""

    def __init__(self, host: str, port: int = 0, **options: Any) -> None:
        del port
        for name in ("socket_keepalive", "socket_keepalive_options"):
            options.pop(name, None)
        super().__init__(path=host, **options)

    @property
    def server_address(self) -> str:
        """Path of the socket, for error texts."""
        return str(self.path)


class TlsConnection(ReadableErrors, _Tls):  # type: ignore[misc]
    """Connection with TLS that verifies the server's certificate by a single CA and the host name."""

    #: The server's certificate in DER; empty before the connection is established.
    peer_certificate = b""

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        # Replace redis-py's context, which also trusts the system's CAs, so that any public CA could impersonate the
        # hub. redis-py does not accept an SSLContext (https://github.com/redis/redis-py/issues/3599).
        context = _make_context(self.ca_certs, self.certfile, self.keyfile)
        # Raise here if the server has reset the connection, because wrap_socket() would leak the socket.
        sock.getpeername()
        wrapped_socket = context.wrap_socket(sock, server_hostname=self.host)
        self.peer_certificate = wrapped_socket.getpeercert(binary_form=True) or b""
        return wrapped_socket


def _make_context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """Return a context for these files. Raises OSError, which names a file that cannot be used."""
    file = ca_file
    try:
        context = ssl.create_default_context(cafile=ca_file)
        # Clear the flag, which Python 3.13 sets by default: it rejects CAs without a key usage, as `openssl req` makes.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if cert_file is not None:
            file = cert_file
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        problem = error.strerror
        if isinstance(error, ssl.SSLError):
            settings = "DSF_REDIS_CA_FILE, DSF_REDIS_CERT_FILE, DSF_REDIS_KEY_FILE"
            problem = f"not a PEM certificate, or the key does not belong to it ({settings})"
        raise OSError(error.errno, problem, error.filename or file) from None
    return context


class _SentinelDiscovery:
    """Mixin that queries Sentinel for the server's address at each connect, by `find_server` of the credentials.

    redis-py's class only queries Sentinel in `connect`, so that its retries would always try the lost server. It also
    requires another class of connection pools, which kombu does not use.
    """

    host: str
    port: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._find_server: Callable[[], tuple[str, int]] = options["credential_provider"].find_server

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        """Connect, unless it is connected. Raises redis.ConnectionError and its subclasses."""
        if not self.is_connected:  # type: ignore[attr-defined]
            self.host, self.port = self._find_server()
            # Clear the mark for a reconnect, because this connects to the current server.
            self.reset_should_reconnect()  # type: ignore[attr-defined]
        super().connect_check_health(*args, **options)  # type: ignore[misc]


class MasterConnection(_SentinelDiscovery, PlainConnection):
    """Connection without TLS to the primary that Sentinel announces."""


class MasterTlsConnection(_SentinelDiscovery, TlsConnection):
    """Connection with TLS to the primary that Sentinel announces. The certificate must be for the announced name."""


class _SentinelErrors:
    """Mixin that names Sentinel and its settings in error texts."""

    server_name = "Sentinel"
    credential_settings = "DSF_REDIS_SENTINEL_USERNAME, DSF_REDIS_SENTINEL_PASSWORD_FILE"
    tls_setting = "DSF_REDIS_SENTINEL_TLS"


class SentinelConnection(_SentinelErrors, PlainConnection):
    """Connection to a Sentinel without TLS."""


class SentinelTlsConnection(_SentinelErrors, TlsConnection):
    """Connection to a Sentinel with TLS."""
