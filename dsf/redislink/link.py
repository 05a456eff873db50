"""Connection parameters from the settings, with the current user and password, and redis-py clients."""

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

# Some of its methods have no types.
_Base: Any = _Sentinel


class Sentinels(_Base):  # type: ignore[misc]
    """redis-py's Sentinels, with this package's connections and readable errors."""

    def __init__(self, hosts: Iterable[tuple[str, int]], options: dict[str, Any], uses_tls: bool) -> None:
        """`options` are those of connections to a Sentinel."""
        super().__init__([])
        self.sentinels = [_client(host, port, options, uses_tls) for host, port in hosts]

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the server. Raises redis.ConnectionError with each Sentinel's error."""
        problems = []
        for sentinel in self.sentinels:
            try:
                masters: Any = sentinel.sentinel_masters()
            except redis.RedisError as error:
                problems.append(_refusal(sentinel, error))
                continue
            finally:
                # The Sentinel is asked seldom: no socket waits for the next time.
                sentinel.connection_pool.disconnect(inuse_connections=False)
            master = masters.get(service_name)
            if master and self.check_master_state(master, service_name):
                # Asked first from now on; in a new list, for other threads are in this one.
                self.sentinels = [sentinel, *(other for other in self.sentinels if other is not sentinel)]
                return master["ip"], master["port"]
            what = "says that it is down" if master else "does not know it (DSF_REDIS_SENTINEL_MASTER)"
            problems.append(f"Sentinel at {_where(sentinel)} {what}")
        raise MasterNotFoundError(f"no Sentinel says where Redis {service_name!r} is: {'; '.join(problems)}")

    def discover_slaves(self, service_name: str) -> list[tuple[str, int]]:
        """Host and port of each replica that can be reached. Raises redis.ConnectionError when no Sentinel answers."""
        problems = []
        for sentinel in self.sentinels:
            try:
                replicas = self.filter_slaves(sentinel.sentinel_slaves(service_name))
            except redis.RedisError as error:
                problems.append(_refusal(sentinel, error))
                continue
            if replicas:
                return [(str(host), int(port)) for host, port in replicas]
        if len(problems) == len(self.sentinels):
            raise redis.ConnectionError(f"no Sentinel says what replicas {service_name!r} has: {'; '.join(problems)}")
        return []


def _client(host: str, port: int, options: dict[str, Any], uses_tls: bool) -> redis.Redis:
    kind: Callable[..., Any] = connection.SentinelTlsConnection if uses_tls else connection.SentinelConnection
    return redis.Redis.from_pool(redis.ConnectionPool(connection_class=kind, host=host, port=port, **options))


def _where(sentinel: redis.Redis) -> str:
    options = sentinel.connection_pool.connection_kwargs
    return f"{options['host']}:{options['port']}"


def _refusal(sentinel: redis.Redis, error: redis.RedisError) -> str:
    where = _where(sentinel)
    if isinstance(error, redis.exceptions.NoPermissionError):
        return (
            f"Sentinel at {where} does not let its user ask ({error}): the user of DSF_REDIS_SENTINEL_USERNAME needs "
            "+sentinel|masters +sentinel|slaves"
        )
    return str(error) if where in str(error) else f"Sentinel at {where}: {error}"


#: Seconds without traffic after which a connection is checked before it is used: an idle one is found dead after about
#: twice this.
HEALTH_CHECK_INTERVAL: Final = 10.0


def connect_timeout(settings: Settings) -> float:
    """Longest wait in seconds for a connection: half of that for an answer, for a server that works accepts at once."""
    return settings.redis_socket_timeout / 2


class Credentials(CredentialProvider):
    """User and password from the settings and the files that they name, and the server behind Sentinel.

    Connections ask for them at each connect: a rotated password needs no restart.
    """

    def __init__(self, read: Callable[[], tuple[str, str]], find: Callable[[], tuple[str, int]] | None = None) -> None:
        """`read` gives both, which may be empty, and raises SettingsError when a file cannot be used.

        `find` gives host and port, and raises redis.ConnectionError; None without Sentinel.
        """
        self.read = read
        self.find = find

    def get_credentials(self) -> tuple[()] | tuple[str] | tuple[str, str]:  # type: ignore[override]
        """For redis-py: nothing, a password, or user and password.

        Raises redis.AuthenticationError when a file cannot be used: the caller retries later, when it may
        exist.
        """
        try:
            username, password = self.read()
        except SettingsError as error:
            raise redis.AuthenticationError(str(error)) from None
        if username:
            return username, password
        return (password,) if password else ()


