"""Metrics of the Redis server itself from its INFO, and the expiry of the certificates between it and the hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import redis
from cryptography import x509
from prometheus_client.core import Metric

import dsf.log
from dsf import metrics
from dsf.fleetmetrics.families import Labels, add_values

log = dsf.log.get(__name__)

#: Seconds between two checks of the certificates, each of which opens a connection.
CERTIFICATE_CHECK_SECONDS: Final = 60.0
#: Kind of file -> fields of INFO that are `ok` while Redis can write it.
_FILE_STATUS_FIELDS: Final = {
    "aof": ("aof_last_write_status", "aof_last_bgrewrite_status"),
    "rdb": ("rdb_last_bgsave_status",),
}


class ServerFamilies:
    """Reads the server's metrics at each scrape, and its certificates once a minute."""

    def __init__(self, client: redis.Redis, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._certificate_ends: dict[str, float] = {}
        self._next_check_at = monotonic()
        self._is_info_refused = False

    def collect(self) -> list[Metric]:
        """Return the metric families, or an empty list if the server refuses INFO or SLOWLOG.

        A refusal must not prevent the other families of the scrape, which come from the fleet's rows.

        Raises redis.RedisError for other errors.
        """
        try:
            info: dict[str, Any] = self._client.info()
            slow_commands = int(self._client.slowlog_len())
        except redis.ResponseError as error:
            if not self._is_info_refused:
                log.warning(
                    "no metrics of Redis itself; do its users have the rights of this version?", error=str(error)
                )
            self._is_info_refused = True
            return []
        self._is_info_refused = False
        if self._monotonic() >= self._next_check_at:
            self._next_check_at = self._monotonic() + CERTIFICATE_CHECK_SECONDS
            # The previous values remain if no new connection is possible, for example after a certificate expired.
            self._certificate_ends |= read_certificate_ends(self._client)
        return [
            *make_server_families(info, slow_commands),
            add_values(
                metrics.CERTIFICATE_END.make_gauge(), {(name,): end for name, end in self._certificate_ends.items()}
            ),
        ]


def make_server_families(info: Mapping[str, Any], slow_commands: int) -> list[Metric]:
    """Return the families of a server with this INFO and this number of entries in its slow log."""

    def read_number(field: str) -> float:
        return float(info.get(field, 0))

    file_status: dict[Labels, float] = {
        (kind,): float(all(info.get(field, "ok") == "ok" for field in fields))
        for kind, fields in _FILE_STATUS_FIELDS.items()
    }
    return [
        add_values(metrics.REDIS_MEMORY.make_gauge(), {(): read_number("used_memory")}),
        add_values(metrics.REDIS_MEMORY_LIMIT.make_gauge(), {(): read_number("maxmemory")}),
        add_values(metrics.REDIS_CLIENTS.make_gauge(), {(): read_number("connected_clients")}),
        add_values(metrics.REDIS_CLIENT_LIMIT.make_gauge(), {(): read_number("maxclients")}),
        add_values(metrics.REDIS_REJECTED_CONNECTIONS.make_counter(), {(): read_number("rejected_connections")}),
        add_values(metrics.REDIS_EVICTED_KEYS.make_counter(), {(): read_number("evicted_keys")}),
        add_values(metrics.REDIS_FILES_WRITTEN.make_gauge(), file_status),
        add_values(metrics.REDIS_REPLICAS.make_gauge(), {(): read_number("connected_slaves")}),
        add_values(metrics.REDIS_SLOW_COMMANDS.make_gauge(), {(): slow_commands}),
        add_values(metrics.REDIS_STARTED.make_gauge(), {(): time.time() - read_number("uptime_in_seconds")}),
    ]


def read_certificate_ends(client: redis.Redis) -> dict[str, float]:
    """Return when the certificates of a new connection expire, in unix seconds by name.

    Returns an empty mapping without TLS or if the connection fails.
    """
    connection: Any = client.connection_pool.make_connection()
    try:
        connection.connect()
        ends = {}
        served_certificate = getattr(connection, "peer_certificate", b"")
        if served_certificate:
            certificate = x509.load_der_x509_certificate(served_certificate)
            ends["redis"] = certificate.not_valid_after_utc.timestamp()
            if connection.ca_certs:
                ends["redis-ca"] = _read_issuer_end(certificate, connection.ca_certs)
            if connection.certfile:
                # The first certificate is the client's own. Intermediate CAs may follow.
                ends["redis-client"] = min(_list_expiry_times(_load_certificates(connection.certfile)[:1]))
        return ends
    except (redis.RedisError, OSError, ValueError) as error:
        log.warning("the certificate of Redis cannot be read", error=str(error))
        return {}
    finally:
        connection.disconnect()


def _read_issuer_end(certificate: x509.Certificate, file: str) -> float:
    """Return when the issuer of a certificate expires (unix seconds), from the CAs in the file.

    The latest end of the CAs with the issuer's name counts, because the file may have a CA and its renewal.
    """
    authorities = _load_certificates(file)
    issuers = [authority for authority in authorities if authority.subject == certificate.issuer]
    # The issuer is not in the file if it is an intermediate CA, which the server sends. One of the CAs in the file has
    # then issued the intermediate CA. Return the earliest end, because it is unknown which of them.
    return max(_list_expiry_times(issuers)) if issuers else min(_list_expiry_times(authorities))


def _load_certificates(file: str) -> list[x509.Certificate]:
    with open(file, "rb") as stream:
        return x509.load_pem_x509_certificates(stream.read())


def _list_expiry_times(certificates: list[x509.Certificate]) -> list[float]:
    return [certificate.not_valid_after_utc.timestamp() for certificate in certificates]
