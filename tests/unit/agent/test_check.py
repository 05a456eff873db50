"""`dsf agent --check` names the first failing step of the connection to the hub's Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from dsf import keys
from dsf.agent import check
from dsf.agent.main import make_relay
from dsf.messages import derive_key
from dsf.redisacl.rules import cluster_rules, cluster_user
from dsf.settings import Settings
from tests.support.fixtures import SettingsFactory
from tests.support.portforwardserver import POD, serving, write_kubeconfig
from tests.support.redisserver import free_port

CLUSTER = "worker01"


@pytest.fixture
def agent_settings(settings_factory: SettingsFactory, redis_url: str, tmp_path: Path) -> Callable[..., Settings]:
    key_file = tmp_path / "signing-key"
    key_file.write_text(derive_key(bytes(range(32)), CLUSTER, 1).dump())

    def make(**values: object) -> Settings:
        return settings_factory(
            **{"role": "agent", "cluster": CLUSTER, "signing_key_file": key_file, "redis_url": redis_url} | values
        )

    return make


def results(settings: Settings) -> dict[str, bool]:
    return {step.name: step.is_ok for step in check.run_steps(settings)}


def last_detail(settings: Settings) -> str:
    *_, last = check.run_steps(settings)
    assert not last.is_ok
    return last.detail


def test_direct_connection_is_checked_up_to_the_queue(
    agent_settings: Callable[..., Settings], redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    redis_client.lpush(keys.spoke_queue(CLUSTER), "tick")
    assert check.run(agent_settings()) == 0
    assert "ok    queue           spoke.worker01, 1 ticks waiting" in capsys.readouterr().out
    assert redis_client.llen(keys.spoke_queue(CLUSTER)) == 1


def test_unreachable_redis_is_named(agent_settings: Callable[..., Settings]) -> None:
    unused_port = free_port()
    settings = agent_settings(redis_url=f"redis://127.0.0.1:{unused_port}/0")
    assert results(settings) == {"signing key": True, "connection": False}
    assert f"127.0.0.1:{unused_port}" in last_detail(settings)


def test_wrong_password_fails_at_the_login(
    agent_settings: Callable[..., Settings], redis_client: redis.Redis, tmp_path: Path
) -> None:
    redis_client.execute_command("ACL", "SETUSER", cluster_user(CLUSTER), "on", ">right", *cluster_rules(CLUSTER))
    (tmp_path / "password").write_text("wrong")
    settings = agent_settings(redis_username=cluster_user(CLUSTER), redis_password_file=tmp_path / "password")
    assert results(settings) == {"signing key": True, "connection": True, "login": False}
    (tmp_path / "password").write_text("right")
    assert all(results(settings).values())
    redis_client.execute_command("ACL", "DELUSER", cluster_user(CLUSTER))


def test_user_of_another_cluster_fails_at_the_queue(
    agent_settings: Callable[..., Settings], redis_client: redis.Redis, tmp_path: Path
) -> None:
    redis_client.execute_command("ACL", "SETUSER", cluster_user("other"), "on", ">word", *cluster_rules("other"))
    (tmp_path / "password").write_text("word")
    settings = agent_settings(redis_username=cluster_user("other"), redis_password_file=tmp_path / "password")
    assert "is DSF_CLUSTER the name" in last_detail(settings)
    redis_client.execute_command("ACL", "DELUSER", cluster_user("other"))


def test_relay_is_checked_before_the_connection(
    agent_settings: Callable[..., Settings], redis_url: str, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    settings = agent_settings(redis_pod=POD, hub_kubeconfig=kubeconfig, redis_url=f"redis://127.0.0.1:{free_port()}/0")
    assert results(settings) == {"signing key": True, "kubeconfig": False}
    with serving(urlsplit(redis_url).port or 0) as server:
        write_kubeconfig(kubeconfig, server.port, "token")
        server.status = 403
        assert results(settings) == {"signing key": True, "kubeconfig": True, "port-forward": False}
        assert "forbids port-forwards" in last_detail(settings)
        server.status = 101
        # A running agent in the same pod listens on the port of the URL.
        agent = make_relay(settings)
        assert agent is not None
        assert list(results(settings).items()) == [
            *((name, True) for name in ("signing key", "kubeconfig", "port-forward", "connection", "login", "queue"))
        ]
        agent.stop()


def test_missing_key_is_a_wrong_setting(
    agent_settings: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.run(agent_settings(signing_key_file=None)) == 2
    assert "DSF_SIGNING_KEY" in capsys.readouterr().err
