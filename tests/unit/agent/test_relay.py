"""The relay to the hub's Redis: bytes in both directions, and errors with a cause and a remedy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dsf.agent import relay as relay_module
from dsf.agent.main import make_relay
from dsf.agent.relay import HubRelay
from dsf.errors import SettingsError
from tests.support.fixtures import SettingsFactory
from tests.support.forgetfulrelay import ForgetfulRelay
from tests.support.portforwardserver import POD, PortForwardServer, serving, write_kubeconfig
from tests.support.wait import wait_for

#: Seconds after which a load balancer of these tests drops an idle connection.
_IDLE_LIMIT = 0.5


@pytest.fixture
def api_server(redis_url: str) -> Iterator[PortForwardServer]:
    with serving(urlsplit(redis_url).port or 0) as server:
        yield server


@pytest.fixture
def kubeconfig(tmp_path: Path, api_server: PortForwardServer) -> Path:
    file = tmp_path / "kubeconfig"
    write_kubeconfig(file, api_server.port, "first-token")
    return file


@pytest.fixture
def relay(settings_factory: SettingsFactory, kubeconfig: Path) -> Iterator[HubRelay]:
    hub_relay = HubRelay(settings_factory(role="agent", redis_pod=POD, hub_kubeconfig=kubeconfig), "127.0.0.1", 0)
    hub_relay.start()
    yield hub_relay
    hub_relay.stop()


@pytest.fixture
def client(relay: HubRelay) -> Iterator[redis.Redis]:
    with redis.Redis(
        host="127.0.0.1", port=relay.address[1], socket_timeout=5.0, retry=Retry(NoBackoff(), 0)
    ) as connected:
        yield connected


def refusal(client: redis.Redis, relay: HubRelay) -> str:
    """Return the relay's problem after a new connection has failed."""

    def find_problem() -> str:
        # The first failure may belong to an earlier connection.
        with pytest.raises(redis.ConnectionError):
            client.ping()
        return relay.find_problem()

    return wait_for(find_problem, 5.0, "the relay to say why")


def test_commands_and_large_values_pass_in_both_directions(client: redis.Redis, api_server: PortForwardServer) -> None:
    value = bytes(range(256)) * 8192
    client.set("large", value)
    assert client.get("large") == value
    assert api_server.paths == [
        "/api/v1/namespaces/open-cluster-management/pods/dynamic-scoring-redis-0/portforward?ports=6379"
    ]


def test_several_connections_work_at_once(relay: HubRelay, client: redis.Redis) -> None:
    with redis.Redis(host="127.0.0.1", port=relay.address[1]) as waiting, waiting.pubsub() as subscriber:
        subscriber.subscribe("channel")
        wait_for(lambda: client.publish("channel", "text") == 1, 5.0, "the subscriber")
        messages = iter(subscriber.listen())
        assert next(message["data"] for message in messages if message["type"] == "message") == b"text"


def test_kubeconfig_is_read_again_for_each_connection(
    client: redis.Redis, api_server: PortForwardServer, kubeconfig: Path
) -> None:
    client.ping()
    write_kubeconfig(kubeconfig, api_server.port, "renewed-token")
    client.connection_pool.disconnect()
    client.ping()
    assert api_server.authorizations == ["Bearer first-token", "Bearer renewed-token"]


def test_clients_reconnect_after_the_api_server_has_restarted(
    client: redis.Redis, api_server: PortForwardServer, relay: HubRelay
) -> None:
    client.ping()
    api_server.stop()
    assert "cannot be reached from this cluster: Connection refused" in refusal(client, relay)
    api_server.start()
    assert client.ping()
    assert relay.find_problem() == ""


def test_connection_ends_on_both_sides(client: redis.Redis, api_server: PortForwardServer) -> None:
    client.ping()
    assert len(api_server.open) == 1
    client.connection_pool.disconnect()
    wait_for(lambda: not api_server.open, 5.0, "the WebSocket to be closed")


def test_idle_connections_are_pinged(
    monkeypatch: pytest.MonkeyPatch, settings_factory: SettingsFactory, kubeconfig: Path, api_server: PortForwardServer
) -> None:
    monkeypatch.setattr(relay_module, "_PING_INTERVAL_SECONDS", 0.05)
    hub_relay = HubRelay(settings_factory(role="agent", redis_pod=POD, hub_kubeconfig=kubeconfig), "127.0.0.1", 0)
    hub_relay.start()
    try:
        with redis.Redis(host="127.0.0.1", port=hub_relay.address[1]) as client:
            client.ping()
            wait_for(lambda: api_server.pings >= 2, 5.0, "pings")
            assert client.ping()
    finally:
        hub_relay.stop()


