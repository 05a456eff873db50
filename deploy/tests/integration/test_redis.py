"""A real Redis with the chart's configuration, certificate and users, reached as the chart's processes reach it."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from dsf.redisacl.users import User, make_hub_users, render_acl_file
from dsf.settings import Settings
from dsf.store.client import connect
from tests.support import chart
from tests.support.child import Child
from tests.support.redisserver import free_port
from tests.support.secureredis import path_with_redis
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for

PROCESSES: tuple[str, ...] = ("controller", "beat", "results", "web", "flower", "optimizer")
ROLES: tuple[str, ...] = ("hub", *PROCESSES, "operator")
VALUES = {"redis": {"maxClients": 200}, "optimizer": {"enabled": True}}
OBJECTS = chart.render(VALUES | {"mode": "Distributed"})


class Bundled:
    """The chart's Redis in a folder instead of a pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: Child | None = None
        secret = chart.find_object(OBJECTS, "Secret", "dynamic-scoring-redis-users")
        self.passwords: dict[str, str] = {role: chart.secret_text(secret, role) for role in ROLES}
        for name, key in (("tls", "ca.crt"), ("tls", "tls.crt"), ("tls", "tls.key")):
            text = chart.secret_text(chart.find_object(OBJECTS, "Secret", f"dynamic-scoring-redis-{name}"), key)
            (folder / key).write_text(text)
        (folder / "passwords").mkdir()
        for role, password in self.passwords.items():
            (folder / "passwords" / role).write_text(password)
        text = chart.find_object(OBJECTS, "ConfigMap", "dynamic-scoring-redis")["data"]["redis.conf"]
        text = text.replace("/etc/redis-tls", str(folder)).replace("/data", str(folder)).replace("6379", str(self.port))
        (folder / "redis.conf").write_text(text.replace("bind * -::*", "bind 127.0.0.1"))
        script = chart.find_object(OBJECTS, "ConfigMap", "dynamic-scoring-redis")["data"]["start-server"]
        (folder / "start-server").write_text(script)

    def write_users(self) -> None:
        """Write the file of users as the init container does."""
        file = self.folder / "users.acl"
        existing = file.read_text() if file.exists() else ""
        file.write_text(render_acl_file(make_hub_users(self.passwords), existing))

    def run_init_container(self) -> None:
        """Run the script as the pod does, with the shell and the tools of Redis' image."""
        data = chart.find_object(OBJECTS, "ConfigMap", "dynamic-scoring-redis")["data"]
        (container,) = chart.pod(chart.workloads(OBJECTS)["dynamic-scoring-redis"])["initContainers"]
        mounts = {"/etc/redis/": "configuration/", "/etc/dsf/users": "passwords", "/data/": ""}
        (self.folder / "configuration").mkdir(exist_ok=True)
        for name, text in data.items():
            (self.folder / "configuration" / name).write_text(text)
        command = [*container["command"], *container["args"]]
        for mount_path, local_path in mounts.items():
            command = [text.replace(mount_path, f"{self.folder}/{local_path}") for text in command]
        subprocess.run(command, check=True, timeout=300)

    def start(self) -> None:
        """Run the container's command and wait until the server answers the chart's probe."""
        (container,) = chart.pod(chart.workloads(OBJECTS)["dynamic-scoring-redis"])["containers"]
        command = [text.replace("/etc/redis", str(self.folder)) for text in container["command"] + container["args"]]
        environment = {"PATH": path_with_redis(), "CERTIFICATE_PERIOD": "0.2", "LC_ALL": "C"}
        self._process = Child(command, self.folder / "log", environment)
        wait_for(self.answers_probe, 15, "redis to answer")

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """Return the output of the container."""
        return (self.folder / "log").read_text()

    def change_certificate(self, certificate: str, key: str) -> None:
        """Change the files of the mounted Secret."""
        (self.folder / "tls.crt").write_text(certificate)
        (self.folder / "tls.key").write_text(key)

    def served_certificate(self) -> str:
        """Return the certificate that a new connection gets."""
        return ssl.get_server_certificate(("127.0.0.1", self.port))

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def answers_probe(self) -> bool:
        """True if `redis-cli --tls --insecure ping` would print NOAUTH."""
        assert self._process is not None
        assert self._process.is_running, self._process.tail()
        probe = redis.Redis(
            port=self.port,
            ssl=True,
            ssl_cert_reqs="none",
            ssl_check_hostname=False,
        )
        with contextlib.closing(probe):
            try:
                return not probe.ping()
            except redis.AuthenticationError:
                return True
            except redis.ConnectionError:
                return False


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundled]:
    """The chart's Redis, running."""
    server = Bundled(tmp_path_factory.mktemp("redis"))
    server.write_users()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def as_process(bundled: Bundled, settings_factory: Callable[..., Settings]) -> Iterator[Callable[[str], redis.Redis]]:
    """Return `as_process(name)` -> a client with the environment that the chart gives the process."""
    with contextlib.ExitStack() as stack:

        def make(name: str) -> redis.Redis:
            environment = chart.get_environment(OBJECTS, name)
            host = "dynamic-scoring-redis.open-cluster-management.svc:6379"
            settings = settings_factory(
                redis_url=environment["DSF_REDIS_URL"].replace(host, f"localhost:{bundled.port}"),
                redis_username=environment["DSF_REDIS_USERNAME"],
                redis_password_file=bundled.folder / "passwords" / name,
                redis_ca_file=bundled.folder / "ca.crt",
            )
            return stack.enter_context(contextlib.closing(connect(settings, retries=0)))

        yield make


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_connect_with_their_delivered_credentials(
    as_process: Callable[[str], redis.Redis], name: str
) -> None:
    client = as_process(name)
    assert client.ping()
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.config_get("*")


