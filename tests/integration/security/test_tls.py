"""TLS: every process reports a problem in one line, and continues when it is solved."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from dsf.redisacl.clusterusers import ClusterUsers
from dsf.redisacl.rules import hub_user
from dsf.store.client import connect
from tests.integration.security.fleet import MASTER
from tests.integration.security.processes import CLUSTER, processes
from tests.support.fixtures import SettingsFactory
from tests.support.redisserver import free_port
from tests.support.secureredis import SecureRedis
from tests.support.tlsca import Certificate, TestCa
from tests.support.wait import wait_for

#: Settings of a client that tells why it is refused, also where the server gets no CPU for a while.
PATIENT = {"redis_socket_timeout": 60}


def test_processes_report_an_invalid_certificate_and_recover(ca: TestCa, tmp_path: Path) -> None:
    stranger = TestCa(tmp_path / "stranger", "somebody else's CA")
    # The third kind, a certificate for another name, is below: each of them costs ten seconds here.
    kinds = {
        "not signed by the CA in": stranger.issue("localhost"),
        "it has expired": ca.issue("localhost", start=timedelta(days=-9), end=timedelta(days=-1)),
    }
    # The page connects to Redis only when somebody reads it.
    roles = ("controller", "beat", "results", "flower", "agent")
    with SecureRedis(ca) as server:
        ClusterUsers(server.client(hub_user("hub"), server.passwords["hub"]), MASTER).sync({CLUSTER: [1]})
        server.restart_with_untrusted(kinds["not signed by the CA in"])
        _check(server, kinds, roles, tmp_path)


def _check(server: SecureRedis, kinds: dict[str, Certificate], roles: tuple[str, ...], folder: Path) -> None:
    settings = {"redis_url": server.url(), "redis_ca_file": server.ca.cert}
    with processes(folder, roles, server.passwords, **settings) as running:
        logs = {role: folder / f"{role}.log" for role in running}
        for expected_text, certificate in kinds.items():
            if certificate != server.certificate:
                server.restart_with_untrusted(certificate)
            for role, log in logs.items():
                wait_for(
                    lambda log=log, text=expected_text: text in log.read_text(), 40, f"{role} to say {expected_text!r}"
                )
                line = next(line for line in log.read_text().splitlines() if expected_text in line)
                assert f"Redis at localhost:{server.port} is refused" in line
            assert [role for role, child in running.items() if not child.is_running] == []
        server.restart(server.ca.issue("localhost"))
        users = {"dsf-controller", "dsf-beat", "dsf-results", "dsf-flower", "spoke-c1"}
        admin = server.client()
        wait_for(lambda: users <= {client["user"] for client in admin.client_list()}, 60, "everybody to be back")
        wait_for((folder / "ready").exists, 20, "the agent to take ticks")
        assert admin.acl_log() == []
    for role, log in logs.items():
        assert "Traceback" not in log.read_text(), f"{role}: {log.read_text()[-3000:]}"


@pytest.mark.parametrize(
    ("problem", "expected_message"),
    [
        ("stranger", "not signed by the CA in .*ca.crt"),
        ("no CA", "not signed by a CA of this system; set DSF_REDIS_CA_FILE"),
        ("other name", "not for the name 127.0.0.1"),
        ("public CA", "not signed by the CA in .*ca.crt"),
        ("no such CA file", "cannot read /no/such/ca.crt"),
        ("no PEM", "cannot read .*ca.crt .* not a PEM certificate"),
        ("password", "refuses user or password .*newest one"),
        ("plain", "does it want TLS"),
        ("nobody there", "cannot be reached at localhost:[0-9]+: Connection refused"),
        ("unknown host", "the name no.such.host.invalid of Redis is not known"),
    ],
)
def test_tls_problem_is_reported_by_the_client(
    shared_redis: SecureRedis,
    settings_factory: SettingsFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: str,
    expected_message: str,
) -> None:
    user, password = hub_user("web"), shared_redis.passwords["web"]
    url = shared_redis.url(user, password)
    ca_file: Path | None = shared_redis.ca.cert
    if problem == "stranger":
        ca_file = TestCa(tmp_path / "stranger").cert
    elif problem == "public CA":
        # The system trusts the server's, and the given CA is another one.
        monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
        ca_file = TestCa(tmp_path / "stranger").cert
    elif problem == "no PEM":
        ca_file = tmp_path / "ca.crt"
        ca_file.write_text("no certificate")
    elif problem == "no CA":
        ca_file = None
    elif problem == "no such CA file":
        ca_file = Path("/no/such/ca.crt")
    elif problem == "password":
        url = shared_redis.url(user, "secret-guess")
    elif problem == "plain":
        url = url.replace("rediss", "redis")
    elif problem == "nobody there":
        url = url.replace(str(shared_redis.port), str(free_port()))
    elif problem == "unknown host":
        url = url.replace("localhost", "no.such.host.invalid")
    if problem == "other name":
        with SecureRedis(shared_redis.ca, certificate=shared_redis.ca.issue("localhost")) as other:
            url = other.url().replace("localhost", "127.0.0.1")
            _fails(settings_factory(redis_url=url, redis_ca_file=ca_file, **PATIENT), expected_message)
    else:
        _fails(settings_factory(redis_url=url, redis_ca_file=ca_file, **PATIENT), expected_message)


def _fails(settings: object, expected_message: str) -> None:
    client = connect(settings, retries=0)  # type: ignore[arg-type]
    with contextlib.closing(client), pytest.raises(redis.ConnectionError, match=expected_message) as caught:
        client.ping()
    assert "secret-guess" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_server_with_client_verification_requires_a_certificate(ca: TestCa, settings_factory: SettingsFactory) -> None:
    client_certificate = ca.issue("a client")
    with SecureRedis(ca) as server:
        server.client().config_set("tls-auth-clients", "yes")
        url = server.hub_url("web")
        _fails(settings_factory(redis_url=url, redis_ca_file=ca.cert, **PATIENT), "certificate")
        files = {"redis_cert_file": client_certificate.cert, "redis_key_file": client_certificate.key}
        client = connect(settings_factory(redis_url=url, redis_ca_file=ca.cert, **files))
        with contextlib.closing(client):
            assert client.ping()
