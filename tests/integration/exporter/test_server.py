"""Metrics of Redis itself, read with the rights of the service web from a server with TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from prometheus_client.core import Metric

from dsf.fleetmetrics.server import CERTIFICATE_CHECK_SECONDS, ServerFamilies
from dsf.settings import Settings
from dsf.store.client import connect
from tests.support.secureredis import SecureRedis
from tests.support.tlsca import TestCa

PREFIX = "dynamic_scoring_redis_"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    return TestCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(ca: TestCa) -> Iterator[SecureRedis]:
    certificate = ca.issue("localhost", "127.0.0.1", end=timedelta(days=5))
    options = ("--maxclients", "321", "--maxmemory", "64mb", "--slowlog-log-slower-than", "0")
    with SecureRedis(ca, certificate=certificate, options=options) as running_server:
        yield running_server


@contextlib.contextmanager
def client_of(server: SecureRedis, role: str) -> Iterator[redis.Redis]:
    settings = Settings(redis_url=server.hub_url(role), redis_ca_file=server.ca.cert)
    with contextlib.closing(connect(settings, retries=0)) as client:
        yield client


def values(families: list[Metric]) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_metrics_show_use_limits_and_files(server: SecureRedis) -> None:
    with client_of(server, "web") as client:
        exposed = values(ServerFamilies(client).collect())
    assert 0 < exposed[PREFIX + "memory_bytes",] < exposed[PREFIX + "memory_limit_bytes",] == 64 * 2**20
    assert 0 < exposed[PREFIX + "clients",] < exposed[PREFIX + "client_limit",] == 321
    assert exposed[PREFIX + "slow_commands",] > 0
    assert {name: value for name, value in exposed.items() if "files_written" in name[0]} == {
        (PREFIX + "files_written", "aof"): 1,
        (PREFIX + "files_written", "rdb"): 1,
    }
    assert exposed[PREFIX + "replicas",] == exposed[PREFIX + "evicted_keys_total",] == 0


def test_certificate_ends_follow_a_renewal(server: SecureRedis, ca: TestCa, tmp_path: Path) -> None:
    seconds = 0.0
    name = "dynamic_scoring_certificate_end_timestamp_seconds"
    with client_of(server, "web") as client:
        families = ServerFamilies(client, monotonic=lambda: seconds)
        exposed = values(families.collect())
        assert _days(exposed[name, "redis"]) == pytest.approx(5, abs=0.1)
        assert _days(exposed[name, "redis-ca"]) == pytest.approx(2, abs=0.1)
        renewed = ca.issue("localhost", "127.0.0.1", end=timedelta(days=9))
        server.client().config_set("tls-cert-file", str(renewed.cert), "tls-key-file", str(renewed.key))
        assert _days(values(families.collect())[name, "redis"]) == pytest.approx(5, abs=0.1)
        seconds = CERTIFICATE_CHECK_SECONDS
        assert _days(values(families.collect())[name, "redis"]) == pytest.approx(9, abs=0.1)
        # An expired certificate refuses new connections; the end known before stays.
        expired = ca.issue("localhost", "127.0.0.1", end=timedelta(minutes=-1))
        server.client().config_set("tls-cert-file", str(expired.cert), "tls-key-file", str(expired.key))
        seconds = 2 * CERTIFICATE_CHECK_SECONDS
        try:
            assert _days(values(families.collect())[name, "redis"]) == pytest.approx(9, abs=0.1)
        finally:
            first = server.certificate
            connected = next(iter(server._clients))
            connected.config_set("tls-cert-file", str(first.cert), "tls-key-file", str(first.key))


def test_users_of_an_older_version_lose_only_these_metrics(server: SecureRedis) -> None:
    with client_of(server, "beat") as client:
        assert ServerFamilies(client).collect() == []


def _days(unix_seconds: float) -> float:
    return (datetime.fromtimestamp(unix_seconds, UTC) - datetime.now(UTC)) / timedelta(days=1)
