"""A hub on a folder, with readers of its files and its Redis, but not of its internals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import yaml

from dsf.backends import make_backend
from dsf.hub.hub import Hub
from dsf.settings import Settings, make_child_environment
from dsf.store.entries import Entry
from dsf.store.pairs import PairFailure
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from tests.integration.exporter.fleet import set_row
from tests.support.child import Child
from tests.support.forked import Forked
from tests.support.httpserver import ScriptedServer, answer
from tests.support.wait import wait_for

CONFIG: dict[str, Any] = {
    "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
    "kind": "DynamicScoringConfig",
    "metadata": {"name": "dynamic-scoring-config"},
    "spec": {"masks": []},
}


def remote_config(name: str = "cpu", interval: int = 30, **source: Any) -> dict[str, Any]:
    """Return the config of a scoring API, as served at /config."""
    params = {"query": "up", "range": 600, "step": 60}
    return {
        "name": name,
        "source": {"type": "prometheus", "host": "http://prometheus.test:9090", "params": params, **source},
        "scoring": {"params": {"name": name, "interval": interval}},
    }


def scoring_api(name: str = "cpu", interval: int = 30) -> ScriptedServer:
    """Return a healthy scoring API."""
    server = ScriptedServer(answer("no such path", 404))
    server.script(answer("ok"), path="/healthz")
    server.script(answer(remote_config(name, interval)), path="/config")
    return server


class HubHarness:
    """A hub with short times; everything else is as in production."""

    def __init__(self, folder: Path, client: redis.Redis, settings: Settings) -> None:
        self.folder = folder
        self.out = folder / "_out"
        self.client = client
        self.settings = settings
        self.schedule = ScheduleStore(client)
        self.registry = Registry(client)
        self.resync = 1.0
        self._hub: Hub | None = None
        #: Why Redis cannot be this hub's any more.
        self.unusable: list[Exception] = []

    # --- the hub -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        settings = self.settings.model_copy(update={"hub_resync": self.resync})
        hub = Hub(settings, make_backend(settings), on_unusable=self.unusable.append)
        self._hub = hub
        hub.start()

    def stop(self) -> None:
        if self._hub is not None:
            self._hub.stop()
            self._hub = None

    def restart(self) -> None:
        self.stop()
        self.start()

    # --- manifests -----------------------------------------------------------------------------------------------

    def write(self, file: str, *manifests: dict[str, Any] | str) -> Path:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [item if isinstance(item, str) else yaml.safe_dump(item, sort_keys=False) for item in manifests]
        # Replaced at once, because an empty file would be a removed object.
        draft = path.with_name(f".{path.name}.new")
        draft.write_text("---\n".join(texts), encoding="utf-8")
        draft.replace(path)
        return path

    def remove(self, file: str) -> None:
        (self.folder / file).unlink()

    def config(self, *masks: tuple[str, str]) -> None:
        spec = {"masks": [{"clusterName": cluster, "scoreName": score} for cluster, score in masks]}
        self.write("config.yaml", {**CONFIG, "spec": spec})

    def cluster(self, name: str, *, accepted: bool = True, labels: dict[str, str] | None = None) -> None:
        self.write(
            f"clusters/{name}.yaml",
            {
                "apiVersion": "cluster.open-cluster-management.io/v1",
                "kind": "ManagedCluster",
                "metadata": {"name": name, **({"labels": labels} if labels else {})},
                "spec": {"hubAcceptsClient": accepted},
            },
        )

    def scorer(
        self,
        name: str,
        api: ScriptedServer | str,
        *,
        mode: str = "Full",
        file: str = "",
        metadata: Any = None,
        **spec: Any,
    ) -> Path:
        url = api if isinstance(api, str) else api.url
        manifest = {
            "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
            "kind": "DynamicScorer",
            "metadata": {"name": name, **(metadata or {})},
            "spec": {"description": "test", "configURL": f"{url}/config", "configSyncMode": mode, **spec},
        }
        return self.write(file or f"scorers/{name}.yaml", manifest)

    # --- results -------------------------------------------------------------------------------------------------

    def read(self, file: str) -> Any:
        try:
            return yaml.load((self.out / file).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        except FileNotFoundError:
            return None

    def status(self, scorer: str) -> dict[str, Any]:
        scorer_object = self.read(f"dynamicscorers/{scorer}.yaml") or {}
        status: dict[str, Any] = scorer_object.get("status") or {}
        return status

    def condition(self, scorer: str, kind: str) -> tuple[str, str, str]:
        return _condition(self.status(scorer), kind)

    def config_condition(self, file: str, kind: str) -> tuple[str, str, str]:
        return _condition((self.read(f"dynamicscoringconfigs/{file}.yaml") or {}).get("status") or {}, kind)

    def summaries(self, cluster: str) -> list[dict[str, Any]] | None:
        config_map = self.read(f"clusters/{cluster}/dynamic-scoring-config.yaml")
        return None if config_map is None else json.loads(config_map["data"]["summaries"])

    def delivered_scorers(self, cluster: str) -> list[str] | None:
        """Return the names of the scorers that are delivered to a cluster's agent."""
        summaries = self.summaries(cluster)
        return None if summaries is None else [summary["name"] for summary in summaries]

    def entries(self) -> dict[str, Entry]:
        return {entry.pair: entry for entry in self.schedule.read_entries()}

    def pairs(self) -> list[str]:
        return sorted(self.entries())

    def record(self, scorer: str) -> ScorerRecord | None:
        return self.registry.read_scorers().get(scorer)

    def cluster_record(self, cluster: str) -> ClusterRecord | None:
        return self.registry.read_clusters().get(cluster)

    def problems(self) -> list[str]:
        rows = self.read("problems.yaml") or []
        return [
            f"{row['file']}:{row['line']}: " + (f"{row['field']}: " if row["field"] else "") + row["message"]
            for row in rows
        ]

    def events(self) -> list[tuple[str, str, str]]:
        """(name of the object, reason, type)"""
        return [
            (event["regarding"]["name"], event["reason"], event["type"]) for event in self.read("events.yaml") or []
        ]

    def fail(self, cluster: str, scorer: str, reason: str, message: str, at: float) -> None:
        """Write the state that the results worker writes after a failed cycle."""
        failure = PairFailure(run="1700000000000-00000000", stage="fetch", reason=reason, message=message, at=at)
        set_row(self.client, cluster, scorer, {"failing": 1, "failure": failure.model_dump_json()})
        self.tell(scorer)

    def succeed(self, cluster: str, scorer: str, at: float) -> None:
        """Write the state that the results worker writes after a successful cycle."""
        self.client.hdel("dsf:rows", f"{cluster}/{scorer}")
        set_row(self.client, cluster, scorer, {"failing": 0, "last_success": at, "valid_until": at + 3600, "items": 1})
        self.tell(scorer)

    def tell(self, scorer: str) -> None:
        self.client.sadd("dsf:hub:changed", scorer)
        self.client.lpush("dsf:hub:wake", "1")

    def until(self, condition: Callable[[], Any], message: str = "", timeout: float = 10.0) -> Any:
        return wait_for(condition, timeout, message)


def hub_process(world: HubHarness, log: Path, probe_port: int = 0) -> Child:
    """Return a hub controller with the settings of a world."""
    url = world.settings.redis_url.get_secret_value()
    environment = make_child_environment(
        role="hub",
        target="controller",
        probe_port=probe_port,
        backend="dir",
        manifests=world.folder,
        redis_url=url,
        health_interval="0.2",
        departure_grace="0",
    )
    return Forked("dsf.hub", log, environment)


def _condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    for condition in status.get("conditions") or []:
        if condition["type"] == kind:
            return condition["status"], condition["reason"], condition.get("message", "")
    return "", "", ""
