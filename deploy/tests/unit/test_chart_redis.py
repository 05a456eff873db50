"""The bundled Redis: its configuration, certificate and users, and the access of agents."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from dsf.api.types import AGENT_NAMESPACE, SENTINEL_PASSWORD_KEY
from dsf.backends.kube_credentials import make_credentials_work
from dsf.backends.protocol import Credentials
from dsf.redisacl.keyids import KeyIds
from dsf.redisacl.users import hash_password
from dsf.redislink import address
from tests.support import chart
from tests.support.child import run_program

_SCRIPTS = [chart.ROOT / "deploy" / folder / "start-server" for folder in ("helm/files", "redis")]


def _configuration(values: chart.Values | None = None) -> list[tuple[str, str]]:
    text = chart.find_object(chart.render(values), "ConfigMap", "dynamic-scoring-redis")["data"]["redis.conf"]
    lines = [line.partition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, value) for name, _, value in lines]


def _agent_environment(values: chart.Values) -> dict[str, str]:
    return chart.get_environment(chart.render(values), "agent")


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


@pytest.mark.parametrize("names", [("valkey-server", "redis-server"), ("redis-server",)])
def test_first_server_of_the_image_is_started(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} $1\n")
        (tmp_path / name).chmod(0o755)
    configuration = tmp_path / "redis.conf"
    configuration.write_text("port 6379\n")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    process = run_program(["/bin/sh", _SCRIPTS[0], configuration], env=environment)
    assert process.stdout == f"{names[0]} {configuration}\n", process.stderr


def test_image_without_a_server_is_reported(tmp_path: Path) -> None:
    process = run_program(["/bin/sh", _SCRIPTS[0], tmp_path / "redis.conf"], env={"PATH": str(tmp_path)})
    assert (process.returncode, process.stderr) == (2, "start-server: no server in this image\n")


def test_script_that_starts_the_server_is_that_of_the_manifests_without_helm() -> None:
    assert _SCRIPTS[0].read_text() == _SCRIPTS[1].read_text()


def test_changed_certificate_restarts_nothing() -> None:
    """The script in the pod loads it."""
    templates = [
        chart.find_object(chart.render({"redis": {"tls": {"extraHosts": hosts}}}), "StatefulSet")["spec"]["template"]
        for hosts in ([], ["redis.example.com"])
    ]
    for template in templates:
        # Generated passwords differ each time.
        del template["metadata"]["annotations"]["checksum/users"]
    assert templates[0] == templates[1]


def test_redis_without_a_volume_moves_to_another_node() -> None:
    """The controller removes the pod of a lost node; both leave such a node at once, as the role names the pod."""
    objects = chart.render({"redis": {"persistence": {"enabled": False}}, "tolerations": [{"key": "hubs"}]})
    assert (
        chart.get_environment(objects, "hub")["DSF_REDIS_MOVABLE_POD"] == f"{chart.NAMESPACE}/dynamic-scoring-redis-0"
    )
    (rule,) = [
        rule
        for rule in chart.find_object(objects, "Role", "dynamic-scoring-controller")["rules"]
        if rule["resources"] == ["pods"]
    ]
    assert (rule["resourceNames"], rule["verbs"]) == (["dynamic-scoring-redis-0"], ["get", "delete"])
    for name in ("redis", "hub", "flower"):
        tolerations = chart.pod(chart.workloads(objects)[f"dynamic-scoring-{name}"])["tolerations"]
        seconds = {item["key"].rpartition("/")[2]: item.get("tolerationSeconds") for item in tolerations}
        assert seconds == {"hubs": None} | ({} if name == "flower" else {"unreachable": 0, "not-ready": 30})


def test_redis_with_a_volume_is_moved_by_a_person() -> None:
    objects = chart.render()
    assert "DSF_REDIS_MOVABLE_POD" not in chart.get_environment(objects, "hub")
    assert "tolerations" not in chart.pod(chart.workloads(objects)["dynamic-scoring-redis"])
    assert "pods" not in str(chart.find_object(objects, "Role", "dynamic-scoring-controller")["rules"])


def _names(certificate: Path) -> tuple[set[str], dict[str, Any]]:
    # Agents use Python's TLS, so the test reads it with Python too.
    read: Any = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]
    decoded_certificate = read(str(certificate))
    return {value for _, value in decoded_certificate["subjectAltName"]}, decoded_certificate


def test_certificate_is_valid_for_every_name(tmp_path: Path) -> None:
    values = {
        "redis": {"exposure": {"type": "NodePort", "host": "192.0.2.8"}, "tls": {"extraHosts": ["r.example.com"]}}
    }
    secret = chart.find_object(chart.render(values), "Secret", "dynamic-scoring-redis-tls")
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
    # Python 3.13 and later are this strict by default.
    process = run_program(
        ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.crt", "tls.crt"], cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    ssl.create_default_context().load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_other_authorities_are_trusted_besides_the_generated_one() -> None:
    objects = chart.render({"redis": {"tls": {"ca": _CA}}})
    generated_ca = chart.secret_text(
        chart.find_object(objects, "Secret", "dynamic-scoring-redis-ca"), "tls.crt"
    ).strip()
    hub = chart.secret_text(chart.find_object(objects, "Secret", "dynamic-scoring-redis-tls"), "ca.crt")
    agents = chart.find_object(chart.agent_objects(objects), "ConfigMap", "dynamic-scoring-agent-ca")["data"][
        "redis-ca.crt"
    ]
    assert hub.strip() == agents.strip() == f"{generated_ca}\n{_CA}"


def test_passwords_differ_and_are_long() -> None:
    secret = chart.find_object(chart.render(), "Secret", "dynamic-scoring-redis-users")
    passwords = {chart.secret_text(secret, key) for key in secret["data"]}
    assert len(passwords) == len(secret["data"]) == 9
    assert min(map(len, passwords)) == 40
    signing = chart.find_object(chart.render(), "Secret", "dynamic-scoring-hub-signing")
    assert len(bytes.fromhex(chart.secret_text(signing, "signing-secret"))) == 32


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({}, "rediss://dynamic-scoring-redis.open-cluster-management.svc:6379/0"),
        ({"tls": {"enabled": False}}, "redis://dynamic-scoring-redis.open-cluster-management.svc:6379/0"),
        ({"exposure": {"type": "LoadBalancer", "host": "lb.example.com"}}, "rediss://lb.example.com:6379/0"),
        ({"exposure": {"type": "NodePort", "host": "192.0.2.1"}}, "rediss://192.0.2.1:30379/0"),
        ({"exposure": {"type": "LoadBalancer", "host": "2001:db8::20"}}, "rediss://[2001:db8::20]:6379/0"),
        ({"exposure": {"type": "Route", "host": "r.example.com"}}, "rediss://r.example.com:443/0"),
        ({"exposure": {"type": "Ingress", "host": "r.example.com"}}, "rediss://r.example.com:443/0"),
        (
            {"exposure": {"type": "TLSRoute", "host": "r.example.com", "parentRefs": [{"name": "edge"}]}},
            "rediss://r.example.com:443/0",
        ),
        ({"exposure": {"type": "SkupperV2"}}, "rediss://dynamic-scoring-redis:6379/0"),
        ({"exposure": {"type": "SkupperV1"}}, "rediss://dynamic-scoring-redis:6379/0"),
        ({"agentUrl": "rediss://tunnel.example.com:16379/0"}, "rediss://tunnel.example.com:16379/0"),
        (
            {"mode": "external", "usersSecret": "u", "external": {"url": "rediss://r.example.com:6380/0"}},
            "rediss://r.example.com:6380/0",
        ),
    ],
)
def test_agents_get_the_address_of_redis(values: chart.Values, url: str) -> None:
    environment = _agent_environment({"redis": values})
    assert environment["DSF_REDIS_URL"] == url
    assert str(address.parse(url)) == url


def test_service_for_agents_has_the_network_settings_of_the_values() -> None:
    settings = {
        "externalTrafficPolicy": "Local",
        "ipFamilyPolicy": "RequireDualStack",
        "ipFamilies": ["IPv6", "IPv4"],
        "loadBalancerClass": "example.com/internal",
    }
    for kind, names in (("LoadBalancer", set(settings)), ("NodePort", set(settings) - {"loadBalancerClass"})):
        for values in ({}, settings):
            exposure = {"type": kind, "host": "192.0.2.8"} | values
            objects = chart.render({"redis": {"exposure": exposure}})
            spec = chart.find_object(objects, "Service", "dynamic-scoring-redis-external")["spec"]
            assert {name: spec[name] for name in settings if name in spec} == {
                name: value for name, value in values.items() if name in names
            }
            # The Service of the hub's own processes is not exposed.
            assert not set(chart.find_object(objects, "Service", "dynamic-scoring-redis")["spec"]) & set(settings)


def test_tls_route_passes_the_host_to_redis() -> None:
    values = chart.MATRIX["tlsroute"]
    route = chart.find_object(chart.render(values), "TLSRoute")
    exposure = values["redis"]["exposure"]
    assert route["spec"] == {
        "parentRefs": exposure["parentRefs"],
        "hostnames": [exposure["host"]],
        "rules": [{"backendRefs": [{"name": "dynamic-scoring-redis", "port": 6379}]}],
    }


def test_ingress_passes_tls_through_to_redis() -> None:
    values = chart.MATRIX["ingress"]
    ingress = chart.find_object(chart.render(values), "Ingress", "dynamic-scoring-redis")
    host = values["redis"]["exposure"]["host"]
    # A Secret here would end TLS at the controller.
    assert ingress["spec"]["tls"] == [{"hosts": [host]}]
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == host
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == "dynamic-scoring-redis"
    annotations = ingress["metadata"]["annotations"]
    passthrough = {name for name, value in annotations.items() if name.endswith("/ssl-passthrough") and value == "true"}
    assert {name.partition("/")[0] for name in passthrough} == {
        "haproxy-ingress.github.io",
        "haproxy.org",
        "nginx.ingress.kubernetes.io",
    }
    values = {
        "redis": {"exposure": {"type": "Ingress", "host": host, "annotations": {"haproxy.org/ssl-passthrough": "x"}}}
    }
    annotations = chart.find_object(chart.render(values), "Ingress", "dynamic-scoring-redis")["metadata"]["annotations"]
    assert annotations["haproxy.org/ssl-passthrough"] == "x"


@pytest.mark.parametrize("kind", ["Ingress", "Route", "TLSRoute"])
def test_exposure_by_host_name_requires_tls(kind: str) -> None:
    exposure = {"type": kind, "host": "r.example.com", "parentRefs": [{"name": "edge"}]}
    with pytest.raises(chart.RenderError, match=rf"redis\.tls\.enabled: required with redis\.exposure\.type {kind}"):
        chart.render({"redis": {"exposure": exposure, "tls": {"enabled": False}}})


def test_every_process_gets_the_sentinels() -> None:
    objects = chart.render(chart.MATRIX["external-sentinel"])
    for name, workload in chart.workloads(objects).items():
        (container,) = chart.containers(workload)
        environment = chart.environment(container)
        assert len(address.parse(environment["DSF_REDIS_URL"]).hosts) == 3, name
        assert environment["DSF_REDIS_SENTINEL_MASTER"] == "hub"
        assert environment["DSF_REDIS_SENTINEL_TLS"] == "true"
    assert not chart.of_kind(objects, "StatefulSet")


def test_agents_ask_the_sentinels_as_the_hub_does() -> None:
    workloads = chart.workloads(chart.render(chart.MATRIX["external-sentinel"]))
    (hub,) = chart.containers(workloads["dynamic-scoring-hub"])
    (agent,) = chart.containers(workloads["dynamic-scoring-agent"])
    for container in (hub, agent):
        assert chart.environment(container)["DSF_REDIS_SENTINEL_USERNAME"] == "dsf-client"
    password = "/etc/dsf/redis-sentinel/password"
    assert chart.environment(hub)["DSF_REDIS_SENTINEL_PASSWORD_FILE"] == password
    assert chart.environment(hub)["DSF_AGENT_SENTINEL_PASSWORD_FILE"] == password
    # The client certificate is part of the agent's credentials: the pod mounts the Secret that the controller delivers.
    work = make_credentials_work("c1", AGENT_NAMESPACE, Credentials(KeyIds(), "1:00", "its own", "of the sentinels"))
    (secret,) = work["spec"]["workload"]["manifests"]
    assert chart.secret_text(secret, SENTINEL_PASSWORD_KEY) == "of the sentinels"
    (volume,) = [v["secret"] for v in chart.pod(workloads["dynamic-scoring-agent"])["volumes"] if "secret" in v]
    assert volume["secretName"] == secret["metadata"]["name"]
    paths = {item["key"]: f"/etc/dsf/credentials/{item['path']}" for item in volume["items"]}
    assert set(paths) <= set(secret["data"])
    assert chart.environment(agent)["DSF_REDIS_SENTINEL_PASSWORD_FILE"] == paths[SENTINEL_PASSWORD_KEY]


@pytest.mark.parametrize(
    "redis",
    [
        {},
        {"mode": "external", "usersSecret": "u", "external": {"url": "rediss://r:1/0"}},
        {"mode": "external", "usersSecret": "u", "external": {"url": "sentinel://a:1", "sentinel": {"master": "hub"}}},
        # Only the hub queries Sentinels, so any user name is valid there.
        {
            "mode": "external",
            "agentUrl": "rediss://r:1/0",
            "usersSecret": "u",
            "external": {
                "url": "sentinel://a:1",
                "sentinel": {"master": "hub", "passwordSecret": "s"},
            },
        },
    ],
)
def test_agents_get_no_password_that_they_do_not_need(redis: chart.Values) -> None:
    workloads = chart.workloads(chart.render({"redis": redis}))
    assert "sentinel-password" not in str(workloads["dynamic-scoring-agent"])
    assert "DSF_AGENT_SENTINEL_PASSWORD_FILE" not in chart.get_environment(workloads, "hub")


def test_agents_never_get_the_password_of_the_sentinels_administrators() -> None:
    external = {"url": "sentinel://a:1", "sentinel": {"master": "hub", "passwordSecret": "s"}}
    values: chart.Values = {"redis": {"mode": "external", "usersSecret": "u", "external": external}}
    with pytest.raises(chart.RenderError, match=r"redis\.external\.sentinel\.username: required"):
        chart.render(values)
    hub = chart.workloads(chart.render(values | {"addon": {"enabled": False}}))["dynamic-scoring-hub"]
    (container,) = chart.containers(hub)
    assert "DSF_REDIS_SENTINEL_PASSWORD_FILE" in chart.environment(container)
    assert "DSF_AGENT_SENTINEL_PASSWORD_FILE" not in chart.environment(container)


def test_sentinel_examples_and_values_agree() -> None:
    sentinel = chart.MATRIX["external-sentinel"]["redis"]["external"]["sentinel"]
    text = (chart.ROOT / "deploy" / "redis" / "sentinel.conf.example").read_text()
    assert f"\nsentinel monitor {sentinel['master']} " in text
    assert f"\nuser {sentinel['username']} on #" in text
    readme = (chart.ROOT / "deploy" / "redis" / "README.md").read_text()
    assert f"secret generic {sentinel['passwordSecret']} " in readme


def test_redis_restarts_only_for_changes_that_it_reads() -> None:
    def template(values: chart.Values) -> chart.Object:
        (stateful_set,) = chart.of_kind(chart.render(values), "StatefulSet")
        return stateful_set["spec"]["template"]  # type: ignore[no-any-return]

    redis = {"tls": {"source": "existingSecret", "existingSecret": "s"}}
    image = {"name": "registry.example.com/dsf", "tag": "another"}
    before = template({"redis": redis})
    after = template({"redis": redis, "hubSetting": {"resourceController": {"image": image}}})
    # Without a cluster to look up, passwords are generated at each rendering.
    for pod_template in (before, after):
        del pod_template["metadata"]["annotations"]["checksum/users"]
    assert before == after
    labels = str(before["metadata"]["labels"])
    assert "version" not in labels
    assert "helm.sh/chart" not in labels
    base_values = {"redis": redis | {"usersSecret": "u"}}
    # Redis creates its users at its start, and the optimizer is a further one.
    for change in ({"optimizer": {"enabled": True}}, {"flower": {"readOnly": False}}):
        assert template(base_values | change) != template(base_values)
    changed_template = template({"redis": redis | {"maxClients": 200}})
    assert (
        changed_template["metadata"]["annotations"]["checksum/configuration"]
        != (before["metadata"]["annotations"]["checksum/configuration"])
    )


def test_no_password_is_in_a_configmap() -> None:
    objects = chart.render(chart.EVERYTHING)
    secret = chart.find_object(objects, "Secret", "dynamic-scoring-redis-users")
    texts = str(chart.of_kind(objects, "ConfigMap", "StatefulSet"))
    for key in secret["data"]:
        password = chart.secret_text(secret, key)
        assert password not in texts
        assert hash_password(password) not in texts


def test_load_balancer_without_an_address_is_noted() -> None:
    values: chart.Values = {"redis": {"exposure": {"type": "LoadBalancer"}}}
    assert "run this upgrade again" in chart.notes(values)
    assert "only agents on the hub cluster itself" in chart.notes({"redis": {"exposure": {"type": "ClusterIP"}}})
    assert "WARNING" not in chart.notes()
    assert "WARNING" not in chart.notes({"redis": {"exposure": {"type": "SkupperV2"}}})


def test_exposure_objects() -> None:
    route = chart.find_object(chart.render(chart.MATRIX["route"]), "Route")
    assert route["spec"]["tls"] == {"termination": "passthrough", "insecureEdgeTerminationPolicy": "None"}
    from_there = {"redis": {"exposure": {"type": "LoadBalancer", "sourceRanges": ["192.0.2.0/24"]}}}
    balanced = chart.find_object(chart.render(from_there), "Service", "dynamic-scoring-redis-external")
    assert balanced["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    connector = chart.find_object(chart.render(chart.MATRIX["skupper-v2"]), "Connector")
    assert connector["spec"]["routingKey"] == "dynamic-scoring-redis"
    service = chart.find_object(chart.render(chart.MATRIX["skupper-v1"]), "Service", "dynamic-scoring-redis")
    assert service["metadata"]["annotations"] == {"skupper.io/proxy": "tcp"}


_CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
_CERT_MANAGER = chart.MATRIX["cert-manager"]["redis"]
_OWN = chart.MATRIX["own-certificate"]["redis"]
_EXTERNAL = {"mode": "external", "usersSecret": "u", "external": {"url": "rediss://r:1/0", "caSecret": "theirs"}}


@pytest.mark.parametrize(
    ("redis", "secret"),
    [(_CERT_MANAGER, "dynamic-scoring-redis-tls"), (_OWN, "redis-cert"), (_EXTERNAL, "theirs")],
    ids=["cert-manager", "own", "external"],
)
def test_missing_ca_is_noted(redis: chart.Values, secret: str) -> None:
    assert f"no ca.crt was found in Secret {secret}" in chart.notes({"redis": redis})
    assert "DSF_REDIS_CA_FILE" not in _agent_environment({"redis": redis})
    # Without agents of the addon the CA is not needed.
    assert "no ca.crt" not in chart.notes({"redis": redis, "addon": {"enabled": False}})
    values_with_ca = {"redis": redis | {"tls": redis.get("tls", {}) | {"ca": _CA}}}
    assert "no ca.crt" not in chart.notes(values_with_ca)
    assert _agent_environment(values_with_ca)["DSF_REDIS_CA_FILE"] == "/etc/dsf/ca/redis-ca.crt"
    ca = chart.find_object(chart.agent_objects(chart.render(values_with_ca)), "ConfigMap", "dynamic-scoring-agent-ca")[
        "data"
    ]
    assert ca["redis-ca.crt"].strip() == _CA


@pytest.mark.parametrize("values", [{}, {"redis": {"tls": {"enabled": False}}}, chart.MATRIX["external"]])
def test_notes_omit_a_ca_that_is_not_needed(values: chart.Values) -> None:
    assert "no ca.crt" not in chart.notes(values)
