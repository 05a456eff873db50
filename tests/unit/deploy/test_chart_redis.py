"""The bundled Redis: its configuration, its certificate, its users, and how agents reach it."""

from __future__ import annotations

import base64
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsf.redislink import address
from tests.unit.deploy import chart


def _configuration(values: chart.Values | None = None) -> list[tuple[str, str]]:
    text = chart.one(chart.render(values), "ConfigMap", "dynamic-scoring-redis")["data"]["redis.conf"]
    lines = [line.partition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, value) for name, _, value in lines]


def _agent_environment(values: chart.Values) -> dict[str, str]:
    (container,) = chart.containers(chart.workloads(chart.render(values))["dynamic-scoring-agent"])
    return chart.environment(container)


def test_configuration_is_safe() -> None:
    options = dict(_configuration())
    assert options["port"] == "0", "nothing without TLS"
    assert options["tls-port"] == "6379"
    assert options["appendonly"] == "yes"
    assert options["maxmemory-policy"] == "noeviction"
    assert options["aclfile"].startswith("/data/"), "users that the hub made survive a restart"
    assert int(options["maxclients"]) >= 10_000


def test_configuration_is_that_of_the_manifests_without_helm() -> None:
    file = chart.ROOT / "deploy" / "redis" / "redis.conf"
    lines = [line.partition(" ") for line in file.read_text().splitlines() if line and not line.startswith("#")]
    assert sorted(_configuration()) == sorted((name, value) for name, _, value in lines)


def _names(certificate: Path) -> tuple[set[str], dict[str, Any]]:
    # What Python's own TLS reads, which is what agents use.
    read: Any = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]
    found = read(str(certificate))
    return {value for _, value in found["subjectAltName"]}, found


def test_the_certificate_is_good_for_every_name(tmp_path: Path) -> None:
    values = {
        "redis": {"exposure": {"type": "NodePort", "host": "192.0.2.8"}, "tls": {"extraHosts": ["r.example.com"]}}
    }
    secret = chart.one(chart.render(values), "Secret", "dynamic-scoring-redis-tls")
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).write_text(chart.secret_text(secret, name))
    names, certificate = _names(tmp_path / "tls.crt")
    namespace = chart.NAMESPACE
    assert names >= {
        f"dynamic-scoring-redis.{namespace}.svc",
        "dynamic-scoring-redis",
        "192.0.2.8",
        "r.example.com",
        "127.0.0.1",
    }
    assert ssl.cert_time_to_seconds(certificate["notAfter"]) - ssl.cert_time_to_seconds(certificate["notBefore"]) > 3e8
    # As strict as Python 3.13 and later are by default.
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.crt", "tls.crt"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ssl.create_default_context().load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_passwords_differ_and_are_long() -> None:
    secret = chart.one(chart.render(), "Secret", "dynamic-scoring-redis-users")
    passwords = {chart.secret_text(secret, key) for key in secret["data"]}
    assert len(passwords) == len(secret["data"]) == 8
    assert min(map(len, passwords)) == 40
    signing = chart.one(chart.render(), "Secret", "dynamic-scoring-hub-signing")
    assert len(bytes.fromhex(chart.secret_text(signing, "signing-secret"))) == 32


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({}, "rediss://dynamic-scoring-redis.open-cluster-management.svc:6379/0"),
        ({"tls": {"enabled": False}}, "redis://dynamic-scoring-redis.open-cluster-management.svc:6379/0"),
        ({"exposure": {"type": "LoadBalancer", "host": "lb.example.com"}}, "rediss://lb.example.com:6379/0"),
        ({"exposure": {"type": "NodePort", "host": "192.0.2.1"}}, "rediss://192.0.2.1:30379/0"),
        ({"exposure": {"type": "Route", "host": "r.example.com"}}, "rediss://r.example.com:443/0"),
        ({"exposure": {"type": "SkupperV2"}}, "rediss://dynamic-scoring-redis:6379/0"),
        ({"exposure": {"type": "SkupperV1"}}, "rediss://dynamic-scoring-redis:6379/0"),
        ({"agentUrl": "rediss://tunnel.example.com:16379/0"}, "rediss://tunnel.example.com:16379/0"),
        (
            {"mode": "external", "external": {"url": "rediss://r.example.com:6380/0", "usersSecret": "u"}},
            "rediss://r.example.com:6380/0",
        ),
    ],
)
def test_agents_are_told_where_it_is(values: chart.Values, url: str) -> None:
    environment = _agent_environment({"redis": values})
    assert environment["DSF_REDIS_URL"] == url
    assert str(address.parse(url)) == url


def test_sentinels_are_for_everybody() -> None:
    objects = chart.render(chart.MATRIX["external-sentinel"])
    for name, workload in chart.workloads(objects).items():
        (container,) = chart.containers(workload)
        environment = chart.environment(container)
        assert len(address.parse(environment["DSF_REDIS_URL"]).hosts) == 3, name
        assert environment["DSF_REDIS_SENTINEL_MASTER"] == "dsf"
        assert environment["DSF_REDIS_SENTINEL_TLS"] == "true"
    assert not chart.of_kind(objects, "StatefulSet")


def test_a_load_balancer_without_an_address_is_said() -> None:
    values: chart.Values = {"redis": {"exposure": {"type": "LoadBalancer"}}}
    assert "run this upgrade again" in chart.notes(values)
    assert "only agents on the hub cluster itself" in chart.notes()
    assert "WARNING" not in chart.notes({"redis": {"exposure": {"type": "SkupperV2"}}})


def test_exposure_objects() -> None:
    route = chart.one(chart.render(chart.MATRIX["route"]), "Route")
    assert route["spec"]["tls"] == {"termination": "passthrough", "insecureEdgeTerminationPolicy": "None"}
    balanced = chart.one(chart.render(chart.MATRIX["loadbalancer"]), "Service", "dynamic-scoring-redis-external")
    assert balanced["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    connector = chart.one(chart.render(chart.MATRIX["skupper-v2"]), "Connector")
    assert connector["spec"]["routingKey"] == "dynamic-scoring-redis"
    service = chart.one(chart.render(chart.MATRIX["skupper-v1"]), "Service", "dynamic-scoring-redis")
    assert service["metadata"]["annotations"] == {"skupper.io/proxy": "tcp"}


def test_private_authorities_are_delivered() -> None:
    own = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
    values = {"redis": {"tls": {"source": "existingSecret", "existingSecret": "s", "ca": own}}}
    ca = chart.one(chart.agent_objects(chart.render(values)), "ConfigMap")["data"]
    assert ca["redis-ca.crt"].strip() == own
    del values["redis"]["tls"]["ca"]
    # Not known, and there is no cluster to look it up in: the agent trusts the system's.
    assert "DSF_REDIS_CA_FILE" not in _agent_environment(values)
    assert base64.b64decode(chart.one(chart.render(), "Secret", "dynamic-scoring-redis-ca")["data"]["tls.key"])
