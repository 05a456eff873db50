"""From the original project's hub to this one and back: docs/migration.md, step by step.

docs/e2e.md says how to run it with the original project's own programs. Without them, the test prepares their objects
itself, and the way back ends after the scorers are applied again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api.types import UPSTREAM_FINALIZER
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    CONFIG_MAPS,
    DYNAMIC_SCORERS,
    DYNAMIC_SCORING_CONFIGS,
    MANIFEST_WORKS,
)
from dsf.settings import ENV_PREFIX
from dsf.up.httpcheck import fetch_http, make_http_check
from tests.e2e.managedcluster import METRIC, NAMESPACE, ManagedCluster
from tests.e2e.upstreamhub import UPSTREAM, ScoreRecorder, make_objects, upstream_programs
from tests.e2e.world import CLUSTERS, DSF, HUB_NAMESPACE, MANIFESTS, ROOT
from tests.support import forked
from tests.support.child import Child, run_program
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_crds import create_crds, read_ocm_crds
from tests.support.controlplane_fixtures import programs_needed
from tests.support.redisserver import RedisServer, free_port
from tests.support.wait import wait_for

#: Object names of the scores that the original project writes, by cluster; a mask keeps one from cluster2.
SCORES = {"cluster1": ("llm-forecast-score", "sample-my-score"), "cluster2": ("sample-my-score",)}
ALL_SCORES = [f"{cluster}/{name}" for cluster, names in SCORES.items() for name in names]
CONFIG = DYNAMIC_SCORING_CONFIGS.path(HUB_NAMESPACE, "dynamic-scoring-config")
#: Seconds between two cycles.
INTERVAL = 2


class Migration:
    """The hub, two managed clusters without agents, and two scoring APIs. Used as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = ControlPlane(crds=UPSTREAM is None)
        self.redis = RedisServer(aof=True)
        self.clusters: dict[str, ManagedCluster] = {}
        self._children: list[Child] = []
        self._stack = contextlib.ExitStack()
        self._began = time.monotonic()

    def __enter__(self) -> Migration:
        with contextlib.ExitStack() as stack:
            stack.callback(self._kill)
            stack.enter_context(self.redis)
            stack.enter_context(self.hub)
            self.session = self.hub.session()
            if UPSTREAM is not None:
                create_crds(self.session, read_ocm_crds(find("crds")))
                self.apply_upstreams_crds()
            self.hub.kubectl("apply", "-f", str(MANIFESTS / "clusters.yaml"))
            for name in CLUSTERS:
                plane = ControlPlane(crds=False)
                cluster = ManagedCluster(name, self.folder / name, plane, self.hub, self.redis.url)
                self.clusters[name] = stack.enter_context(cluster)
                cluster.measure(50)
                # RBAC allows reading the Secret, but it is not released for use yet.
                cluster.spoke.allow("api-auth-secret")
                cluster.spoke.secret("api-auth-secret", {"token": "sample-token"}, usable_for="")
            source = f"http://127.0.0.1:{self.clusters['cluster1'].prometheus_port}"
            self.scorers = {
                name: self._start_scorer(name, source) for name in ("sample_my_score", "llm_forecast_score")
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def report(self, step: str) -> None:
        """Print a step with its time, for docs/e2e.md."""
        print(f"{time.monotonic() - self._began:7.1f} s  {step}", flush=True)

    def apply_upstreams_crds(self) -> None:
        assert UPSTREAM is not None
        crds = UPSTREAM / "source" / "charts" / "dynamic-scoring-framework" / "crds"
        self.hub.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crds))
        self.hub.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(crds))

    def manifests(self) -> str:
        """Return two scorers as the original project's samples have them, and its configuration with a mask."""
        if UPSTREAM is None:
            text = (MANIFESTS / "upstream.yaml").read_text()
        else:
            samples = UPSTREAM / "source" / "samples"
            names = ("mydynamicscorer-sample", "mydynamicscorer-external-llm", "mydynamicscoringconfig")
            text = "\n---\n".join((samples / f"{name}.yaml").read_text() for name in names)
        for placeholder, score in {
            "http://<NodeIP>:30007": "sample_my_score",
            "http://${EXTERNAL_SCORER_IP}:8000": "llm_forecast_score",
        }.items():
            text = text.replace(placeholder, self.scorers[score])
        prometheus = f"http://127.0.0.1:{self.clusters['cluster1'].prometheus_port}"
        return text.replace("http://kube-prometheus-kube-prome-prometheus.monitoring.svc:9090", prometheus)

    def start_hub(self) -> Child:
        environment = {
            "redis_url": self.redis.url,
            "backend": "kube",
            "kubeconfig": self.hub.kubeconfig,
            "namespace": HUB_NAMESPACE,
            "health_interval": 1,
            "listen_host": "127.0.0.1",
            "listen_port": free_port(),
            "probe_port": 0,
        }
        return self._run("hub", "dsf.hub", {f"{ENV_PREFIX}{key.upper()}": str(v) for key, v in environment.items()})

    def run_dsf(self, *arguments: str, code: int | None = 0) -> str:
        """Run a command on the hub; return its output. `code` is the expected exit code, None for any."""
        environment = {"DSF_REDIS_URL": self.redis.url, "DSF_KUBECONFIG": str(self.hub.kubeconfig)}
        environment["DSF_NAMESPACE"] = HUB_NAMESPACE
        result = run_program([DSF, *arguments], env={"PATH": "/usr/bin:/bin", "COLUMNS": "300", **environment})
        assert code in (None, result.returncode), result.stdout + result.stderr
        return result.stdout

    def scores(self) -> dict[str, dict[str, Any]]:
        """Return the status of each AddOnPlacementScore with items, by `<cluster>/<name>`."""
        items = self.session.request("GET", ADDON_PLACEMENT_SCORES.path())["items"]
        return {
            f"{item['metadata']['namespace']}/{item['metadata']['name']}": item["status"]
            for item in items
            if (item.get("status") or {}).get("scores")
        }

    def read_delivered(self, cluster: str) -> list[dict[str, Any]]:
        """Return the summaries in the ConfigMap on a managed cluster."""
        with contextlib.suppress(ObjectNotFoundError):
            config_map = self.clusters[cluster].spoke.session.get(CONFIG_MAPS.path(NAMESPACE, "dynamic-scoring-config"))
            return json.loads(config_map["data"]["summaries"])
        return []

    def summaries_of_work(self, cluster: str) -> list[dict[str, Any]]:
        """Return the summaries in the ManifestWork of a cluster."""
        with contextlib.suppress(ObjectNotFoundError):
            work = self.session.get(MANIFEST_WORKS.path(cluster, "dynamic-scoring-config-manifestwork"))
            manifests = work["spec"]["workload"]["manifests"]
            [summaries] = [manifest["data"]["summaries"] for manifest in manifests if manifest["kind"] == "ConfigMap"]
            return json.loads(summaries)
        return []

    def _start_scorer(self, score: str, source: str) -> str:
        port = free_port()
        options = ("--app-dir", str(ROOT / "samples" / "sample-scorer"), "--port", str(port), "--log-level", "warning")
        environment = {
            "SOURCE_HOST": source,
            "SOURCE_QUERY": f"max by (node) ({METRIC})",
            "SOURCE_RANGE": "2",
            "SOURCE_STEP": "1",
            "SCORE_INTERVAL": str(INTERVAL),
            "SCORE_NAME": score,
        }
        command = [sys.executable, "-m", "uvicorn", *options, "app:app"]
        self._children.append(forked.child(command, self.folder / f"{score}.log", environment))
        url = f"http://127.0.0.1:{port}"
        wait_for(make_http_check(f"{url}/healthz"), 60, "the scoring API")
        return url

    def _run(self, name: str, module: str, environment: dict[str, str]) -> Child:
        child = forked.child((sys.executable, "-m", module), self.folder / f"{name}.log", environment)
        self._children.append(child)
        return child

    def _kill(self) -> None:
        for child in self._children:
            child.kill()


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    """Return a hub with no scoring framework installed. Without its programs the test is skipped; in CI it fails."""
    with programs_needed():
        prepared = Migration(tmp_path)
    with prepared:
        yield prepared


