"""The processes of the chart: existing settings and objects, minimal rights, probes and updates."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import typer.main

from dsf.backends.kube_credentials import MASTER_SECRET_KEY, MASTER_SECRET_NAME
from dsf.cli.main import app
from dsf.optimizer.settings import DEFAULT_PORT as OPTIMIZER_PORT
from dsf.settings import DEFAULT_PORT, ENV_PREFIX, list_settings_classes
from dsf.worker import commands
from tests.support import chart

OURS = (*chart.SERVICES, "flower", "optimizer", "agent")
#: Processes of the hub: all services in one, or each apart.
HUB = ("hub", *chart.SERVICES)
USE_THE_API = {"hub", "controller", "web", "optimizer", "agent"}
COMMANDS: Any = typer.main.get_command(app)


@pytest.fixture(params=chart.MATRIX)
def workloads(request: pytest.FixtureRequest) -> dict[str, chart.Object]:
    """Return the workloads of one set of values, by their short name."""
    workloads_by_name = chart.workloads(chart.render(chart.MATRIX[request.param]))
    return {name.removeprefix("dynamic-scoring-"): workload for name, workload in workloads_by_name.items()}


@pytest.fixture(params=("hub", *OURS))
def process(request: pytest.FixtureRequest) -> tuple[str, chart.Object]:
    """Return the short name and container of each process, with every feature enabled."""
    values = chart.MATRIX["everything-single"] if request.param == "hub" else chart.EVERYTHING
    workload = chart.workloads(chart.render(values))[f"dynamic-scoring-{request.param}"]
    (container,) = chart.containers(workload)
    return request.param, container


def test_every_variable_is_a_setting(workloads: dict[str, chart.Object]) -> None:
    settings = {ENV_PREFIX + name.upper() for group in list_settings_classes() for name in group.model_fields}
    for workload in workloads.values():
        for container in chart.containers(workload):
            variables = {name for name in chart.environment(container) if name.startswith(ENV_PREFIX)}
            assert variables <= settings


def test_every_value_of_a_setting_can_be_used(
    workloads: dict[str, chart.Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, workload in workloads.items():
        if name == "redis":
            continue
        (container,) = chart.containers(workload)
        with monkeypatch.context() as patch:
            for key, value in chart.environment(container).items():
                # OCM fills in these variables.
                patch.setenv(key, re.sub(r"{{\w+}}", "1", value))
            for group in list_settings_classes():
                group.load()


def test_every_command_of_a_pod_exists(workloads: dict[str, chart.Object]) -> None:
    for name, workload in workloads.items():
        if name == "redis":
            continue
        (container,) = chart.containers(workload)
        assert "command" not in container
        command, *options = container["args"]
        assert command == ("hub" if name in HUB else name)
        assert options == ["--target", name] if name in chart.SERVICES else "--target" not in options
        parameters = COMMANDS.commands[command].params
        flags = {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}
        assert {option for option in options if option.startswith("-")} <= flags


@pytest.mark.parametrize(("read_only", "user"), [(True, "flower"), (False, "flower-tasks")])
def test_flower_may_start_tasks_only_when_it_is_to(read_only: bool, user: str) -> None:
    objects = chart.render({"flower": {"readOnly": read_only}})
    (container,) = chart.containers(chart.workloads(objects)["dynamic-scoring-flower"])
    assert ("--no-read-only" in container["args"]) is not read_only
    assert ("--read_only=True" in commands.make_flower_command("h", 1, read_only=read_only)) is read_only
    assert chart.environment(container)["DSF_REDIS_USERNAME"] == f"dsf-{user}"
    # Users of the other mode are not created.
    passwords = set(chart.find_object(objects, "Secret", "dynamic-scoring-redis-users")["data"])
    assert passwords & {"flower", "flower-tasks"} == {user}


def test_flower_wants_a_password() -> None:
    objects = chart.render()
    (container,) = chart.containers(chart.workloads(objects)["dynamic-scoring-flower"])
    environment = chart.environment(container)
    assert environment["FLOWER_BASIC_AUTH"] == "$(FLOWER_USER):$(FLOWER_PASSWORD)"
    assert "FLOWER_UNAUTHENTICATED_API" not in environment
    names = [entry["name"] for entry in container["env"]]
    assert max(names.index("FLOWER_USER"), names.index("FLOWER_PASSWORD")) < names.index("FLOWER_BASIC_AUTH")
    secret = chart.find_object(objects, "Secret", "dynamic-scoring-flower")
    assert re.fullmatch(r"[A-Za-z0-9]{32}", chart.secret_text(secret, "password"))
    assert chart.find_object(objects, "Service", "dynamic-scoring-flower")["spec"]["type"] == "ClusterIP"
    assert not chart.of_kind(objects, "Ingress", "Route")


def test_user_ids_are_ours_or_those_of_openshift() -> None:
    for values, user in (({}, 65532), ({"openshift": {"enabled": True}}, None)):
        for name, workload in chart.workloads(chart.render(values)).items():
            if name != "dynamic-scoring-agent":
                assert chart.pod(workload)["securityContext"].get("runAsUser") == user
    agent = chart.workloads(chart.render())["dynamic-scoring-agent"]
    assert "runAsUser" not in chart.pod(agent)["securityContext"], "the image's own, or one that OpenShift chooses"


def test_service_account_token_is_mounted_only_for_api_users(workloads: dict[str, chart.Object]) -> None:
    for name, workload in workloads.items():
        assert chart.pod(workload)["automountServiceAccountToken"] is (name in USE_THE_API)
        expected = "dynamic-scoring-agent-sa" if name == "agent" else f"dynamic-scoring-{name}"
        assert chart.pod(workload)["serviceAccountName"] == expected


def test_mounts_have_volumes_and_mounted_objects_exist() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        existing_objects = {(o["kind"], o["metadata"]["name"]) for o in [*objects, *chart.agent_objects(objects)]}
        for name, workload in chart.workloads(objects).items():
            volumes = {volume["name"]: volume for volume in chart.pod(workload)["volumes"]}
            claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
            mounts = [m for container in chart.containers(workload) for m in container["volumeMounts"]]
            assert {mount["name"] for mount in mounts} == set(volumes) | claims
            for volume in volumes.values():
                secret = volume.get("secret", {}).get("secretName", "")
                # The hub controller delivers the agent's Secrets.
                if secret.startswith("dynamic-scoring-") and secret != "dynamic-scoring-agent-credentials":
                    is_foreign = secret == "dynamic-scoring-redis-tls" and _by_cert_manager(objects)
                    assert is_foreign or ("Secret", secret) in existing_objects, f"{name}: {secret}"


def _by_cert_manager(objects: list[chart.Object]) -> bool:
    return bool(chart.of_kind(objects, "Certificate"))


def test_files_that_are_named_are_mounted(workloads: dict[str, chart.Object]) -> None:
    for workload in workloads.values():
        for container in chart.containers(workload):
            mount_paths = tuple(mount["mountPath"] for mount in container["volumeMounts"])
            for name, value in chart.environment(container).items():
                if name.endswith(("_FILE", "_DIR")):
                    assert value.startswith(mount_paths), name


def test_secrets_are_mounted_as_files(workloads: dict[str, chart.Object]) -> None:
    """Child processes inherit variables and dumps show them; only Flower needs one."""
    for name, workload in workloads.items():
        for container in chart.containers(workload):
            for entry in container.get("env", []):
                assert name == "flower" or "secretKeyRef" not in entry.get("valueFrom", {})


def test_each_process_mounts_its_own_password_only(workloads: dict[str, chart.Object]) -> None:
    for name in set(workloads) & {*HUB, "flower", "optimizer"}:
        volumes = chart.pod(workloads[name])["volumes"]
        (password,) = [volume["secret"]["items"] for volume in volumes if volume["name"] == "redis-password"]
        (container,) = chart.containers(workloads[name])
        user = "flower-tasks" if "--no-read-only" in container["args"] else name
        assert password == [{"key": user, "path": "password"}]
        assert chart.environment(container)["DSF_REDIS_USERNAME"] == f"dsf-{user}"
        signs = {volume["name"] for volume in volumes} & {"signing"}
        assert bool(signs) is (name in ("hub", "controller", "results")), "the master secret is for these"


def test_signing_secret_has_the_name_that_the_hub_uses() -> None:
    secret = chart.find_object(chart.render(), "Secret", MASTER_SECRET_NAME)
    assert set(secret["data"]) == {MASTER_SECRET_KEY}
    workloads = chart.workloads(chart.render()) | chart.workloads(chart.render({"mode": "Distributed"}))
    for name in ("hub", "controller", "results"):
        assert chart.get_environment(workloads, name)["DSF_SIGNING_SECRET_FILE"].endswith(f"/{MASTER_SECRET_KEY}")


def test_ports_match(process: tuple[str, chart.Object]) -> None:
    name, container = process
    environment = chart.environment(container)
    probes = {"probes": int(environment.get("DSF_PROBE_PORT", 0))}
    expected = {
        **dict.fromkeys(HUB, probes),
        **{name: {"http": int(environment.get("DSF_LISTEN_PORT", 0)), **probes} for name in ("hub", "web")},
        "agent": {
            "http-metrics": DEFAULT_PORT,
            "otlp-http": int(environment.get("DSF_OTLP_PORT", 0)),
        },
        "optimizer": {"http": OPTIMIZER_PORT},
        "flower": {"http": 5555},
    }.get(name, {})
    assert {port["name"]: port["containerPort"] for port in container.get("ports", [])} == expected
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if "httpGet" in container.get(probe, {}):
            assert container[probe]["httpGet"]["port"] in expected


def test_services_lead_to_pods_and_ports() -> None:
    for values in chart.MATRIX.values():
        objects = chart.render(values)
        all_objects = [*objects, *chart.agent_objects(objects)]
        for service in chart.of_kind(all_objects, "Service"):
            (workload,) = [
                workload
                for workload in chart.workloads(objects).values()
                if service["spec"]["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
            ]
            port_names = {port["name"] for c in chart.containers(workload) for port in c.get("ports", [])}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= port_names
            assert workload["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]


def test_every_process_is_probed(process: tuple[str, chart.Object]) -> None:
    name, container = process
    probes = {key: str(container[key]) for key in ("livenessProbe", "readinessProbe") if key in container}
    folder = chart.environment(container).get("DSF_PROBE_DIR")
    if name in (*HUB, "optimizer"):
        assert "/healthz" in probes["livenessProbe"]
        assert "/readyz" in probes["readinessProbe"]
    elif name == "flower":
        assert "/healthcheck" in probes["livenessProbe"]
    else:
        assert f"find {folder}/alive -mmin -1" in probes["livenessProbe"]


def test_startup_probe_allows_a_slow_start(workloads: dict[str, chart.Object]) -> None:
    for name, workload in workloads.items():
        for container in chart.pod(workload)["containers"]:
            startup, liveness = container["startupProbe"], container["livenessProbe"]
            pace = {"periodSeconds", "failureThreshold"}
            assert {key: value for key, value in startup.items() if key not in pace} == {
                key: value for key, value in liveness.items() if key not in pace
            }, "until it is alive for the first time, by the same measure"
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 300, name
            assert startup["timeoutSeconds"] >= 5


def test_upgrade_keeps_pods_until_their_successors_are_ready(workloads: dict[str, chart.Object]) -> None:
    for name, workload in workloads.items():
        if workload["kind"] == "Deployment" and name not in ("optimizer", "agent"):
            assert workload["spec"]["strategy"] == {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            }


@pytest.mark.parametrize(
    ("values", "replicated"),
    [({}, ()), ({"hub": {"replicas": 2}}, ("hub",)), ({"mode": "Distributed"}, ("controller", "beat", "results"))],
)
def test_several_replicas_may_be_moved_one_by_one(values: chart.Values, replicated: tuple[str, ...]) -> None:
    objects = chart.render(values)
    budgets = {o["metadata"]["name"]: o["spec"] for o in chart.of_kind(objects, "PodDisruptionBudget")}
    assert set(budgets) == {f"dynamic-scoring-{name}" for name in replicated}
    for name, budget in budgets.items():
        workload = chart.workloads(objects)[name]
        assert workload["spec"]["replicas"] == 2
        assert budget["selector"] == workload["spec"]["selector"]
        assert budget["maxUnavailable"] == 1


@pytest.mark.parametrize("how", ["autoscaling", "keda"])
def test_autoscaled_deployment_has_no_replicas(how: str) -> None:
    objects = chart.render({"mode": "Distributed", "results": {how: {"enabled": True}}})
    assert "replicas" not in chart.workloads(objects)["dynamic-scoring-results"]["spec"]
    (scaler,) = chart.of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "dynamic-scoring-results"


def test_placement_and_pull_secrets_reach_every_pod_on_the_hub() -> None:
    for name, workload in chart.workloads(chart.render(chart.EVERYTHING)).items():
        if name != "dynamic-scoring-agent":
            spec = chart.pod(workload)
            assert spec["nodeSelector"] == chart.EVERYTHING["nodeSelector"]
            assert spec["tolerations"] == chart.EVERYTHING["tolerations"]
            assert spec["imagePullSecrets"] == [{"name": "hub-registry-secret"}]
            assert workload["metadata"]["labels"]["example.com/team"] == "platform"


@pytest.mark.parametrize("mode", chart.MODES)
def test_network_policies_let_in_what_is_offered(mode: str) -> None:
    objects = chart.render({"mode": mode})
    policies = {o["metadata"]["name"]: o["spec"] for o in chart.of_kind(objects, "NetworkPolicy")}
    workloads = {name for name in chart.workloads(objects) if name != "dynamic-scoring-agent"}
    assert set(policies) == workloads
    assert policies["dynamic-scoring-flower"]["ingress"] == []
    for name in chart.MODES[mode]:
        ports = {port["port"] for rule in policies[f"dynamic-scoring-{name}"]["ingress"] for port in rule["ports"]}
        assert ports == ({8080, 8081} if name in ("hub", "web") else {8081})
    assert policies["dynamic-scoring-redis"]["egress"] == []


def test_page_accepts_names_of_its_service_and_ingress() -> None:
    ingress = {"enabled": True, "host": "page.example.com"}
    values = {"web": {"hosts": ["scores.example.com"], "trustedProxies": ["10.0.0.0/8"], "ingress": ingress}}
    hosts = json.loads(chart.get_environment(chart.render(values), "hub")["DSF_HOST_NAMES"])
    service = f"dynamic-scoring-hub.{chart.NAMESPACE}"
    assert hosts == [
        *("scores.example.com", service, f"{service}.svc", f"{service}.svc.cluster.local", "page.example.com")
    ]


def test_default_values_run_three_pods() -> None:
    objects = chart.render()
    replicas = {
        o["metadata"]["name"]: o["spec"]["replicas"] for o in chart.of_kind(objects, "Deployment", "StatefulSet")
    }
    assert replicas == {f"dynamic-scoring-{name}": 1 for name in ("hub", "flower", "redis")}
    assert [o["metadata"]["name"] for o in chart.of_kind(objects, "Service") if "hub" in o["metadata"]["name"]] == [
        "dynamic-scoring-hub"
    ]


def test_page_has_one_name_in_both_modes() -> None:
    for mode in chart.MODES:
        service = chart.find_object(chart.render({"mode": mode}), "Service", "dynamic-scoring-hub")
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {"http": 8080, "http-metrics": 8081}


def test_change_of_mode_leaves_redis_as_it_is() -> None:
    """Redis has the users of both modes, since a restart would lose data without a volume."""
    single, distributed = (chart.render({"mode": mode}) for mode in chart.MODES)
    users = [set(chart.find_object(o, "Secret", "dynamic-scoring-redis-users")["data"]) for o in (single, distributed)]
    assert users[0] == users[1] >= {"hub", *chart.SERVICES}
    volatile = ("checksum/users",)
    templates = [chart.find_object(o, "StatefulSet")["spec"]["template"] for o in (single, distributed)]
    for template in templates:
        for name in volatile:
            del template["metadata"]["annotations"][name]
    assert templates[0] == templates[1]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"exporter": {"replicas": 2}}, "exporter.replicas is web.replicas"),
        ({"exporter": {"hosts": ["a.example.com"]}}, "exporter.hosts is web.hosts"),
        (
            {"web": {"enabled": False}},
            "web.enabled: the page, the JSON API and the metrics of the fleet are one service",
        ),
        ({"results": {"writeRate": 10}}, "set controller.writeRate"),
        ({"beat": {"replicas": 3}}, "set hub.replicas, or mode: Distributed"),
        ({"results": {"resources": {"limits": {"memory": "1Gi"}}}}, "set hub.resources, or mode: Distributed"),
        ({"controller": {"extraEnv": [{"name": "A", "value": "b"}]}}, "set hub.extraEnv, or mode: Distributed"),
        ({"web": {"nodeSelector": {"a": "b"}}}, "set hub.nodeSelector, or mode: Distributed"),
        ({"web": {"serviceAccount": {"annotations": {"a": "b"}}}}, "set hub.serviceAccount, or mode: Distributed"),
        ({"results": {"keda": {"enabled": True}}}, "there are no results workers to scale: set mode: Distributed"),
        ({"results": {"autoscaling": {"enabled": True}}}, "there are no results workers to scale"),
        (
            {"mode": "Distributed", "hub": {"replicas": 3}},
            "hub.replicas: with mode Distributed, there is no process of all services: set replicas of controller",
        ),
        (
            {"mode": "Distributed", "hub": {"podLabels": {"a": "b"}}},
            "set podLabels of controller, beat, results or web",
        ),
    ],
)
def test_values_that_a_mode_does_not_read_are_refused_with_their_replacement(
    values: chart.Values, sentence: str
) -> None:
    with pytest.raises(chart.RenderError) as raised:
        chart.render(values)
    assert sentence in str(raised.value)


def test_values_that_say_what_is_so_anyway_are_accepted() -> None:
    plain = {"web": {"enabled": True}, "exporter": {}, "beat": {"replicas": 2, "extraEnv": []}, "results": {"keda": {}}}
    assert len(chart.render(plain)) == len(chart.render())
