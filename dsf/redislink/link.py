"""Creates redis-py clients from the settings, with the current user name and password."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError
from redis.sentinel import Sentinel as _Sentinel

from dsf.errors import SettingsError
from dsf.redislink import address, connection
from dsf.settings import Settings

# Some methods of redis-py's class have no types.
_Base: Any = _Sentinel


class Sentinels(_Base):  # type: ignore[misc]
    """redis-py's `Sentinel` with this package's connection classes and error texts."""

    def __init__(self, hosts: Iterable[tuple[str, int]], options: dict[str, Any], uses_tls: bool) -> None:
        """Create clients of the Sentinels at `hosts`. `options` are redis-py's options for their connections."""
        super().__init__([])
        self.sentinels = [_create_client(host, port, options, uses_tls) for host, port in hosts]

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the primary. Raises redis.ConnectionError, with each Sentinel's error."""
        problems = []
        for sentinel in self.sentinels:
            try:
                masters: Any = sentinel.sentinel_masters()
            except redis.RedisError as error:
                problems.append(_describe_sentinel_error(sentinel, error))
                continue
            finally:
                # Close the idle connection, because queries to a Sentinel are rare.
                sentinel.connection_pool.disconnect(inuse_connections=False)
            master = masters.get(service_name)
            if master and self.check_master_state(master, service_name):
                # Query this Sentinel first from now on. Replace the list, because other threads may iterate over it.
                self.sentinels = [sentinel, *(other for other in self.sentinels if other is not sentinel)]
                return master["ip"], master["port"]
            problem = "reports that it is down" if master else "does not know it (DSF_REDIS_SENTINEL_MASTER)"
            problems.append(f"Sentinel at {_format_address(sentinel)} {problem}")
        raise MasterNotFoundError(f"no Sentinel knows the primary of {service_name!r}: {'; '.join(problems)}")

    def discover_slaves(self, service_name: str) -> list[tuple[str, int]]:
        """Return host and port of each reachable replica. Raises redis.ConnectionError if no Sentinel responds."""
        problems = []
        for sentinel in self.sentinels:
            try:
                replicas = self.filter_slaves(sentinel.sentinel_slaves(service_name))
            except redis.RedisError as error:
                problems.append(_describe_sentinel_error(sentinel, error))
                continue
            if replicas:
                return [(str(host), int(port)) for host, port in replicas]
        if len(problems) == len(self.sentinels):
            raise redis.ConnectionError(f"no Sentinel lists the replicas of {service_name!r}: {'; '.join(problems)}")
        return []


def _create_client(host: str, port: int, options: dict[str, Any], uses_tls: bool) -> redis.Redis:
    kind: Callable[..., Any] = connection.SentinelTlsConnection if uses_tls else connection.SentinelConnection
    return redis.Redis.from_pool(redis.ConnectionPool(connection_class=kind, host=host, port=port, **options))


def _format_address(sentinel: redis.Redis) -> str:
    """Return host and port of a Sentinel."""
    options = sentinel.connection_pool.connection_kwargs
    return f"{options['host']}:{options['port']}"


def _describe_sentinel_error(sentinel: redis.Redis, error: redis.RedisError) -> str:
    """Return the error of a Sentinel, with the Sentinel's address."""
    sentinel_text = _format_address(sentinel)
    if isinstance(error, redis.exceptions.NoPermissionError):
        return (
            f"Sentinel at {sentinel_text} denies a command ({error}): the user of DSF_REDIS_SENTINEL_USERNAME needs "
            "+sentinel|masters +sentinel|slaves"
        )
    return str(error) if sentinel_text in str(error) else f"Sentinel at {sentinel_text}: {error}"


#: Idle seconds after which a connection is checked before its next use. A lost server is thus detected within twice
#: this time.
HEALTH_CHECK_INTERVAL: Final = 10.0


def get_connect_timeout(settings: Settings) -> float:
    """Return the timeout for connecting in seconds: half of the timeout for a response."""
    return settings.redis_socket_timeout / 2


class Credentials(CredentialProvider):
    """Provides the user name, the password, and the address of the primary behind Sentinel.

    Connections read them at each connect, so that a password can be rotated without a restart.
    """

    def __init__(
        self, read: Callable[[], tuple[str, str]], find_server: Callable[[], tuple[str, int]] | None = None
    ) -> None:
        """Provide the results of these functions.

        `read` returns user name and password, which may be empty, and raises SettingsError for a file that cannot be
        used. `find_server` returns host and port of the primary, and raises redis.ConnectionError; it is None without
        Sentinel.
        """
        self.read = read
        self.find_server = find_server

    def get_credentials(self) -> tuple[()] | tuple[str] | tuple[str, str]:  # type: ignore[override]
        """Return nothing, a password, or user name and password.

        Raises redis.AuthenticationError for a file that cannot be used: redis-py retries after this error, and the file
        may be usable by then.
        """
        try:
            username, password = self.read()
        except SettingsError as error:
            raise redis.AuthenticationError(str(error)) from None
        if username:
            return username, password
        return (password,) if password else ()