def test_change_over_keeps_scores_and_masks_and_leaves_nothing(migration: Migration, tmp_path: Path) -> None:
    hub, session = migration.hub, migration.session
    with contextlib.ExitStack() as stack:
        _prepare_upstream(migration, stack)
        migration.report("scores of upstream's agents are there")

        values_file = tmp_path / "values.yaml"
        values_file.write_text("spokeSetting: {agent: {image: {tag: latest}}}\n")
        saved = hub.kubectl("get", "dynamicscorers,dynamicscoringconfigs,addonplacementscores", "-A", "-o", "yaml")
        (tmp_path / "upstream.yaml").write_text(saved)
        for arguments in ([str(tmp_path / "upstream.yaml")], ["--kubeconfig", str(hub.kubeconfig)]):
            report = migration.run_dsf("migrate", "--check", *arguments, str(values_file), code=1)
            assert "api-auth-secret" in report
            assert "cluster1" not in report, "scores that are taken over need no attention"
        server = migration.scorers["llm_forecast_score"].partition("://")[2]
        secrets = {"tokenSecrets": [{"name": "api-auth-secret", "hosts": [server]}]}
        values_file.write_text(yaml.safe_dump({"spokeSetting": {"agent": secrets}}))
        migration.run_dsf("migrate", "--check", str(tmp_path / "upstream.yaml"), str(values_file))
        migration.report("dsf migrate --check: exit code 1 for the Secret, 0 with it in the values")
        scorers_yaml = tmp_path / "scorers.yaml"
        scorers_yaml.write_text(hub.kubectl("get", "dynamicscorers,dynamicscoringconfigs", "-A", "-o", "yaml"))

    # Upstream's software is removed. The scorer with the token is refused at first, because its Secret is not
    # released.
    before = migration.scores()
    works = {cluster: migration.summaries_of_work(cluster) for cluster in CLUSTERS}
    with contextlib.ExitStack() as stack:
        recorder = stack.enter_context(ScoreRecorder(hub.session()))
        hub.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "deploy" / "helm" / "files" / "crds.yaml")
        )
        migration.report("our CRDs are applied")
        child = migration.start_hub()
        wait_for(lambda: not session.get(CONFIG)["metadata"].get("finalizers"), 60, "upstream's finalizer to go")
        migration.report("upstream's finalizer is gone")
        wait_for(
            lambda: all(status.get("validUntil") for status in migration.scores().values()),
            60,
            "a validUntil on every score",
        )
        migration.report("every score has a validUntil")
        wait_for(lambda: "llm-forecast-score" in migration.run_dsf("scores"), 30, "the score in dsf scores")
        # Without agents, the exit code depends on the time.
        status = migration.run_dsf("status", "llm-forecast-scorer", code=None)
        assert "cluster1/llm-forecast-scorer: the original project's agent wrote" in status
        migration.report("dsf scores and dsf status name upstream's scores")
        for cluster in migration.clusters.values():
            cluster.start_agent()
        wait_for(lambda: has_own_score(migration, "cluster1/sample-my-score"), 60, "a score of its own on cluster1")
        wait_for(lambda: has_own_score(migration, "cluster2/sample-my-score"), 60, "a score of its own on cluster2")
        migration.report("the scorer without a token has scores of its own on both clusters")
        wait_for(lambda: "secret_refused" in migration.run_dsf("status", code=1), 60, "a refused Secret in dsf status")
        assert migration.scores()["cluster1/llm-forecast-score"]["conditions"][0]["reason"] == "WrittenByUpstream"
        assert "cluster1/llm-forecast-scorer: the original project's agent wrote" in migration.run_dsf("status", code=1)
        for cluster in migration.clusters.values():
            cluster.spoke.secret("api-auth-secret", {"token": "sample-token"})
        wait_for(
            lambda: has_own_score(migration, "cluster1/llm-forecast-score"), 60, "a score of the scorer with the token"
        )
        migration.report("the scorer with the token has a score of its own after its Secret was released")
        wait_for(lambda: "original project" not in migration.run_dsf("scores"), 30, "no upstream score in dsf scores")
        wait_for(lambda: migration.run_dsf("status"), 30, "dsf status without a problem")
    gaps = {name: recorder.longest_gap(name) for name in ALL_SCORES}
    migration.report(f"longest time without a score, in {len(recorder.lists)} lists: {gaps}")
    assert max(gaps.values()) == 0.0
    assert before.keys() == migration.scores().keys() == set(ALL_SCORES), "the mask holds"
    for name, summaries in works.items():
        delivered = {summary["scoreName"]: summary for summary in migration.read_delivered(name)}
        assert delivered.keys() == {summary["scoreName"] for summary in summaries}
        if UPSTREAM is not None:
            for summary in summaries:
                assert summary.items() <= delivered[summary["scoreName"]].items()
    migration.run_dsf("migrate", "--check", "--kubeconfig", str(hub.kubeconfig), str(values_file))
    _uninstall(migration, child)
    migration.report("uninstalled: no ManifestWork, score or finalizer is left")
    hub.kubectl("apply", "-f", str(scorers_yaml))
    with contextlib.ExitStack() as stack:
        if UPSTREAM is not None:
            migration.apply_upstreams_crds()
            migration.report("upstream's CRDs are applied")
            stack.enter_context(upstream_programs(hub, migration.clusters, tmp_path))
            wait_for(lambda: migration.scores().keys() == set(ALL_SCORES), 180, "scores of upstream's agents")
            migration.report("scores of upstream's agents are there again")


