"""The hub and the results worker as processes on a real API server and a real Redis, and their effects."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis

from dsf import messages
from dsf.api.types import ADDON_NAME, MANIFESTWORK_NAME
from dsf.errors import ObjectNotFoundError
from dsf.hub.manifestwork import is_applied
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    DYNAMIC_SCORERS,
    DYNAMIC_SCORING_CONFIGS,
    EVENTS,
    LEASES,
    MANAGED_CLUSTERS,
    MANIFEST_WORKS,
    Resource,
)
from dsf.kube.session import ApiServerError, Session
from dsf.results.ingest import Ingest
from dsf.settings import ENV_PREFIX, Settings, make_child_environment
from dsf.store.registry import Registry
from dsf.store.schedule import ScheduleStore
from tests.integration.results.bed import handle
from tests.integration.results.push import push
from tests.support import forked
from tests.support.child import Child
from tests.support.controlplane import ControlPlane
from tests.support.manifests import applied, config, scorer
from tests.support.wait import wait_for

SECRET = "5e" * 32
_ROOT = Path(__file__).parents[4]
_OFF_CLOCK = Path(__file__).with_name("offclock")
#: Objects that a test leaves behind on an API server that the next test uses too.
_LEFTOVERS = (DYNAMIC_SCORING_CONFIGS, DYNAMIC_SCORERS, MANAGED_CLUSTERS, ADDON_PLACEMENT_SCORES, MANIFEST_WORKS)


class HubWorld:
    """As in production, except for the interval of health checks, a resync after the test, and no grace."""

    def __init__(self, plane: ControlPlane, client: redis.Redis, url: str, logs: Path) -> None:
        self.plane = plane
        self.client = client
        self.namespace = plane.namespace("hub")
        self.session = Session.load(plane.kubeconfig)
        self.schedule = ScheduleStore(client)
        self.settings: dict[str, object] = {
            "backend": "kube",
            "kubeconfig": plane.kubeconfig,
            "namespace": self.namespace,
            "redis_url": url,
            "signing_secret": SECRET,
            "health_interval": 0.3,
            "hub_resync": 600,
            "departure_grace": 0,
        }
        self._logs = logs
        self._processes: list[Child] = []

    # --- processes -----------------------------------------------------------------------------------------------

    def hub(self, *, clock: float = 0.0, **settings: object) -> Child:
        """Return a hub process. `clock` is by how many seconds its wall clock is off."""
        return self._run("controller", settings, clock)

    def results(self, *, clock: float = 0.0, **settings: object) -> Child:
        """Return a results worker."""
        return self._run("results", settings, clock)

    def holder(self) -> str:
        """Return the holder of the lease; empty without one."""
        with contextlib.suppress(ObjectNotFoundError):
            lease = self.session.get(LEASES.path(self.namespace, "dynamic-scoring-hub"))
            return str(lease["spec"].get("holderIdentity") or "")
        return ""

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
        self.session.close()

    def _run(self, target: str, settings: dict[str, object], clock: float) -> Child:
        values = {"role": "hub", "target": target, "probe_port": 0, **self.settings, **settings}
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        environment |= {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
        if clock:
            environment |= {"PYTHONPATH": f"{_OFF_CLOCK}{os.pathsep}{_ROOT}", "OFF_CLOCK": str(clock)}
        dsf_variables = make_child_environment(**values)
        environment |= {name: value for name, value in dsf_variables.items() if name.startswith(ENV_PREFIX)}
        log = self._logs / f"{target}-{len(self._processes)}.log"
        command = [sys.executable, "-m", "dsf.hub"]
        # A shifted clock needs a new interpreter.
        started = Child if clock else forked.child
        self._processes.append(started(command, log, environment, inherit=False))
        return self._processes[-1]

    def clean(self) -> None:
        """Remove the objects of the processes and of the test."""
        for process in self._processes:
            process.kill()
        for resource in _LEFTOVERS:
            items = self.items(resource)
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda item, kind=resource: self._remove(kind, item["metadata"]), items))

    def _remove(self, resource: Resource, metadata: dict[str, Any]) -> None:
        path = resource.path(metadata.get("namespace", ""), metadata["name"])
        with contextlib.suppress(ObjectNotFoundError):
            if metadata.get("finalizers"):
                self.session.merge(path, {"metadata": {"finalizers": None}})
            self.session.delete(path)

    # --- actions of users ----------------------------------------------------------------------------------------

    def apply(self, *manifests: dict[str, Any]) -> str:
        """`kubectl apply`."""
        return self.plane.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        )

    def setup(self, url: str, *clusters: str) -> list[str]:
        """Return the configuration, the scorer `cpu-scorer` at this URL, and this many new clusters; their names."""
        self.apply(config(self.namespace), scorer(self.namespace, "cpu-scorer", configURL=f"{url}/config"))
        return [self.plane.cluster(prefix) for prefix in clusters]

    def mask(self, *pairs: tuple[str, str]) -> None:
        """Set the masks."""
        masks = [{"clusterName": cluster, "scoreName": score} for cluster, score in pairs]
        self.session.merge(self.config_path, {"spec": {"masks": masks}})

    # --- results -------------------------------------------------------------------------------------------------

    def pairs(self) -> list[str]:
        """Return the entries in the schedule."""
        return sorted(entry.pair for entry in self.schedule.read_entries())

    def object(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None."""
        try:
            return self.session.get(resource.path(namespace, name))
        except ObjectNotFoundError:
            return None

    def items(self, resource: Resource) -> list[dict[str, Any]]:
        """Return all objects of a kind."""

        def response() -> dict[str, Any]:
            try:
                return self.session.get(resource.path())
            except ApiServerError as error:
                # An API server that has just been started may not have read everything.
                if error.status != 429:
                    raise
                return {}

        items: list[dict[str, Any]] = wait_for(response, 10)["items"]
        return items

    def work(self, cluster: str) -> dict[str, Any] | None:
        """Return the ManifestWork of a cluster."""
        return self.object(MANIFEST_WORKS, cluster, MANIFESTWORK_NAME)

    def delivered_scorers(self, cluster: str) -> list[str] | None:
        """Return the scorers that are delivered to a cluster's agent."""
        work = self.work(cluster)
        if work is None:
            return None
        [config_map] = work["spec"]["workload"]["manifests"]
        return [summary["name"] for summary in json.loads(config_map["data"]["summaries"])]

    def deliver(self, cluster: str) -> bool:
        """Set the condition that OCM's work agent reports after applying the work. Return whether it was set
        already.
        """
        work = self.work(cluster)
        assert work is not None
        if is_applied(work):
            return True
        path = MANIFEST_WORKS.path(cluster, MANIFESTWORK_NAME, "status")
        self.session.merge(path, {"status": {"conditions": [applied(work["metadata"]["generation"])]}})
        return False

    def status(self, name: str = "cpu-scorer") -> dict[str, Any]:
        """Return the status of a scorer."""
        scorer_object = self.object(DYNAMIC_SCORERS, self.namespace, name) or {}
        status: dict[str, Any] = scorer_object.get("status") or {}
        return status

    def condition(self, kind: str, name: str = "cpu-scorer") -> tuple[str, str]:
        """Status and reason of a condition."""
        status, reason, _ = self.condition_details(kind, name)
        return status, reason

    def condition_details(self, kind: str, name: str = "cpu-scorer") -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        for condition in self.status(name).get("conditions", ()):
            if condition["type"] == kind:
                return condition["status"], condition["reason"], condition["message"]
        return "", "", ""

    def config(self) -> dict[str, Any] | None:
        """Return the DynamicScoringConfig."""
        return self.object(DYNAMIC_SCORING_CONFIGS, self.namespace, "dynamic-scoring-config")

    def score(self, cluster: str, name: str = "cpu") -> list[int] | None:
        """Return the values of a score's items; None when there is no such score."""
        score_object = self.object(ADDON_PLACEMENT_SCORES, cluster, name)
        if score_object is None:
            return None
        return [item["value"] for item in (score_object.get("status") or {}).get("scores", ())]

    def scores(self, name: str = "cpu") -> dict[str, list[int]]:
        """Return the values of all scores of this name, by cluster."""
        return {
            item["metadata"]["namespace"]: [score["value"] for score in (item.get("status") or {}).get("scores", ())]
            for item in self.items(ADDON_PLACEMENT_SCORES)
            if item["metadata"]["name"] == name
        }

    def events(self, reason: str) -> list[str]:
        """Return the notes of the events with this reason in the hub's namespace."""
        items = self.session.get(EVENTS.path(self.namespace))["items"]
        return [event["note"] for event in items if event["reason"] == reason]

    def send(self, cluster: str, value: float, name: str = "cpu-scorer") -> str:
        """Ingest a result as the cluster's agent would send it, and return the outcome."""
        settings = Settings(**{**self.settings, "role": "results"})  # type: ignore[arg-type]
        return handle(Ingest(self.client, settings), self._result(cluster, value, name))

    def push(self, cluster: str, value: float, name: str = "cpu-scorer") -> None:
        """The same on its way to the results worker."""
        push(self.client, [self._result(cluster, value, name)], cluster)

    def _result(self, cluster: str, value: float, name: str) -> bytes:
        now = time.time()
        result = messages.Result(
            cluster=cluster,
            scorer=name,
            run=messages.make_run_id(now),
            at=now,
            outcome="ok",
            results=[({"node": "a"}, value)],
        )
        record = Registry(self.client).read_clusters().get(cluster)
        key_id = record.key_ids[0] if record is not None else 1
        return messages.sign(result, messages.derive_key(bytes.fromhex(SECRET), cluster, key_id))

    def until(
        self, condition: Callable[[], Any], timeout: float = 10.0, message: str = "", *, interval: float = 0.02
    ) -> Any:
        """Wait for a condition; an error quotes the logs of the processes."""
        try:
            return wait_for(condition, timeout, message, interval=interval)
        except AssertionError as error:
            logs = "\n".join(f"--- {process.log.name}\n{process.tail()}" for process in self._processes)
            raise AssertionError(f"{error}\n{logs}") from None

    @property
    def config_path(self) -> str:
        """The path of the DynamicScoringConfig."""
        return DYNAMIC_SCORING_CONFIGS.path(self.namespace, "dynamic-scoring-config")


def addon(cluster: str) -> dict[str, Any]:
    """Return the ManagedClusterAddOn of an installed agent."""
    return {
        "apiVersion": "addon.open-cluster-management.io/v1alpha1",
        "kind": "ManagedClusterAddOn",
        "metadata": {"name": ADDON_NAME, "namespace": cluster},
        "spec": {},
    }


def has_logged(log: Path, *texts: str) -> bool:
    """True if a line of a log has all of these words."""
    return any(all(text in line for text in texts) for line in log.read_text().splitlines())
