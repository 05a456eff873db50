"""Celery's connections: short waits that differ, and an address without secrets."""

from __future__ import annotations

from typing import Any

import kombu
import pytest

from dsf.agent.ticks import TickTransport
from dsf.redislink import broker, connection
from dsf.worker.application import make_app
from tests.support.fixtures import SettingsFactory

SECRETS = ("some-password", "some-user")


@pytest.mark.parametrize("role", ["agent", "results", "beat", "hub"])
@pytest.mark.parametrize(
    ("url", "expected_uri"),
    [
        ("redis://some-user:some-password@redis.example:6380/0", "redis://redis.example:6380/0"),
        ("rediss://:some-password@redis.example/0", "rediss://redis.example:6379/0"),
        (
            "sentinel://:some-password@one:26379;sentinel://two:26379/0",
            "sentinel://one:26379/0;sentinel://two:26379/0",
        ),
        ("redis+socket://:some-password@/run/Redis.sock?virtual_host=1", "unix:///run/Redis.sock?db=1"),
    ],
)
def test_logs_name_the_server_and_no_secret(
    settings_factory: SettingsFactory, role: str, url: str, expected_uri: str
) -> None:
    app = make_app(settings_factory(role=role, cluster="c1", redis_url=url, redis_sentinel_master="hub"))
    with app.connection_for_read() as connection:
        assert isinstance(connection, broker.Connection)
        assert connection.as_uri() == expected_uri
        assert not any(secret in connection.as_uri() for secret in SECRETS)
    app.close()


def test_flower_gets_the_password_when_it_asks_for_it(settings_factory: SettingsFactory) -> None:
    app = make_app(settings_factory(role="flower", redis_url="redis://some-user:some-password@redis.example/0"))
    with app.connection() as connection:
        assert connection.as_uri(include_password=True) == "redis://some-user:some-password@redis.example:6379/0"
        assert connection.as_uri() == "redis://redis.example:6379/0"
    app.close()


def test_flowers_page_of_queues_gets_a_socket_as_it_takes_one(settings_factory: SettingsFactory) -> None:
    app = make_app(settings_factory(role="flower", redis_url="unix://:some%40password@/run/Redis.sock"))
    with app.connection() as connection:
        assert connection.as_uri(include_password=True) == "redis+socket://:some%40password@/run/Redis.sock"
        assert connection.as_uri() == "unix:///run/Redis.sock?db=0"
    app.close()


def test_waits_for_redis_have_an_end_and_differ(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[dict[str, float]] = []

    def connect(self: kombu.Connection, *_: Any, **options: Any) -> kombu.Connection:
        waits.append(options)
        return self

    monkeypatch.setattr(kombu.Connection, "ensure_connection", connect)
    app = make_app(settings_factory(role="flower"))
    with app.connection() as connection:
        for _ in range(20):
            connection.ensure_connection()
        connection.ensure_connection(interval_max=1)
    app.close()
    assert waits.pop()["interval_max"] == 1
    assert all(
        2.5 <= retry_options["interval_max"] <= 5 and retry_options["interval_start"] <= 1 for retry_options in waits
    )
    assert len({retry_options["interval_max"] for retry_options in waits}) > 10


def test_foreign_connection_behaves_like_kombu() -> None:
    with broker.Connection("memory://") as connection:
        assert connection.as_uri() == kombu.Connection("memory://").as_uri()
        assert connection.ensure_connection() is connection


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://redis.example/0", connection.PlainConnection),
        ("rediss://redis.example/0", connection.TlsConnection),
        ("unix:///run/Redis.sock", connection.SocketConnection),
        ("sentinel://one:26379;sentinel://two:26379/0", connection.MasterConnection),
    ],
)
def test_connections_are_this_packages(settings_factory: SettingsFactory, url: str, kind: type) -> None:
    app = make_app(settings_factory(role="agent", cluster="c1", redis_url=url, redis_sentinel_master="hub"))
    with app.connection_for_read() as connection:
        # The kind is also used after a switch to the next Sentinel.
        for _ in range(2):
            assert connection.get_transport_cls() is TickTransport
            assert {connection.transport_options[name] for name in ("connection_class", "connection_class_ssl")} == {
                kind
            }
            connection.maybe_switch_next()
    app.close()