def _prepare_upstream(migration: Migration, stack: contextlib.ExitStack) -> None:
    hub, session = migration.hub, migration.session
    hub.kubectl("apply", "-n", HUB_NAMESPACE, "-f", "-", stdin=migration.manifests())
    if UPSTREAM is None:
        session.merge(CONFIG, {"metadata": {"finalizers": [UPSTREAM_FINALIZER]}})
        summaries = [{"scoreName": "llm_forecast_score"}, {"scoreName": "sample_my_score"}]
        make_objects(session, {"cluster1": SCORES["cluster1"]}, summaries)
        make_objects(session, {"cluster2": SCORES["cluster2"]}, summaries[1:])
        for name, score in {"sample-scorer": "sample_my_score", "llm-forecast-scorer": "llm_forecast_score"}.items():
            config = json.loads(fetch_http(f"{migration.scorers[score]}/config") or b"")
            status = {"healthStatus": "Active", "lastSyncedConfig": config}
            session.merge(DYNAMIC_SCORERS.path(HUB_NAMESPACE, name, "status"), {"status": status})
    else:
        stack.enter_context(upstream_programs(hub, migration.clusters, migration.folder))
    wait_for(lambda: migration.scores().keys() == set(ALL_SCORES), 180, "scores of upstream's agents")
    assert session.get(CONFIG)["metadata"]["finalizers"] == [UPSTREAM_FINALIZER]
    assert not any("validUntil" in status for status in migration.scores().values())


def has_own_score(migration: Migration, name: str) -> bool:
    status = migration.scores().get(name, {})
    return bool(status) and status["conditions"][0]["reason"] != "WrittenByUpstream"


def _uninstall(migration: Migration, hub_process: Child) -> None:
    """Uninstall as on docs/install.md, without Helm."""
    migration.hub.kubectl("delete", "dynamicscorers", "--all", "--all-namespaces", "--timeout=60s")
    began = time.monotonic()
    migration.hub.kubectl("delete", "-n", HUB_NAMESPACE, "dscfg", "dynamic-scoring-config", "--timeout=60s")
    migration.report(f"kubectl delete dynamicscoringconfig took {time.monotonic() - began:.1f} s")
    hub_process.signal(signal.SIGTERM)
    hub_process.wait()
    for cluster in migration.clusters.values():
        cluster.stop_agent()
    migration.run_dsf("hub", "--leave", "--backend", "kube")
    assert migration.scores() == {}
    assert not migration.session.request("GET", MANIFEST_WORKS.path())["items"]
    assert not migration.session.request("GET", DYNAMIC_SCORERS.path())["items"]
