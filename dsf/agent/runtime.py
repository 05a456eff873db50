"""The agent's objects: one set per process, made from the settings before the worker starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector, CollectorRegistry

import dsf.log
from dsf import http
from dsf import metrics as names
from dsf.agent import payload, ticks
from dsf.agent.clock import HubClock
from dsf.agent.config import FileConfig, Summaries, Watching
from dsf.agent.cycles import CycleRunner
from dsf.agent.metrics import AgentMetrics
from dsf.agent.outbox import Outbox
from dsf.agent.probes import ScoringProbe
from dsf.agent.secrets import FileSecrets, KeyRing, Release
from dsf.auth.secrets import SecretSource
from dsf.cycle.stages import Stages
from dsf.errors import SettingsError
from dsf.keys import is_name
from dsf.messages import MAX_RESULT_BYTES
from dsf.process.exposition import MetricsServer
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from dsf.sources.registry import begin, plugins, type_of
from dsf.sources.window import window_budget
from dsf.store.client import connect
from dsf.worker.taskevents import GatheredEvents

log = dsf.log.get(__name__)


class Runtime:
    """Everything that an agent's tasks use. Construction checks the settings; `start` starts watches and servers."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError naming the variable that is missing or wrong."""
        if not is_name(settings.cluster):
            raise SettingsError(
                f"DSF_CLUSTER: {settings.cluster!r} is not the name of a managed cluster; set it to this cluster's name"
            )
        http.use(settings)
        self.config: Watching
        secrets: SecretSource
        # Before any watch: without a key the pod logs that and restarts.
        keyring = KeyRing(settings)
        keyring.key()
        if settings.agent_kube:
            # Only here: importing the Kubernetes client costs 40 MB.
            from dsf.agent.kube import KubeObjects

            objects = KubeObjects(settings)
            self.config, secrets = objects.config, objects.secrets
        else:
            self.config, secrets = _files(settings)
        self.metrics = AgentMetrics(settings.cluster, self.config)
        ticks.on_refused.append(self.metrics.refused_message)
        #: Set at shutdown: cycles that have begun are finished, and nothing is tried again.
        self.ending = threading.Event()
        self.redis = connect(settings, name=f"dsf-agent-{settings.cluster}")
        self.clock = HubClock(self.redis)
        #: What sources keep between cycles.
        self.sources = SourceState(settings, self.config, self.metrics.registry)
        self.readiness = ScoringProbe(settings.probe_dir and settings.probe_dir / "ready", self.config)
        self.events = GatheredEvents()
        self.cycles = CycleRunner(
            settings,
            self.config,
            Stages(settings, secrets, self.sources.memory, self.metrics),
            Outbox(self.redis, keyring, settings.cluster, MAX_RESULT_BYTES, self.ending),
            self.metrics,
            ending=self.ending,
            hub_time=self.clock.now,
            on_success=self.readiness.succeeded,
        )
        self._settings = settings
        self._exposition: MetricsServer | None = None

    def start(self) -> None:
        """Watch the configuration, serve /metrics. Raises SettingsError."""
        payload.prepare(self._settings.agent_spool_dir)
        host, port = self._settings.listen_address("agent")
        try:
            self._exposition = MetricsServer(self.metrics.registry, host, port)
        except OSError as error:
            raise SettingsError(
                f"DSF_LISTEN_PORT: cannot listen on {host}:{port}: {error.strerror}; 0 takes a free port"
            ) from None
        self._exposition.start()
        self.config.start()
        self.clock.start()
        self.readiness.start()
        log.info("metrics served", host=host, port=self._exposition.port)

    def look(self) -> None:
        """End cycles of removed scorers. Called regularly."""
        self.cycles.end_others(self.config.summaries())

    def stop(self) -> None:
        """Stop serving; all cycles have ended."""
        self.readiness.stop()
        self.events.stop()
        self.sources.stop()
        self.clock.stop()
        self.redis.close()
        self.config.stop()
        if self._exposition is not None:
            self._exposition.stop()


def _files(settings: Settings) -> tuple[FileConfig, FileSecrets]:
    if settings.agent_config is None:
        raise SettingsError(
            "DSF_AGENT_CONFIG: not set; it is the file with the ConfigMap `dynamic-scoring-config` of this cluster "
            "(in a pod: DSF_AGENT_KUBE=true reads it from the cluster's API server)"
        )
    return FileConfig(settings.agent_config), FileSecrets(settings.agent_secrets_dir, Release(settings))


_current: Runtime | None = None


def install(runtime: Runtime) -> None:
    """Make this the runtime of the tasks."""
    global _current  # noqa: PLW0603
    _current = runtime


def is_installed() -> bool:
    """Whether this process is an agent."""
    return _current is not None


def current() -> Runtime:
    """The process's runtime. Raises RuntimeError outside of an agent."""
    if _current is None:
        raise RuntimeError("no agent runs in this process; start it with `dsf agent`")
    return _current


class SourceState:
    """Created by the runtime before the configuration watch, used by cycles."""

    def __init__(self, settings: Settings, config: Watching, registry: CollectorRegistry) -> None:
        self.memory = SourceMemory(window_budget(settings.agent_window_series), config.summaries)
        self.memory.settings = settings
        registry.register(_Collector(self.memory))
        if plugins():
            log.info("source plug-ins are installed", types=list(plugins()))
        config.on_change(self._begin)

    def stop(self) -> None:
        """Stop receiving."""
        self.memory.stop()

    def _begin(self, summaries: Summaries) -> None:
        """Start the sources' background work, before their scorers' first cycle, so that it has data."""
        if self.memory.running:
            # It ends what the scorers that are gone have needed.
            self.memory.tidy()
        for name in sorted({type_of(source) for summary in summaries.values() for source in summary.each_source}):
            try:
                begin(name, self.memory)
            except Exception as error:  # noqa: BLE001 (third-party code; the scorers' cycles retry and report it)
                log.error("a source cannot begin", type=name, problem=str(error))


class _Collector(Collector):
    """Amount of kept data, and metrics of the sources."""

    def __init__(self, memory: SourceMemory) -> None:
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        self._memory.tidy()
        series, samples = names.WINDOW_SERIES.gauge(), names.WINDOW_SAMPLES.gauge()
        series.add_metric((), self._memory.budget.series)
        samples.add_metric((), self._memory.budget.samples)
        yield series
        yield samples
        for activity in self._memory.running:
            yield from activity.families()
