"""The agent's objects: one set per process, made from the settings before the worker starts; and its clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import redis
from prometheus_client import Metric
from prometheus_client.registry import Collector, CollectorRegistry

import dsf.log
from dsf import http
from dsf import metrics as names
from dsf.agent import running, ticks
from dsf.agent.config import AgentConfig, FileConfig, Summaries
from dsf.agent.cycles import CycleRunner
from dsf.agent.metrics import AgentMetrics, ScoringProbe
from dsf.agent.outbox import KeyRing, Outbox
from dsf.agent.secrets import FileSecrets, Release
from dsf.auth.secrets import SecretSource
from dsf.cycle.stages import Stages
from dsf.errors import SettingsError
from dsf.keys import is_name
from dsf.messages import MAX_RESULT_BYTES
from dsf.process.exposition import MetricsServer
from dsf.process.threads import SupervisedThread
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from dsf.sources.registry import begin, plugins, type_of
from dsf.sources.window import window_budget
from dsf.store.client import connect

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
        self.config: AgentConfig
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
        running.prepare(self._settings.agent_spool_dir)
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

    def __init__(self, settings: Settings, config: AgentConfig, registry: CollectorRegistry) -> None:
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


class HubClock:
    """The hub's time, as estimated by this agent. Measured in a thread; until the first measurement the agent's own.

    A tick expires by the hub's clock. An agent whose clock is ahead would drop fresh ticks, and one whose clock is
    behind would run stale ones, so the agent measures the offset to Redis' clock (`TIME`) and corrects for it. Results
    still carry the agent's own time: the hub refuses an agent whose clock is too far off, and reports it.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = client
        self._clock = clock
        self._offset = 0.0
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._run, "dsf-clock")

    @property
    def offset(self) -> float:
        """Seconds to add to the agent's clock."""
        return self._offset

    def now(self) -> float:
        """Unix seconds on the hub's clock. Never waits."""
        return self._clock() + self._offset

    def start(self) -> None:
        """Measure now and then periodically."""
        self._thread.start()

    def stop(self) -> None:
        """Stop measuring."""
        self._stop.set()
        self._thread.join(5)

    def measure(self) -> bool:
        """Ask Redis for its time; says whether the answer was of use. Raises redis.RedisError."""
        # So that the next answer is not that to connecting, which takes more round trips.
        self._redis.ping()
        # First: a process that stands still between the two has taken that long.
        began = time.monotonic()
        asked = self._clock()
        seconds, microseconds = self._redis.time()
        took = time.monotonic() - began
        # The time in a slower answer (seconds) is too imprecise.
        if took > 2.0:
            return False
        before, self._offset = self._offset, seconds + microseconds / 1e6 - (asked + took / 2)
        if abs(self._offset - before) > 1.0:
            log.warning(
                "this clock differs from the hub's", seconds=round(-self._offset, 1), hint="synchronise it (NTP)"
            )
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            # A clock drifts by milliseconds in a minute.
            self._stop.wait(60.0 if self._try() else 5.0)

    def _try(self) -> bool:
        """Measure; False if it shall be tried again soon."""
        try:
            return self.measure()
        except redis.RedisError as error:
            log.debug("the hub's clock was not read", error=str(error))
            return False
