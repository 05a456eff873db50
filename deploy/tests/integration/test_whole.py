"""The chart as a whole, without containers: installed by Helm on a real API server, its processes started with exactly
the environment, arguments, files and rights that it gives them, on its Redis with its users; until there is a score."""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from deploy.tests.integration.hubcluster import (
    ADDON_TEMPLATES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
    HubCluster,
)
from deploy.tests.integration.node import Node
from dsf.api.types import (
    ADDON_NAME,
    AGENT_ACCOUNT,
    AGENT_NAMESPACE,
    API_VERSION,
    DELIVER_LABEL,
    HUB_NAMESPACE,
)
from dsf.errors import ObjectNotFoundError
from dsf.hub.manifestwork import SCORERS_ROLE
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    DYNAMIC_SCORERS,
    MANAGED_CLUSTER_ADDONS,
    MANAGED_CLUSTERS,
    MANIFEST_WORKS,
    SCORING_AUTHENTICATIONS,
    SECRETS,
    Resource,
)
from dsf.kube.session import ForbiddenError, Session
from dsf.store.pairs import Pairs
from tests.support import chart
from tests.support.assistant import Assistant
from tests.support.authenticatedquery import require_header
from tests.support.controlplane_fixtures import programs_needed
from tests.support.httpserver import ScriptedServer, answer
from tests.support.redisserver import free_port, is_listening
from tests.support.workagent import work_agent

CLUSTER = "whole-c1"
SCORER = "sample"
#: Long, because the test requests every cycle after the first one.
INTERVAL = 600
_HOST = f"dynamic-scoring-redis.{HUB_NAMESPACE}.svc:6379"
_RESULTS = {"results": [{"metric": {"node": "n1"}, "score": 42.7}]}
_EARLIER: tuple[tuple[str, Resource], ...] = (
    ("ServiceAccount", SERVICE_ACCOUNTS),
    ("Role", ROLES),
    ("RoleBinding", ROLE_BINDINGS),
    ("ClusterRole", CLUSTER_ROLES),
    ("ClusterRoleBinding", CLUSTER_ROLE_BINDINGS),
    ("Deployment", DEPLOYMENTS),
)
_COLLECTOR_TOKEN = "token-of-the-collector"
_SOURCES = {"kubernetes": True, "otlp": {"enabled": True, "tokenSecret": "collector"}}
#: More than the defaults, to see that it works.
VALUES: chart.Values = {
    # Port-forwards need a kubelet: tests/node has them.
    "redis": {"exposure": {"type": "ClusterIP"}},
    "flower": {"readOnly": False},
    "hubSetting": {"secretDelivery": True},
    "optimizer": {"enabled": True},
    "spokeSetting": {"agent": {"sources": _SOURCES}},
}


