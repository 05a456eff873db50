"""Sentinels that require a password, and processes with the settings of the chart and the hub controller."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dsf.api.types import CREDENTIALS_NAME
from dsf.backends.directory import DirectoryBackend
from dsf.errors import BackendError, SettingsError
from dsf.hub.credentials import AgentCredentials
from dsf.hub.registrar import Registrar
from dsf.keys import spoke_queue
from dsf.process.outage import Outage
from dsf.redisacl.rules import cluster_user
from dsf.redisacl.users import hash_password
from dsf.redislink.link import Link
from dsf.settings import ENV_PREFIX, Settings
from dsf.store.client import connect
from tests.integration.security.fleet import MASTER
from tests.integration.security.sentinel import CLIENT_PASSWORD, CLIENT_USER, SentinelRedis
from tests.support import chart
from tests.support.fixtures import SettingsFactory
from tests.support.tlsca import TestCa

CLUSTER = "c1"


@pytest.fixture(scope="module")
def pair(ca: TestCa) -> Iterator[SentinelRedis]:
    """Redis, its replica and three Sentinels, for all tests here."""
    with SentinelRedis(ca) as running:
        yield running


@pytest.fixture
def objects(pair: SentinelRedis) -> list[chart.Object]:
    """Return the chart's values with deploy/exposure/external-sentinel.yaml, these Sentinels and the CA for agents."""
    values = copy.deepcopy(chart.MATRIX["external-sentinel"])
    values["redis"]["external"]["url"] = pair.url
    values["redis"]["tls"] = {"ca": pair.ca.cert.read_text()}
    return chart.render(values)


@pytest.fixture
def secrets(pair: SentinelRedis, tmp_path: Path) -> dict[str, Path]:
    """Folders with the contents of the Secrets of these values, by name."""
    texts = {
        "redis-users": pair.first.passwords,
        "redis-ca": {"ca.crt": pair.ca.cert.read_text()},
        "redis-sentinel": {"password": CLIENT_PASSWORD},
        "dynamic-scoring-hub-signing": {"signing-secret": MASTER.hex()},
    }
    secret_folders = {}
    for name, files in texts.items():
        secret_folders[name] = tmp_path / name
        secret_folders[name].mkdir()
        for key, text in files.items():
            (secret_folders[name] / key).write_text(text)
    return secret_folders


def _told(
    workload: chart.Object, secrets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, **extra_variables: str
) -> Settings:
    """Return the settings of a pod whose Secrets and ConfigMaps are these folders, as Kubernetes would mount them."""
    (container,) = chart.containers(workload)
    environment = chart.environment(container)
    for volume in chart.pod(workload)["volumes"]:
        source = volume.get("secret") or volume.get("configMap")
        if source is None:
            continue
        folder = secrets[source.get("secretName") or source["name"]]
        (mount_path,) = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == volume["name"]]
        for item in source["items"]:
            path = str(folder / item["key"])
            environment = {k: path if v == f"{mount_path}/{item['path']}" else v for k, v in environment.items()}
    for name, value in (environment | extra_variables).items():
        if name.startswith(ENV_PREFIX):
            monkeypatch.setenv(name, value.replace("{{CLUSTER_NAME}}", CLUSTER))
    return Settings.load()