class Link:
    """Redis access of one process. Its repr has no secret."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError when the URL or a named file cannot be used."""
        self._settings = settings
        #: Pools of its clients; and the server that the Sentinels named last.
        self._pools: weakref.WeakSet[redis.ConnectionPool] = weakref.WeakSet()
        self._found: tuple[str, int] | None = None
        self.address = address.parse(settings.resolved_redis_url())
        self.credentials = Credentials(self._server_user, self._find)
        self.credentials.read()
        if self.address.is_sentinel and not settings.redis_sentinel_master:
            raise SettingsError("DSF_REDIS_SENTINEL_MASTER: not set; Sentinel knows the server by this name")
        self.uses_tls = settings.redis_sentinel_tls if self.address.is_sentinel else self.address.scheme == "rediss"

    def __repr__(self) -> str:
        return f"Link({self.address})"

    def _server_user(self) -> tuple[str, str]:
        """DSF_REDIS_USERNAME and DSF_REDIS_PASSWORD_FILE override user and password of the URL."""
        settings, inside = self._settings, address.parse(self._settings.resolved_redis_url())
        password = settings.resolved_redis_password()
        return settings.redis_username or inside.username, inside.password if password is None else password

    def _sentinel_user(self) -> tuple[str, str]:
        return self._settings.redis_sentinel_username, self._settings.resolved_redis_sentinel_password() or ""

    @property
    def url(self) -> str:
        """The URL without user and password, or those of all Sentinels, for Celery."""
        host, port = self.address.hosts[0]
        if not connection.is_socket(host):
            return str(self.address)
        # As a host, which may be any bytes in this form. Kombu's own URL of a socket leads to redis-py's connections.
        return f"redis://{''.join(f'%{byte:02x}' for byte in host.encode())}:{port}/{self.address.db}"

    @property
    def tls_options(self) -> dict[str, Any]:
        """TLS options of redis-py; empty without TLS."""
        if not self.uses_tls:
            return {}
        files = {
            "ssl_ca_certs": self._settings.redis_ca_file,
            "ssl_certfile": self._settings.redis_cert_file,
            "ssl_keyfile": self._settings.redis_key_file,
        }
        file_options = {name: str(file) for name, file in files.items() if file is not None}
        return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **file_options}

    def client(self, **options: Any) -> redis.Redis:
        """Return a client; `options` are those of a redis-py connection. It connects at the first command."""
        return self._client(self.connection_class, *self.address.hosts[0], options)

    def client_of(self, host: str, port: int, **options: Any) -> redis.Redis:
        """A client of this server, whether or not Sentinel would name it."""
        return self._client(self._class_for(host), host, port, options)

    def _client(self, kind: Any, host: str, port: int, options: dict[str, Any]) -> redis.Redis:
        options |= {"db": self.address.db, "credential_provider": self.credentials} | self.tls_options
        pool = redis.ConnectionPool(connection_class=kind, host=host, port=port, **options)
        self._pools.add(pool)
        return redis.Redis.from_pool(pool)

    def _class_for(self, host: str) -> Any:
        if connection.is_socket(host):
            return connection.SocketConnection
        return connection.TlsConnection if self.uses_tls else connection.PlainConnection

    @property
    def connection_class(self) -> Any:
        """The class of connections to the server, which ask Sentinel where it is."""
        if not self.address.is_sentinel:
            return self._class_for(self.address.hosts[0][0])
        return connection.MasterTlsConnection if self.uses_tls else connection.MasterConnection

    def replicas(self) -> list[tuple[str, int]]:
        """Host and port of each replica that the Sentinels know and can reach. Raises redis.RedisError."""
        with self.sentinels() as sentinels:
            return list(sentinels.discover_slaves(self._settings.redis_sentinel_master))

    def sentinels(self) -> Sentinels:
        """The Sentinels."""
        return Sentinels(self.address.hosts, self.sentinel_options(), self.uses_tls)

    @functools.cached_property
    def _asked(self) -> Sentinels:
        return self.sentinels()

    def _find(self) -> tuple[str, int]:
        before, self._found = self._found, self._asked.discover_master(self._settings.redis_sentinel_master)
        if before not in (None, self._found):
            # The others may lead to a server that is lost: those in use are closed when they are given back.
            for pool in list(self._pools):
                pool.update_active_connections_for_reconnect()
                pool.disconnect(inuse_connections=False)
        return self._found

    def sentinel_options(self) -> dict[str, Any]:
        """Options of connections to the Sentinels themselves, which do not know the server's users."""
        settings = self._settings
        return {
            "socket_timeout": settings.redis_socket_timeout,
            "socket_connect_timeout": connect_timeout(settings),
            # The next attempt asks another Sentinel at once.
            "retry": Retry(NoBackoff(), 0),
            "credential_provider": Credentials(self._sentinel_user),
            **self.tls_options,
        }