def test_probes_work_with_every_supported_redis(bundled: Bundled) -> None:
    """With any redis-cli from 7.0 on, the oldest that the documents call good enough."""
    alone = yaml.safe_load((chart.ROOT / "deploy" / "redis" / "statefulset.yaml").read_text())
    environment = {**os.environ, "PATH": path_with_redis()}

    def responses() -> set[bool]:
        outcomes = set()
        for workload in (chart.workloads(OBJECTS)["dynamic-scoring-redis"], alone):
            container = chart.pod(workload)["containers"][0]
            for kind in ("startup", "liveness", "readiness"):
                *shell, text = container[f"{kind}Probe"]["exec"]["command"]
                text = text.replace(" --tls ", f" -p {bundled.port} --tls ")
                process = subprocess.run([*shell, text], env=environment, timeout=300, check=False)
                outcomes.add(process.returncode == 0)
        return outcomes

    assert responses() == {True}
    bundled.stop()
    try:
        assert responses() == {False}
    finally:
        bundled.start()


def test_changed_certificate_is_loaded_without_a_restart(
    bundled: Bundled, as_process: Callable[[str], redis.Redis], tmp_path: Path
) -> None:
    renewed = TestCa(tmp_path / "ca").issue("localhost", "127.0.0.1")
    original = ((bundled.folder / "tls.crt").read_text(), (bundled.folder / "tls.key").read_text())
    connection: Any = as_process("controller").connection_pool.get_connection()
    pid = bundled.pid
    bundled.change_certificate(renewed.cert.read_text(), renewed.key.read_text())
    try:
        wait_for(lambda: bundled.served_certificate().strip() in renewed.cert.read_text(), 30, "the new certificate")
        connection.send_command("PING")
        assert (connection.read_response(), bundled.pid) == ("PONG", pid), "connections stay"
        # A key of another certificate: the one in use stays until the files fit together again.
        bundled.change_certificate(original[0], renewed.key.read_text())
        wait_for(lambda: "cannot load the changed certificate" in bundled.log(), 30, "a line about the wrong key")
        assert bundled.served_certificate().strip() in renewed.cert.read_text()
    finally:
        bundled.change_certificate(*original)
        wait_for(lambda: bundled.served_certificate().strip() in original[0], 30, "the first certificate")


def test_user_of_the_certificate_may_only_change_the_configuration(bundled: Bundled) -> None:
    (line,) = [
        line
        for line in (bundled.folder / "users.acl").read_text().splitlines()
        if line.startswith("user dsf-certificate ")
    ]
    assert line.partition(" resetkeys ")[2] == "resetchannels clearselectors -@all +config|set"
    assert "nopass" not in line
    password_hash = line.split("#")[1].split()[0]
    bundled.stop()
    bundled.start()
    assert password_hash not in (bundled.folder / "users.acl").read_text(), "a new password at each start"


def test_bundled_redis_refuses_clients_without_user_or_tls(bundled: Bundled) -> None:
    nobody = redis.Redis(port=bundled.port, ssl=True, ssl_ca_certs=str(bundled.folder / "ca.crt"))
    with contextlib.closing(nobody), pytest.raises(redis.AuthenticationError):
        nobody.ping()
    plain = redis.Redis(port=bundled.port, socket_timeout=300)
    with contextlib.closing(plain), pytest.raises(redis.ConnectionError):
        plain.ping()


def test_users_of_clusters_survive_a_restart(bundled: Bundled, as_process: Callable[[str], redis.Redis]) -> None:
    hub: Any = as_process("controller")
    user = User.of_cluster("c1", "cluster-password")
    hub.execute_command("ACL SETUSER", user.name, *user.format_setuser_rules())
    hub.acl_save()
    bundled.stop()
    bundled.write_users()
    bundled.start()
    spoke = redis.Redis(
        port=bundled.port,
        username=user.name,
        password="cluster-password",
        ssl=True,
        ssl_ca_certs=str(bundled.folder / "ca.crt"),
    )
    with contextlib.closing(spoke):
        assert spoke.llen("spoke.c1") == 0
    assert hub.ping(), "the hub's own password is the same"


def test_init_container_writes_the_users_of_the_hub(tmp_path: Path) -> None:
    server = Bundled(tmp_path)
    server.write_users()
    file = tmp_path / "users.acl"
    cluster = User.of_cluster("c1", "cluster-password").format_line()
    expected = f"{file.read_text()}{cluster}\n"
    # As the server saves it; users that do not belong there are removed.
    file.write_text(f"user somebody on nopass ~* &* +@all\n{cluster}\n")
    server.run_init_container()
    assert file.read_text() == expected
    assert file.stat().st_mode & 0o777 == 0o640
    server.run_init_container()
    assert file.read_text() == expected, "the same at each start"
    file.unlink()
    server.run_init_container()
    assert file.read_text() == expected.replace(f"{cluster}\n", "")
    server.start()
    server.stop()
    shutil.rmtree(tmp_path / "appendonlydir", ignore_errors=True)