def test_agent_of_the_chart_finds_redis(
    pair: SentinelRedis,
    objects: list[chart.Object],
    secrets: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workloads = chart.workloads(objects)
    with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
        hub_variables = {"DSF_BACKEND": "dir", "DSF_ADDON_MODE": "false", "DSF_MANIFESTS": str(tmp_path)}
        hub = _told(workloads["dynamic-scoring-hub"], secrets, patch, **hub_variables)
        client = stack.enter_context(contextlib.closing(connect(hub)))
        registrar = Registrar(client, Outage("redis"))
        credentials = AgentCredentials(DirectoryBackend(hub), registrar, client, hub)
        credentials.begin(MASTER)
        stack.callback(credentials.close)
        credentials.ensure(CLUSTER, "uid")
        (secrets["redis-sentinel"] / "password").unlink()
        # The error does not withdraw the agent's credentials.
        with pytest.raises(BackendError, match="AGENT_SENTINEL_PASSWORD_FILE: cannot read"):
            credentials.ensure(CLUSTER, "uid")
        with pytest.raises(SettingsError, match="AGENT_SENTINEL_PASSWORD_FILE: cannot read"):
            AgentCredentials(DirectoryBackend(hub), registrar, client, hub)
    # Write the files that OCM's work agent would create from the ManifestWorks.
    secrets[CREDENTIALS_NAME] = tmp_path / "_out" / "clusters" / CLUSTER / "agent-credentials"
    for config_map in chart.of_kind(chart.agent_objects(objects), "ConfigMap"):
        folder = secrets[config_map["metadata"]["name"]] = tmp_path / config_map["metadata"]["name"]
        folder.mkdir()
        for key, text in config_map.get("data", {}).items():
            (folder / key).write_text(text)
    agent = _told(workloads["dynamic-scoring-agent"], secrets, monkeypatch)
    assert (agent.redis_sentinel_username, agent.resolved_redis_sentinel_password()) == (CLIENT_USER, CLIENT_PASSWORD)
    with contextlib.closing(connect(agent)) as client:
        assert client.llen(spoke_queue(CLUSTER)) == 0
        assert cluster_user(CLUSTER) in {connection["user"] for connection in pair.first.client().client_list()}


@pytest.mark.parametrize(
    ("values", "expected_text"),
    [
        ({"redis_sentinel_password_file": "/dev/null"}, "refuses user or password (invalid username-password pair"),
        ({"redis_sentinel_username": "nobody"}, "DSF_REDIS_SENTINEL_USERNAME, DSF_REDIS_SENTINEL_PASSWORD_FILE"),
        ({"redis_sentinel_username": "", "redis_sentinel_password_file": None}, "refuses user or password"),
        ({"redis_sentinel_password_file": "/no/file"}, "DSF_REDIS_SENTINEL_PASSWORD_FILE: cannot read /no/file"),
        ({"redis_sentinel_master": "mine"}, "does not know it (DSF_REDIS_SENTINEL_MASTER)"),
        ({"redis_sentinel_tls": False}, "does it want TLS (DSF_REDIS_SENTINEL_TLS)"),
        ({"redis_ca_file": None}, "is not signed by a CA of this system; set DSF_REDIS_CA_FILE"),
    ],
)
def test_sentinel_failure_names_each_sentinel_and_the_reason(
    pair: SentinelRedis, settings_factory: SettingsFactory, values: dict[str, object], expected_text: str
) -> None:
    settings = settings_factory(**(pair.settings() | values))
    with contextlib.closing(connect(settings, retries=0)) as client, pytest.raises(redis.ConnectionError) as caught:
        client.ping()
    text = str(caught.value)
    assert text.startswith("no Sentinel knows the primary of '")
    assert expected_text in text
    # Each of them by its name, and no Python in it.
    assert text.count("Sentinel at localhost:") == 3
    assert "Redis<" not in text
    assert "Error(" not in text
    if "redis_sentinel_master" not in values:
        with pytest.raises(redis.ConnectionError, match="no Sentinel lists the replicas of 'hub'"):
            Link(settings).list_replicas()


def test_dead_sentinel_is_skipped(pair: SentinelRedis, settings_factory: SettingsFactory) -> None:
    settings = settings_factory(**(pair.settings() | {"redis_url": f"sentinel://localhost:1;{pair.url}"}))
    manager = Link(settings).make_sentinels_client()
    with contextlib.closing(manager):
        assert manager.discover_master("hub") == ("localhost", pair.first.port)
    assert Link(settings).list_replicas() == [("localhost", pair.second.port)]


def test_processes_may_query_the_sentinels_only(pair: SentinelRedis, settings_factory: SettingsFactory) -> None:
    with contextlib.closing(Link(settings_factory(**pair.settings())).make_sentinels_client()) as manager:
        client = manager.sentinels[0]
        assert set(client.sentinel_masters()) == {"hub"}
        for command in (
            "SENTINEL FAILOVER hub",
            "SENTINEL MONITOR evil 192.0.2.1 6379 1",
            "SENTINEL SET hub quorum 1",
            "SENTINEL REMOVE hub",
            "SENTINEL RESET *",
            "SENTINEL CONFIG GET *",
            "ACL LIST",
            "PUBLISH __sentinel__:hello x",
            "SUBSCRIBE __sentinel__:hello",
            "SHUTDOWN",
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())


def test_sentinel_user_without_permissions_gets_an_error_that_names_them(
    pair: SentinelRedis, settings_factory: SettingsFactory, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("deaf-password-000")
    with pair.administrators() as admins:
        for admin in admins:
            admin.execute_command("ACL", "SETUSER", "deaf", "on", ">deaf-password-000", "+ping")
    settings = settings_factory(
        **(pair.settings() | {"redis_sentinel_username": "deaf", "redis_sentinel_password_file": file})
    )
    with contextlib.closing(connect(settings, retries=0)) as client, pytest.raises(redis.ConnectionError) as caught:
        client.ping()
    assert "needs +sentinel|masters +sentinel|slaves" in str(caught.value)


def test_sentinel_client_password_changes_without_a_gap(
    pair: SentinelRedis, settings_factory: SettingsFactory, tmp_path: Path
) -> None:
    """Set up Redis as deploy/redis/README.md describes."""

    def is_let_in(password: str) -> bool:
        file = tmp_path / "password"
        file.write_text(password)
        settings = settings_factory(**(pair.settings() | {"redis_sentinel_password_file": file}))
        with contextlib.closing(Link(settings).make_sentinels_client()) as manager:
            try:
                return bool(manager.discover_master("hub"))
            except redis.ConnectionError:
                return False

    with pair.administrators() as admins:
        for admin in admins:
            admin.execute_command("ACL", "SETUSER", CLIENT_USER, ">another-password-0000")
            admin.execute_command("SENTINEL", "FLUSHCONFIG")
        # A Sentinel that is started again knows them.
        for file in pair.dir.glob("*.conf"):
            assert hash_password("another-password-0000") in file.read_text()
        assert is_let_in(CLIENT_PASSWORD)
        assert is_let_in("another-password-0000")
        for admin in admins:
            admin.execute_command("ACL", "SETUSER", CLIENT_USER, f"!{hash_password('another-password-0000')}")
    assert is_let_in(CLIENT_PASSWORD)
    assert not is_let_in("another-password-0000")