def test_pings_keep_connections_through_a_load_balancer_that_drops_idle_ones(
    monkeypatch: pytest.MonkeyPatch, settings_factory: SettingsFactory, kubeconfig: Path, api_server: PortForwardServer
) -> None:
    """The default interval is to 60 s, a usual idle limit, as this one to half a second."""
    monkeypatch.setattr(relay_module, "_PING_INTERVAL_SECONDS", relay_module._PING_INTERVAL_SECONDS * _IDLE_LIMIT / 60)
    with ForgetfulRelay(api_server.port, _IDLE_LIMIT, resets=False) as balancer:
        write_kubeconfig(kubeconfig, balancer.port, "token")
        hub_relay = HubRelay(settings_factory(role="agent", redis_pod=POD, hub_kubeconfig=kubeconfig), "127.0.0.1", 0)
        hub_relay.start()
        try:
            with redis.Redis(host="127.0.0.1", port=hub_relay.address[1], socket_timeout=5.0) as client:
                client.ping()
                idle_since = time.monotonic()
                wait_for(lambda: time.monotonic() > idle_since + 4 * _IDLE_LIMIT, 10.0, "the limit to pass")
                assert client.ping()
        finally:
            hub_relay.stop()
    assert (balancer.connections, balancer.forgotten) == (1, 0)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, "does not accept the add-on's client certificate"),
        (403, "forbids port-forwards to the Redis pod open-cluster-management/dynamic-scoring-redis-0"),
        (404, "the hub has no Redis pod open-cluster-management/dynamic-scoring-redis-0"),
        (407, "wants a login"),
        (301, "does not pass on WebSockets"),
        (200, "does not pass on WebSockets"),
        (500, "is the pod running?"),
    ],
)
def test_refused_upgrade_is_explained_with_a_remedy(
    status: int, text: str, client: redis.Redis, api_server: PortForwardServer, relay: HubRelay
) -> None:
    api_server.status = status
    problem = refusal(client, relay)
    assert text in problem
    assert "\n" not in problem
    api_server.status = 101
    assert client.ping()
    assert relay.find_problem() == ""


def test_kubelet_error_is_quoted(client: redis.Redis, api_server: PortForwardServer, relay: HubRelay) -> None:
    api_server.kubelet_error = "error forwarding port 6379 to pod: connection refused\n"
    assert refusal(client, relay) == (
        "the hub cannot connect to port 6379 of its Redis pod open-cluster-management/dynamic-scoring-redis-0: "
        "error forwarding port 6379 to pod: connection refused"
    )


def test_missing_secret_is_named(client: redis.Redis, relay: HubRelay, kubeconfig: Path) -> None:
    kubeconfig.unlink()
    assert "OCM's registration agent creates the Secret dynamic-scoring-framework-hub-kubeconfig" in refusal(
        client, relay
    )


def test_unreadable_kubeconfig_does_not_show_its_content(
    client: redis.Redis, relay: HubRelay, kubeconfig: Path
) -> None:
    kubeconfig.write_text("users: [{token: secret-token")
    problem = refusal(client, relay)
    assert "cannot be used" in problem
    assert "secret-token" not in problem


@pytest.mark.parametrize("pod", ["redis-0", "namespace/redis-0", "/redis-0:6379", "namespace/redis-0:tls"])
def test_malformed_pod_is_refused(pod: str, settings_factory: SettingsFactory, kubeconfig: Path) -> None:
    settings = settings_factory(role="agent", redis_pod=pod, hub_kubeconfig=kubeconfig)
    with pytest.raises(SettingsError, match=r"DSF_REDIS_POD: .*NAMESPACE/POD:PORT"):
        HubRelay(settings, "127.0.0.1", 0)


def test_pod_without_kubeconfig_is_refused(settings_factory: SettingsFactory) -> None:
    with pytest.raises(SettingsError, match="DSF_HUB_KUBECONFIG: not set"):
        HubRelay(settings_factory(role="agent", redis_pod=POD), "127.0.0.1", 0)


def test_host_of_another_machine_is_refused(settings_factory: SettingsFactory, kubeconfig: Path) -> None:
    settings = settings_factory(role="agent", redis_pod=POD, hub_kubeconfig=kubeconfig)
    with pytest.raises(SettingsError, match="hostAliases"):
        HubRelay(settings, "192.0.2.1", 6379)


def test_sentinels_are_refused(settings_factory: SettingsFactory, kubeconfig: Path) -> None:
    settings = settings_factory(
        role="agent",
        redis_pod=POD,
        hub_kubeconfig=kubeconfig,
        redis_url="sentinel://127.0.0.1:26379/0",
        redis_sentinel_master="main",
    )
    with pytest.raises(SettingsError, match="leads to one server"):
        make_relay(settings)
