"""The name of the hub that pages show."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from dsf.fleet.queries import FleetQueries
from dsf.kube.session import Session
from dsf.settings import Settings
from dsf.store.notices import ClusterNotice, Notices
from dsf.web.hubname import HubName
from tests.support.redisserver import AT_ONCE

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: hub
contexts: [{name: hub, context: {cluster: hub, user: hub}}]
clusters: [{name: hub, cluster: {server: 'https://api.hub-eu.example.com:6443'}}]
users: [{name: hub, user: {token: none}}]
"""


@pytest.mark.parametrize(
    ("hub_name", "cluster", "expected"),
    [
        ("", "", ""),
        ("", "local-cluster", ""),
        ("", "hub-eu", "hub-eu"),
        ("hub 7", "hub-eu", "hub 7"),
    ],
)
def test_name_is_the_setting_or_that_of_the_clusters_own_object(
    redis_client: redis.Redis, hub_name: str, cluster: str, expected: str
) -> None:
    notices = Notices(redis_client)
    notices.write_cluster(ClusterNotice(name="worker01", labels={"local-cluster": "false"}))
    if cluster:
        notices.write_cluster(ClusterNotice(name=cluster, labels={"local-cluster": "true"}))
    assert HubName(Settings(hub_name=hub_name), None, FleetQueries(redis_client)).read() == expected


def test_name_is_the_api_server_of_the_kubeconfig(redis_client: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    session = Session.load(file)
    model = FleetQueries(redis_client)
    assert HubName(Settings(kubeconfig=file), session, model).read() == "api.hub-eu.example.com:6443"
    assert HubName(Settings(kubeconfig=file, hub_name="eu"), session, model).read() == "eu"
    # In a pod, the address is that of every hub.
    assert HubName(Settings(), session, model).read() == ""
    session.close()


def test_name_is_empty_while_redis_is_unreadable() -> None:
    unreachable = redis.Redis(port=1, socket_connect_timeout=1, retry=AT_ONCE)
    assert HubName(Settings(), None, FleetQueries(unreachable)).read() == ""
