"""Sentinel clients: credentials, and errors of Sentinels that do not return the server's address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis.credentials import CredentialProvider
from redis.sentinel import MasterNotFoundError
from redis.sentinel import Sentinel as _Sentinel

from dsf.errors import SettingsError
from dsf.redislink import connection
from dsf.settings import Settings

# Not all of its methods have types.
_Base: Any = _Sentinel


class Sentinels(_Base):  # type: ignore[misc]
    """redis-py's Sentinels, with this package's connections and readable errors.

    `options` are those of connections to a Sentinel, `server_options` those of connections to the server that they
    name.
    """

    def __init__(
        self, hosts: list[tuple[str, int]], options: dict[str, Any], uses_tls: bool, server_options: dict[str, Any]
    ) -> None:
        super().__init__([], sentinel_kwargs=options, **server_options)
        self.sentinels = [_client(host, port, options, uses_tls) for host, port in hosts]

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the server. Raises redis.ConnectionError with each Sentinel's error."""
        problems = []
        for number, sentinel in enumerate(self.sentinels):
            try:
                known: Any = sentinel.sentinel_masters()
            except redis.RedisError as error:
                problems.append(_refusal(sentinel, error))
                continue
            master = known.get(service_name)
            if master and self.check_master_state(master, service_name):
                # Asked first from now on.
                self.sentinels[0], self.sentinels[number] = sentinel, self.sentinels[0]
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


class SentinelRedis(redis.Redis):
    """A client that also closes its connections to the Sentinels."""

    #: The `Sentinels` that it belongs to.
    manager: Any = None

    def close(self) -> None:
        """Close everything; a later command connects again."""
        super().close()
        if self.manager is not None:
            self.manager.close()


class SentinelCredentials(CredentialProvider):
    """Current user and password for the Sentinels."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[()] | tuple[str] | tuple[str, str]:  # type: ignore[override]
        """For redis-py. Raises redis.AuthenticationError when a file cannot be used."""
        try:
            password = self._settings.resolved_redis_sentinel_password() or ""
        except SettingsError as error:
            raise redis.AuthenticationError(str(error)) from None
        if self._settings.redis_sentinel_username:
            return self._settings.redis_sentinel_username, password
        return (password,) if password else ()


def _client(host: str, port: int, options: dict[str, Any], uses_tls: bool) -> redis.Redis:
    # redis-py's option for TLS chooses a connection class; here that is set explicitly.
    others = {name: value for name, value in options.items() if name != "ssl"}
    kind: Callable[..., Any] = connection.SentinelTlsConnection if uses_tls else connection.SentinelConnection
    return redis.Redis.from_pool(redis.ConnectionPool(connection_class=kind, host=host, port=port, **others))


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