class InstalledChart:
    """Everything of the chart, running."""

    def __init__(self, hub: HubCluster, session: Session, folder: Path, scorer: ScriptedServer) -> None:
        self.session = session
        self.node = Node(hub, session, folder)
        self.redis_port = free_port()
        self._scorer = scorer
        self._hub = hub

    def start(self) -> None:
        """Start the hub's processes, then join a cluster and deploy its agent as OCM does."""
        self.start_redis()
        for name in ("hub", "hub-2", "flower"):
            # A test is about a cluster that has left for good.
            self.run(name, DSF_DEPARTURE_GRACE="0")
        # Its port is the default one.
        self.run("optimizer", DSF_LISTEN_PORT=str(self.node.port("optimizer", 8338)))
        self.join()

    def start_redis(self) -> None:
        """Start the chart's Redis."""
        self.node.fixed["redis", 6379] = self.redis_port
        self.node.hosts = {
            _HOST: f"localhost:{self.redis_port}",
            # In its own configuration.
            "tls-port 6379": f"tls-port {self.redis_port}",
            "bind * -::*": "bind 127.0.0.1",
        }
        self.node.run(self._workload(STATEFUL_SETS, "redis"), "redis")

    def run(self, name: str, **extra_variables: str) -> None:
        """Start a pod of the Deployment of this name; `-2` behind it is a second one."""
        self.node.run(self._workload(DEPLOYMENTS, name.removesuffix("-2")), name, **extra_variables)

    def _workload(self, resource: Resource, name: str) -> chart.Object:
        return self.session.get(resource.path(HUB_NAMESPACE, f"dynamic-scoring-{name}"))

    def cycle(self, scorer: str = SCORER) -> None:
        """Ask Flower for a cycle, as a person does."""
        secret = self.session.get(SECRETS.path(HUB_NAMESPACE, "dynamic-scoring-flower"))["data"]
        login = ":".join(base64.b64decode(secret[key]).decode() for key in ("username", "password"))
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.node.pods['flower'].ports['http']}/api/task/send-task/dsf.cycle",
            json.dumps({"args": [scorer], "queue": f"spoke.{CLUSTER}"}).encode(),
            {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"},
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            assert response.status == 200

    def join(self) -> None:
        """Join a cluster with a scorer, and deploy its agent."""
        self.session.create(NAMESPACES.path(), {"metadata": {"name": CLUSTER}})
        self.create(MANAGED_CLUSTERS, "", CLUSTER, {"hubAcceptsClient": True})
        self.create(MANAGED_CLUSTER_ADDONS, CLUSTER, ADDON_NAME, {})
        self.scorer(SCORER, {"type": "None"})
        self._deploy_agent()

    def scorer(self, name: str, source: dict[str, Any]) -> None:
        """A DynamicScorer whose scores are NAME-score."""
        scoring = {
            "host": self._scorer.url,
            "path": "/scoring",
            "params": {"name": f"{name}-score", "interval": INTERVAL},
        }
        spec = {
            "description": "a sample",
            "configURL": f"{self._scorer.url}/config",
            "configSyncMode": "None",
            "scoreDimensionFormat": "${node}",
            "source": source,
            "scoring": scoring,
        }
        self.create(DYNAMIC_SCORERS, HUB_NAMESPACE, name, spec)

    def create(self, resource: Resource, namespace: str, name: str, spec: dict[str, Any]) -> None:
        """An object of this spec."""
        api = API_VERSION if resource is DYNAMIC_SCORERS else resource.api_version
        body = {"apiVersion": api, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
        self.session.create(resource.path(namespace), body)

    def _deploy_agent(self) -> None:
        """Create the objects that OCM's addon manager and work agent make of the AddOnTemplate; hub and managed cluster
        are the same here.
        """
        template = self.session.get(ADDON_TEMPLATES.path(name=ADDON_NAME))
        manifests = template["spec"]["agentSpec"]["workload"]["manifests"]
        objects = json.loads(json.dumps(manifests).replace("{{CLUSTER_NAME}}", CLUSTER))
        self.session.create(NAMESPACES.path(), chart.find_object(objects, "Namespace"))
        collector = {"metadata": {"name": "collector"}, "stringData": {"token": _COLLECTOR_TOKEN}}
        self.session.create(SECRETS.path(AGENT_NAMESPACE), collector)
        for kind, resource in _EARLIER:
            for manifest in chart.of_kind(objects, kind):
                self.session.create(resource.path(AGENT_NAMESPACE if resource.namespaced else ""), manifest)
        for config_map in chart.of_kind(objects, "ConfigMap"):
            self._hub.plane.kubectl("apply", "-f", "-", stdin=json.dumps(config_map))
        agent = self.session.get(DEPLOYMENTS.path(AGENT_NAMESPACE, "dynamic-scoring-agent"))
        # Its port is the default one.
        port = self.node.port("agent", 8080)
        self.node.run(agent, "agent", DSF_LISTEN_PORT=str(port))

    def client(self, role: str) -> redis.Redis:
        """Return a client with the password of one of the hub's users from the Secret."""
        users = self.session.get(SECRETS.path(HUB_NAMESPACE, "dynamic-scoring-redis-users"))["data"]
        return self.connected(f"dsf-{role}", base64.b64decode(users[role]).decode())

    def connected(self, username: str, password: str) -> redis.Redis:
        """A client of this user."""
        return redis.Redis(
            host="localhost",
            port=self.redis_port,
            username=username,
            password=password,
            ssl=True,
            ssl_ca_certs=str(self.node.folder / "redis" / "tls" / "ca.crt"),
            decode_responses=True,
        )

    def score(self, name: str = SCORER) -> list[tuple[str, int]]:
        """The items of the cluster's AddOnPlacementScore."""
        try:
            score_object = self.session.get(ADDON_PLACEMENT_SCORES.path(CLUSTER, f"{name}-score"))
        except ObjectNotFoundError:
            return []
        return [(item["name"], item["value"]) for item in (score_object.get("status") or {}).get("scores", ())]


@pytest.fixture(scope="module")
def world(hub: HubCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledChart]:
    """A hub with the chart on it, one managed cluster, and a scorer."""
    with contextlib.ExitStack() as stack:
        scorer = stack.enter_context(ScriptedServer(answer("ok")))
        scorer.script(answer(_RESULTS), path="/scoring")
        session = stack.enter_context(contextlib.closing(hub.plane.session()))
        stack.enter_context(hub.release(VALUES))
        new_world = InstalledChart(hub, session, tmp_path_factory.mktemp("whole"), scorer)
        stack.callback(new_world.node.stop)
        with programs_needed():
            stack.enter_context(work_agent(CLUSTER, hub.plane, hub.plane))
        new_world.start()
        yield new_world


def test_installed_chart_produces_a_score(world: InstalledChart) -> None:
    world.node.until(lambda: world.score() == [("n1", 42)], "a score")


def test_pods_pass_their_probes(world: InstalledChart) -> None:
    for name, pod in world.node.pods.items():
        if name == "redis":
            # redis-cli is in its image, not here; that this user may ping is tested with the bundled Redis.
            continue
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            workload = world.session.get(
                DEPLOYMENTS.path(
                    AGENT_NAMESPACE if name == "agent" else HUB_NAMESPACE,
                    f"dynamic-scoring-{name.removesuffix('-2')}",
                )
            )
            if probe in chart.pod(workload)["containers"][0]:
                world.node.until(lambda p=pod, which=probe: p.passes(which), f"{name} to pass its {probe}", 30)

    # Both hubs are ready and one works; none does for a moment after a lease has expired.
    def count_leaders() -> list[int]:
        return sorted(
            pod.get(pod.ports["probes"], "/metrics")[1].count("dynamic_scoring_hub_leading 1.0")
            for pod in (world.node.pods["hub"], world.node.pods["hub-2"])
        )

    world.node.until(lambda: count_leaders() == [0, 1], "one of the hubs to work")


def test_assistant_may_rescore(world: InstalledChart, hub: HubCluster) -> None:
    rules = [{"apiGroups": [DYNAMIC_SCORERS.group], "resources": ["dynamicscorers"], "verbs": ["update"]}]
    kubeconfig = yaml.safe_load(hub.plane.service_account(HUB_NAMESPACE, "whole-assistant", rules).read_text())
    assistant = Assistant(
        f"http://127.0.0.1:{world.node.pods['optimizer'].ports['http']}/mcp",
        token=kubeconfig["users"][0]["user"]["token"],
    )
    with contextlib.closing(world.client("operator")) as client:
        before = Pairs(client).read_state(CLUSTER, SCORER).count("ok")
        (run,) = assistant.ask("rescore", scorer=SCORER)["runs"]
        assert (run["cluster"], run["message"]) == (CLUSTER, "")
        world.node.until(lambda: Pairs(client).read_state(CLUSTER, SCORER).count("ok") > before, "another cycle", 30)


def test_processes_are_denied_no_redis_command(world: InstalledChart) -> None:
    with contextlib.closing(world.client("hub")) as hub:
        # The hub's user may create users, so the test lets it create a reader of the log of denials.
        hub.execute_command("ACL", "SETUSER", "reader", "on", ">reader-password", "+acl|log", "+client|list")
        reader = world.connected("reader", "reader-password")
        processes = {f"dsf-{name}" for name in ("hub", "flower-tasks")}
        expected = processes | {f"spoke-{CLUSTER}"}
        with contextlib.closing(reader):
            world.node.until(
                lambda: expected <= {client["user"] for client in reader.client_list()}, "everybody to be connected"
            )
            denied_commands: Any = reader.acl_log()
        hub.acl_deluser("reader")
    assert denied_commands == []


def test_delivered_secret_and_its_rotation_reach_the_source(world: InstalledChart, hub: HubCluster) -> None:
    """The whole path: Secret on the hub, ManifestWork, OCM's work agent, Secret in the agents' namespace, an agent
    with the rights of its scorers, and a source that requires the token.
    """
    token, name, session = "first-t0ken", "delivered", world.session
    path, copy = SECRETS.path(HUB_NAMESPACE, name), SECRETS.path(AGENT_NAMESPACE, name)

    def copied() -> str:
        with contextlib.suppress(ObjectNotFoundError):
            return base64.b64decode(session.get(copy)["data"]["token"]).decode()
        return ""

    with ScriptedServer(require_header("Authorization", lambda: f"Bearer {token}")) as source:
        labels = {DELIVER_LABEL: "true"}
        secret = {"metadata": {"name": name, "labels": labels}, "stringData": {"token": token}}
        session.create(SECRETS.path(HUB_NAMESPACE), secret)
        bound = {
            "allowedHosts": [f"127.0.0.1:{source.port}"],
            "secretDelivery": [{"name": name}],
            "tokenSecretRef": {"name": name, "key": "token"},
        }
        world.create(SCORING_AUTHENTICATIONS, HUB_NAMESPACE, name, bound)
        params = {"query": "up", "range": 60, "step": 15}
        auth = {"authenticationRef": {"name": name}}
        world.scorer(name, {"type": "Prometheus", "host": source.url, "params": params, "auth": auth})
        world.node.until(lambda: world.score(name) == [("n1", 42)], "a score of the delivered token", 90)
        assert copied() == token
        # The role is generated from the Secrets that its scorers name.
        role = session.get(ROLES.path(AGENT_NAMESPACE, SCORERS_ROLE))
        assert [rule["resourceNames"] for rule in role["rules"] if rule["resources"] == ["secrets"]] == [[name]]
        kubeconfig = hub.kubeconfig_of(AGENT_NAMESPACE, AGENT_ACCOUNT)
        with contextlib.closing(Session.load(kubeconfig)) as agent:
            assert agent.get(copy)["metadata"]["name"] == name
            with pytest.raises(ForbiddenError):
                agent.get(SECRETS.path(AGENT_NAMESPACE, "collector"))

        token = "sec0nd-token"
        session.merge(path, {"stringData": {"token": token}})
        world.node.until(lambda: copied() == token, "the new token", 30)

        with contextlib.closing(world.client("operator")) as client:
            before = Pairs(client).read_state(CLUSTER, name).count("ok")
            world.cycle(name)
            world.node.until(
                lambda: Pairs(client).read_state(CLUSTER, name).count("ok") > before, "a cycle with it", 30
            )
        assert source.requests[-1].headers["Authorization"] == f"Bearer {token}"

        # With its last scorer both go.
        session.delete(DYNAMIC_SCORERS.path(HUB_NAMESPACE, name))
        world.node.until(lambda: copied() == "", "the Secret to go", 30)

        def may_read() -> bool:
            with contextlib.suppress(ObjectNotFoundError):
                rules = session.get(ROLES.path(AGENT_NAMESPACE, SCORERS_ROLE)).get("rules") or []
                return any(name in rule.get("resourceNames", []) for rule in rules)
            return False

        world.node.until(lambda: not may_read(), "the right to go", 30)
    logs = "".join((pod.folder / "log").read_text(errors="replace") for pod in world.node.pods.values())
    assert "t0ken" not in logs
    assert "sec0nd" not in logs


def test_collector_pushes_metrics_with_its_token(world: InstalledChart) -> None:
    # The receiver starts with the first scorer of pushed metrics.
    world.scorer("pushed", {"type": "OpenTelemetry", "path": "/v1/metrics", "params": {"query": "m"}})
    world.node.until(lambda: is_listening(world.node.pods["agent"].ports["otlp-http"]), "the receiver")
    world.node.until(lambda: _push(world, _COLLECTOR_TOKEN) == 200, "the receiver to know the token")
    assert _push(world, "another") == 401


def _push(world: InstalledChart, token: str) -> int:
    """Return the status of an empty push."""
    url = f"http://127.0.0.1:{world.node.pods['agent'].ports['otlp-http']}/v1/metrics"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return _status(urllib.request.Request(url, b"{}", headers))


def test_agent_may_read_nodes_and_pods_if_enabled(world: InstalledChart, hub: HubCluster) -> None:
    kubeconfig = hub.kubeconfig_of(AGENT_NAMESPACE, "dynamic-scoring-agent-sa")
    with contextlib.closing(Session.load(kubeconfig)) as agent:
        assert agent.get("/api/v1/nodes")["items"] == []
        assert "items" in agent.get("/api/v1/pods")
        for path in ("/api/v1/secrets", "/api/v1/configmaps"):
            with pytest.raises(ForbiddenError):
                agent.get(path)


def test_optimiser_authenticates_its_callers(world: InstalledChart, hub: HubCluster) -> None:
    # Anonymous callers and known callers without rights are refused: the optimiser does not lend its own rights.
    kubeconfig = yaml.safe_load(hub.kubeconfig_of(HUB_NAMESPACE, "dynamic-scoring-flower").read_text())
    url = f"http://127.0.0.1:{world.node.pods['optimizer'].ports['http']}/plans?namespace={HUB_NAMESPACE}"
    assert _status(urllib.request.Request(url)) == 401
    login = {"Authorization": f"Bearer {kubeconfig['users'][0]['user']['token']}"}
    assert _status(urllib.request.Request(url, headers=login)) == 403


def _status(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_deleted_cluster_is_cut_off_and_its_objects_are_removed(world: InstalledChart) -> None:
    world.session.delete(MANAGED_CLUSTERS.path(name=CLUSTER))
    with contextlib.closing(world.client("hub")) as hub:
        user = f"user spoke-{CLUSTER} "
        world.node.until(lambda: not [line for line in hub.acl_list() if line.startswith(user)], "its user to go", 30)
    agent = world.node.pods["agent"]
    world.node.until(lambda: not agent.passes("readinessProbe"), "the agent to be not ready", 30)
    assert agent.passes("livenessProbe")
    world.node.until(lambda: world.score() == [], "the score to go", 30)
    # OCM's work agent removes it once the objects in it are removed from the cluster.
    works = MANIFEST_WORKS.path(CLUSTER)
    world.node.until(lambda: world.session.get(works)["items"] == [], "the ManifestWorks to go", 30)
