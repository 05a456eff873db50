"""Metrics of the Redis server itself, from its INFO, and the ends of the certificates between it and the hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import redis
from cryptography import x509
from prometheus_client.core import Metric

import dsf.log
from dsf import metrics
from dsf.fleetmetrics.families import Labels, filled

log = dsf.log.get(__name__)

#: Seconds between two looks at the certificates, each of which opens a connection.
CERTIFICATE_PERIOD: Final = 60.0
#: Fields of INFO whose value is `ok` while Redis can write its files, by kind of file.
_FILE_STATUS: Final = {
    "aof": ("aof_last_write_status", "aof_last_bgrewrite_status"),
    "rdb": ("rdb_last_bgsave_status",),
}


class ServerFamilies:
    """Reads the server's metrics at each scrape, and its certificates once a minute."""

    def __init__(self, client: redis.Redis, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._certificates: dict[str, float] = {}
        self._next_look = monotonic()
        self._is_refused = False

    def collect(self) -> list[Metric]:
        """Return the families; none if the server refuses INFO, which must not hide those of the fleet.

        Raises redis.RedisError.
        """
        try:
            info: dict[str, Any] = self._client.info()
            slow_commands = int(self._client.slowlog_len())
        except redis.ResponseError as error:
            if not self._is_refused:
                log.warning(
                    "no metrics of Redis itself; do its users have the rights of this version?", error=str(error)
                )
            self._is_refused = True
            return []
        self._is_refused = False
        if self._monotonic() >= self._next_look:
            self._next_look = self._monotonic() + CERTIFICATE_PERIOD
            # The ends known before stay if no new connection is possible, as with an expired certificate.
            self._certificates |= certificate_ends(self._client)
        return [
            *server_families(info, slow_commands),
            filled(metrics.CERTIFICATE_END.gauge(), {(name,): end for name, end in self._certificates.items()}),
        ]


def server_families(info: Mapping[str, Any], slow_commands: int) -> list[Metric]:
    """Return the families of a server with this INFO and so many entries in its slow log."""

    def number(field: str) -> float:
        return float(info.get(field, 0))

    file_status: dict[Labels, float] = {
        (kind,): float(all(info.get(field, "ok") == "ok" for field in fields)) for kind, fields in _FILE_STATUS.items()
    }
    return [
        filled(metrics.REDIS_MEMORY.gauge(), {(): number("used_memory")}),
        filled(metrics.REDIS_MEMORY_LIMIT.gauge(), {(): number("maxmemory")}),
        filled(metrics.REDIS_CLIENTS.gauge(), {(): number("connected_clients")}),
        filled(metrics.REDIS_CLIENT_LIMIT.gauge(), {(): number("maxclients")}),
        filled(metrics.REDIS_REJECTED_CONNECTIONS.counter(), {(): number("rejected_connections")}),
        filled(metrics.REDIS_EVICTED_KEYS.counter(), {(): number("evicted_keys")}),
        filled(metrics.REDIS_FILES_WRITTEN.gauge(), file_status),
        filled(metrics.REDIS_REPLICAS.gauge(), {(): number("connected_slaves")}),
        filled(metrics.REDIS_SLOW_COMMANDS.gauge(), {(): slow_commands}),
        filled(metrics.REDIS_STARTED.gauge(), {(): time.time() - number("uptime_in_seconds")}),
    ]


def certificate_ends(client: redis.Redis) -> dict[str, float]:
    """Return when the certificates of a new connection end, in unix seconds; empty without TLS or if it fails."""
    connection: Any = client.connection_pool.make_connection()
    try:
        connection.connect()
        ends = {}
        served_certificate = getattr(connection, "peer_certificate", b"")
        if served_certificate:
            certificate = x509.load_der_x509_certificate(served_certificate)
            ends["redis"] = certificate.not_valid_after_utc.timestamp()
            if connection.ca_certs:
                ends["redis-ca"] = _authority_end(certificate, connection.ca_certs)
            if connection.certfile:
                ends["redis-client"] = min(_ends(_certificates(connection.certfile)[:1]))
        return ends
    except (redis.RedisError, OSError, ValueError) as error:
        log.warning("the certificate of Redis cannot be read", error=str(error))
        return {}
    finally:
        connection.disconnect()


def _authority_end(certificate: x509.Certificate, file: str) -> float:
    """Return the latest end of the CAs in the file that have the issuer's name: a CA and its renewal are one."""
    authorities = _certificates(file)
    issuers = [authority for authority in authorities if authority.subject == certificate.issuer]
    # An intermediate CA that the server sends is in no file.
    return max(_ends(issuers)) if issuers else min(_ends(authorities))


def _certificates(file: str) -> list[x509.Certificate]:
    with open(file, "rb") as stream:
        return x509.load_pem_x509_certificates(stream.read())


def _ends(certificates: list[x509.Certificate]) -> list[float]:
    return [certificate.not_valid_after_utc.timestamp() for certificate in certificates]