class Link:
    """Creates the Redis clients of a process. The repr contains no secret."""

    def __init__(self, settings: Settings) -> None:
        """Read the address and the credentials. Raises SettingsError if the URL or a file cannot be used."""
        self._settings = settings
        # Connection pools of the clients.
        self._pools: weakref.WeakSet[redis.ConnectionPool] = weakref.WeakSet()
        # Host and port of the primary that Sentinel has announced last.
        self._primary: tuple[str, int] | None = None
        self.address = address.parse(settings.resolved_redis_url())
        self.credentials = Credentials(self._read_server_user, self._find_server)
        self.credentials.read()
        if self.address.is_sentinel and not settings.redis_sentinel_master:
            raise SettingsError("DSF_REDIS_SENTINEL_MASTER: not set; it is the name of the primary in Sentinel")
        self.uses_tls = settings.redis_sentinel_tls if self.address.is_sentinel else self.address.scheme == "rediss"

    def __repr__(self) -> str:
        return f"Link({self.address})"

    def _read_server_user(self) -> tuple[str, str]:
        """Return user name and password in DSF_REDIS_USERNAME and DSF_REDIS_PASSWORD_FILE, else those in the URL."""
        settings, url_address = self._settings, address.parse(self._settings.resolved_redis_url())
        password = settings.resolved_redis_password()
        return settings.redis_username or url_address.username, url_address.password if password is None else password

    def _read_sentinel_user(self) -> tuple[str, str]:
        return self._settings.redis_sentinel_username, self._settings.resolved_redis_sentinel_password() or ""

    @property
    def url(self) -> str:
        """Celery's broker URL, with all Sentinels, and without user name and password."""
        host, port = self.address.hosts[0]
        if not connection.is_socket(host):
            return str(self.address)
        # Encode the path as a host, because kombu's own URL for a socket would select redis-py's connection class.
        return f"redis://{''.join(f'%{byte:02x}' for byte in host.encode())}:{port}/{self.address.db}"

    @property
    def tls_options(self) -> dict[str, Any]:
        """redis-py's TLS options; empty without TLS."""
        if not self.uses_tls:
            return {}
        files = {
            "ssl_ca_certs": self._settings.redis_ca_file,
            "ssl_certfile": self._settings.redis_cert_file,
            "ssl_keyfile": self._settings.redis_key_file,
        }
        file_options = {name: str(file) for name, file in files.items() if file is not None}
        return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **file_options}

    def make_client(self, max_connections: int | None = None, **options: Any) -> redis.Redis:
        """Return a client that connects at its first command. `options` are redis-py's options for connections.

        With `max_connections`, a thread waits for a free connection up to the timeout of a response.
        """
        return self._create_client(self.connection_class, *self.address.hosts[0], options, max_connections)

    def make_server_client(self, host: str, port: int, **options: Any) -> redis.Redis:
        """Return a client of the server at `host`, without Sentinel. `options` are those of `make_client`."""
        return self._create_client(self._get_connection_class(host), host, port, options)

    def _create_client(
        self, kind: Any, host: str, port: int, options: dict[str, Any], max_connections: int | None = None
    ) -> redis.Redis:
        options |= {"db": self.address.db, "credential_provider": self.credentials} | self.tls_options
        pool: redis.ConnectionPool
        if max_connections is None:
            pool = redis.ConnectionPool(connection_class=kind, host=host, port=port, **options)
        else:
            pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
                max_connections,
                self._settings.redis_socket_timeout,
                connection_class=kind,
                host=host,
                port=port,
                **options,
            )
        self._pools.add(pool)
        return redis.Redis.from_pool(pool)

    def _get_connection_class(self, host: str) -> Any:
        if connection.is_socket(host):
            return connection.SocketConnection
        return connection.TlsConnection if self.uses_tls else connection.PlainConnection

    @property
    def connection_class(self) -> Any:
        """The class of connections to the server. Behind Sentinel, connections query it for the server's address."""
        if not self.address.is_sentinel:
            return self._get_connection_class(self.address.hosts[0][0])
        return connection.MasterTlsConnection if self.uses_tls else connection.MasterConnection

    def list_replicas(self) -> list[tuple[str, int]]:
        """Return host and port of each replica that Sentinel can reach. Raises redis.RedisError."""
        with self.make_sentinels_client() as sentinels:
            return list(sentinels.discover_slaves(self._settings.redis_sentinel_master))

    def make_sentinels_client(self) -> Sentinels:
        """Return a new client of all Sentinels."""
        return Sentinels(self.address.hosts, self.make_sentinel_options(), self.uses_tls)

    @functools.cached_property
    def _sentinels(self) -> Sentinels:
        return self.make_sentinels_client()

    def _find_server(self) -> tuple[str, int]:
        """Return host and port of the primary. After a failover, close the connections to the previous primary."""
        previous_primary, self._primary = (
            self._primary,
            self._sentinels.discover_master(self._settings.redis_sentinel_master),
        )
        if previous_primary not in (None, self._primary):
            # Connections in use are closed when they return to the pool.
            for pool in list(self._pools):
                pool.update_active_connections_for_reconnect()
                pool.disconnect(inuse_connections=False)
        return self._primary

    def make_sentinel_options(self) -> dict[str, Any]:
        """Return redis-py's options for connections to the Sentinels, which have separate users."""
        settings = self._settings
        return {
            "socket_timeout": settings.redis_socket_timeout,
            "socket_connect_timeout": get_connect_timeout(settings),
            # Disable retries, because the next Sentinel is queried immediately.
            "retry": Retry(NoBackoff(), 0),
            "credential_provider": Credentials(self._read_sentinel_user),
            **self.tls_options,
        }
