"""The hub restores credentials from its own deliveries: withdrawn credentials stay withdrawn."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from dsf.api.types import CREDENTIALS_NAME, CREDENTIALS_WORK_NAME, PULL_SECRET_NAME
from dsf.backends.protocol import Kind
from dsf.hub.credentials import AgentCredentials
from dsf.hub.registrar import Registrar
from dsf.kube.resources import MANIFEST_WORKS
from dsf.kube.session import Session
from dsf.process.outage import Outage
from dsf.redisacl.clusterusers import ReplicatedClusterUsers
from dsf.redisacl.rules import cluster_user
from dsf.settings import Settings
from dsf.store.agents import AgentKeys
from tests.integration.backends.hub import Hub
from tests.support.controlplane import ControlPlane
from tests.support.redisserver import AT_ONCE
from tests.support.wait import wait_for

MASTER = b"m" * 32
CLEANUP = "cluster.open-cluster-management.io/manifest-work-cleanup"


class CredentialsHarness:
    """A hub that makes users, and one cluster."""

    def __init__(self, hub: Hub, settings: Settings, client: redis.Redis, url: str, cluster: str) -> None:
        self.hub = hub
        self.client = client
        self.cluster = cluster
        self.path = MANIFEST_WORKS.path(cluster, CREDENTIALS_WORK_NAME)
        self._settings = settings
        self._address = urlsplit(url)
        self._users = ReplicatedClusterUsers(client, settings, MASTER)
        self._made: list[AgentCredentials] = []

    def credentials(self) -> AgentCredentials:
        """Return the credentials of a newly started hub."""
        agent_credentials = AgentCredentials(self.hub.backend, self.registrar(), self.client, self._settings)
        agent_credentials.begin(MASTER)
        self._made.append(agent_credentials)
        return agent_credentials

    def registrar(self) -> Registrar:
        """Likewise."""
        return Registrar(self.client, Outage("redis"))

    def lets_in(self, key_id: int) -> bool:
        """Whether Redis takes the password of this id."""
        client = redis.Redis(
            host=self._address.hostname or "",
            port=self._address.port or 0,
            username=cluster_user(self.cluster),
            password=self._users.derive_password(self.cluster, key_id),
            # redis-py would retry a refused login for three seconds.
            retry=AT_ONCE,
        )
        with contextlib.closing(client):
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return False

    def close(self) -> None:
        for agent_credentials in self._made:
            agent_credentials.close()
        self.client.execute_command("ACL", "DELUSER", cluster_user(self.cluster))
        self._users.close()


@pytest.fixture
def world(
    control_plane: ControlPlane,
    hub: Hub,
    redis_client: redis.Redis,
    redis_url: str,
    settings_factory: Callable[..., Settings],
) -> Iterator[CredentialsHarness]:
    settings = settings_factory(role="hub", redis_url=redis_url, redis_manage_users=True)
    credentials_world = CredentialsHarness(hub, settings, redis_client, redis_url, control_plane.cluster())
    yield credentials_world
    credentials_world.close()


def test_returning_cluster_gets_new_credentials_while_its_old_work_still_exists(
    world: CredentialsHarness, session: Session
) -> None:
    credentials = world.credentials()
    credentials.ensure(world.cluster, "uid1")
    assert world.lets_in(1)
    # OCM's agent is not running, so nobody removes the ManifestWork's finalizer.
    session.merge(world.path, {"metadata": {"finalizers": [CLEANUP]}})
    credentials.withdraw(world.cluster)
    # By a plan of a moment ago, while the delivered objects still exist.
    credentials.sync({world.cluster: "uid1"})
    assert not world.lets_in(1)
    world.registrar().remove_cluster(world.cluster)
    world.hub.backend.remove_credentials(world.cluster)

    def is_going() -> bool:
        work = world.hub.backend.get(Kind.WORK, world.cluster, CREDENTIALS_WORK_NAME)
        return work is not None and "deletionTimestamp" in work["metadata"]

    wait_for(is_going, 10)
    assert not world.lets_in(1)
    world.credentials().ensure(world.cluster, "uid2")
    assert (world.lets_in(1), world.lets_in(2)) == (False, True)
    session.merge(world.path, {"metadata": {"finalizers": None}})


def test_recreated_cluster_gets_new_credentials_after_an_outage_of_the_hub(
    world: CredentialsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.credentials().ensure(world.cluster, "uid1")
    wait_for(lambda: world.hub.backend.get_delivered_key_ids(world.cluster))
    new = world.credentials()
    new.sync({world.cluster: "uid2"})
    assert not world.lets_in(1)

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(world.hub.backend, "deliver_credentials", die)
        with pytest.raises(SystemExit):
            new.ensure(world.cluster, "uid2")
    assert (world.lets_in(1), world.lets_in(2)) == (False, True)
    assert world.registrar().get_cluster(world.cluster).key_ids == (2,), "results with the old signing key are refused"
    wait_for(lambda: world.hub.backend.get_delivered_key_ids(world.cluster) is None)
    for _ in range(2):
        newest = world.credentials()
        newest.ensure(world.cluster, "uid2")
        newest.sync({world.cluster: "uid2"})
        assert (world.lets_in(1), world.lets_in(2)) == (False, True)
        delivered = wait_for(lambda: world.hub.backend.get_delivered_key_ids(world.cluster))
        assert delivered.valid == (2,)


def test_interrupted_revocation_leaves_no_old_credential_valid(
    world: CredentialsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = world.credentials()
    dying.ensure(world.cluster, "uid1")
    AgentKeys(world.client).request_credentials(world.cluster, "revoke")
    dying.read_requests()

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(world.hub.backend, "deliver_credentials", die)
        with pytest.raises(SystemExit):
            dying.ensure(world.cluster, "uid1")
    assert (world.lets_in(1), world.lets_in(2)) == (False, True)
    new = world.credentials()
    new.read_requests()
    new.sync({world.cluster: "uid1"})
    assert (world.lets_in(1), world.lets_in(2)) == (False, True)
    new.ensure(world.cluster, "uid1")
    assert (world.lets_in(1), world.lets_in(2)) == (False, True)


def test_pull_secret_is_delivered_updated_and_removed(
    world: CredentialsHarness,
    session: Session,
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    redis_url: str,
) -> None:
    """The Secret that the chart mounts; the kubelet replaces it when it changes, but does not remove it."""
    file = tmp_path / "config.json"
    settings = settings_factory(role="hub", redis_url=redis_url, agent_pull_secret_file=file)

    def delivered() -> dict[str, Any]:
        credentials = AgentCredentials(world.hub.backend, world.registrar(), world.client, settings)
        credentials.begin(MASTER)
        with contextlib.closing(credentials):
            credentials.ensure(world.cluster, "uid1")
        return {
            manifest["metadata"]["name"]: manifest
            for manifest in session.get(world.path)["spec"]["workload"]["manifests"]
        }

    assert list(delivered()) == [CREDENTIALS_NAME]
    for password in ("first", "second"):
        text = json.dumps({"auths": {"registry.example.com": {"auth": password}}})
        file.write_text(text)
        # The kubelet needs it as soon as the pod's other Secret is there.
        delivered_objects = delivered()
        assert list(delivered_objects) == [PULL_SECRET_NAME, CREDENTIALS_NAME]
        secret = delivered_objects[PULL_SECRET_NAME]
        assert secret["type"] == "kubernetes.io/dockerconfigjson"
        assert base64.b64decode(secret["data"][".dockerconfigjson"]).decode() == text
        assert secret["metadata"]["namespace"] == delivered_objects[CREDENTIALS_NAME]["metadata"]["namespace"]
        ids = world.hub.backend.get_delivered_key_ids(world.cluster)
        assert ids is not None
        assert ids.valid == (1,)
    file.unlink()
    assert list(delivered()) == [CREDENTIALS_NAME]
