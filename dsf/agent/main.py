"""`dsf agent`: the worker of one cluster, the objects that its tasks use, and the boot steps that attach these to it.

The worker runs in this process with a thread pool: the stages wait for HTTP, and their shared state (configuration,
scores on /metrics, running cycles) is in memory.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from celery import bootsteps
from kombu.common import ignore_errors

import dsf.log
from dsf import http
from dsf.agent import ticks
from dsf.agent.config import AgentConfig, FileConfig
from dsf.agent.cycles import CycleRunner
from dsf.agent.metrics import AgentMetrics, ScoringProbe
from dsf.agent.outbox import Outbox, SigningKeyFile
from dsf.agent.resultserver import add_results
from dsf.agent.secrets import FileSecrets, Release
from dsf.auth.secrets import SecretSource
from dsf.cycle import stages
from dsf.cycle.composite import LastResults
from dsf.errors import SettingsError
from dsf.http.probes import make_probes
from dsf.http.serving import HttpServer
from dsf.keys import is_name
from dsf.messages import CYCLE_TASK, MAX_FRAME_BYTES, STAGE_TASKS
from dsf.process import gctuning, threads
from dsf.process.hubclock import AGENT_INTERVAL, HubClock
from dsf.process.launch import EXIT_USAGE
from dsf.redislink import broker
from dsf.redislink.link import Link
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from dsf.sources.registry import find_plugins, start_background_sources
from dsf.sources.window import compute_window_budget
from dsf.store.client import connect

if TYPE_CHECKING:
    from dsf.agent.relay import HubRelay

log = dsf.log.get(__name__)

#: Maximum number of connections for results, events and the clock. A result takes as many round trips as its tick, and
#: ticks come over one connection, so that two are fast enough for all threads.
_MAX_WRITING_CONNECTIONS: Final = 2


class AgentRuntime:
    """All objects that an agent's tasks use. Construction checks the settings; `start` starts watches and servers."""

    def __init__(self, settings: Settings) -> None:
        """Create all objects. Raises SettingsError naming the variable that is missing or wrong."""
        if not is_name(settings.cluster):
            raise SettingsError(
                f"DSF_CLUSTER: {settings.cluster!r} is not the name of a managed cluster; set it to this cluster's name"
            )
        http.use(settings)
        self.config: AgentConfig
        secrets: SecretSource
        # Read the key before any watch starts: without a key, the pod logs the error and restarts.
        key_file = SigningKeyFile(settings)
        key_file.get_key()
        if settings.agent_kube:
            # The import is local because the Kubernetes client takes 40 MB of memory.
            from dsf.agent.kube import KubeConfig

            config = KubeConfig(settings)
            self.config, secrets = config, config.secrets
        else:
            self.config, secrets = _list_files(settings)
        self.metrics = AgentMetrics(settings.cluster, self.config)
        ticks.on_refused.append(self.metrics.count_refused_message)
        #: Set at shutdown. Running cycles then finish without retries.
        self.stopping = threading.Event()
        self.relay = make_relay(settings)
        self.redis = connect(settings, name=f"dsf-agent-{settings.cluster}", max_connections=_MAX_WRITING_CONNECTIONS)
        self.clock = HubClock(self.redis, interval=AGENT_INTERVAL)
        #: State of sources between cycles.
        self.memory = SourceMemory(compute_window_budget(settings.agent_window_series), self.config.get_summaries)
        self.memory.settings = settings
        self.metrics.registry.register(self.memory)
        if find_plugins():
            log.info("source plug-ins are installed", types=list(find_plugins()))
        self.config.on_change(lambda summaries: start_background_sources(summaries, self.memory))
        self.readiness = ScoringProbe(settings.probe_dir and settings.probe_dir / "ready", self.config)
        results = LastResults()
        self.cycles = CycleRunner(
            settings,
            self.config,
            stages.Stages(settings, secrets, self.memory, self.metrics, results.find),
            Outbox(
                self.redis,
                key_file,
                settings.cluster,
                MAX_FRAME_BYTES,
                namespaces=self.config.get_namespaces,
                stopping=self.stopping,
            ),
            self.metrics,
            stopping=self.stopping,
            hub_time=self.clock.now,
            results=results,
            on_success=self.readiness.record_success,
        )
        # End the cycles of removed scorers at once, so that their stages do not request Secrets that are no longer
        # watched.
        self.config.on_change(self.cycles.end_removed)
        self._settings = settings
        checks = {"/healthz": lambda: "", "/readyz": threads.describe_failing_threads}
        application = add_results(make_probes(self.metrics.registry, checks), results)
        self._server = HttpServer(application, *settings.listen_address(), name="metrics")

    def start(self) -> None:
        """Watch the configuration, serve /metrics. Raises SettingsError."""
        stages.prepare_folder(self._settings.agent_spool_dir)
        self._server.start()
        if self.relay is not None:
            self.relay.start()
        self.config.start()
        self.clock.start()
        self.readiness.set_consuming(False)
        host, port = self._server.address
        log.info("metrics served", host=host, port=port)

    def refresh(self) -> None:
        """Read a changed configuration, end cycles of removed scorers, and update readiness.

        A timer of the worker calls it regularly.
        """
        self.cycles.end_removed(self.config.get_summaries())
        self.readiness.refresh()

    def stop(self) -> None:
        """Stop all watches and servers after all cycles have ended."""
        self.readiness.set_consuming(False)
        self.memory.stop()
        self.clock.stop()
        self.redis.close()
        if self.relay is not None:
            self.relay.stop()
        self.config.stop()
        self._server.stop()


def make_relay(settings: Settings, port: int | None = None) -> HubRelay | None:
    """Return the relay through the hub's API server; None if the agent connects to Redis directly.

    Raises SettingsError.
    """
    if not settings.redis_pod:
        return None
    # The import is local because the Kubernetes client takes 40 MB of memory.
    from dsf.agent.relay import HubRelay

    address = Link(settings).address
    if address.scheme not in ("redis", "rediss"):
        raise SettingsError(
            f"DSF_REDIS_POD: leads to one server, and DSF_REDIS_URL is a {address.scheme}:// URL; agents reach "
            "Sentinels and Unix sockets directly only: leave DSF_REDIS_POD empty"
        )
    host, url_port = address.hosts[0]
    return HubRelay(settings, host, url_port if port is None else port)


def _list_files(settings: Settings) -> tuple[FileConfig, FileSecrets]:
    if settings.agent_config is None:
        raise SettingsError(
            "DSF_AGENT_CONFIG: not set; it is the file with the ConfigMap `dynamic-scoring-config` of this cluster "
            "(in a pod: DSF_AGENT_KUBE=true reads it from the cluster's API server)"
        )
    return FileConfig(settings.agent_config), FileSecrets(settings.agent_secrets_dir, Release(settings))


class _Strategies(dict[str, Any]):
    """Celery's handlers of messages by the name of the task. For all other names the handler refuses the message."""

    def __missing__(self, name: str) -> Any:
        return ticks.drop_call


class RunnerStep(bootsteps.Step):
    """Gives the tasks this process's cycles.

    Refuses a worker that `celery worker` starts: it would have neither configuration nor key.
    """

    def __init__(self, worker: Any, agent: AgentRuntime | None = None, **options: Any) -> None:
        super().__init__(worker, **options)
        if agent is None:
            sys.exit("an agent is started with `dsf agent`, which does what `celery worker` does, with its settings")
        for name in (CYCLE_TASK, *STAGE_TASKS):
            worker.app.tasks[name].runner = agent.cycles


class AgentStep(bootsteps.StartStopStep):
    """Makes the worker take ticks while this step is started."""

    requires = ("celery.worker.consumer.tasks:Tasks", "dsf.worker.events:GatheredEvents")

    def __init__(self, consumer: Any, agent: AgentRuntime, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._agent = agent
        self._timers: list[Any] = []

    def start(self, consumer: Any) -> None:
        """Start to take ticks over a new connection."""
        agent = self._agent
        # Accept only calls of cycles: a stage is called by the task of its cycle, never by a message.
        consumer.strategies = _Strategies({CYCLE_TASK: consumer.strategies[CYCLE_TASK]})
        self._timers = [consumer.timer.call_repeatedly(1.0, call) for call in (agent.refresh, consumer.pool.expire)]
        agent.readiness.set_consuming(True)
        agent.refresh()

    def stop(self, consumer: Any) -> None:
        """Stop taking ticks at shutdown or after a lost connection. Running cycles are finished."""
        agent = self._agent
        agent.readiness.set_consuming(False)
        while self._timers:
            self._timers.pop().cancel()
        if agent.stopping.is_set() and consumer.task_consumer is not None:
            # Wait for the response to the last pop, because a tick in it must run. Later ticks stay in the queue.
            ignore_errors(consumer, consumer.task_consumer.channel.close)


def run(config: Settings) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code: 0, or 2 if a setting is missing or wrong.

    After SIGTERM it finishes the cycles that have begun; each stage has its time-out.
    """
    dsf.log.setup(config)
    try:
        return _run(config)
    except SettingsError as error:
        log.error("agent cannot start", problem=str(error))
        return EXIT_USAGE


def _run(config: Settings) -> int:
    from celery import signals

    from dsf.worker.application import make_app

    app = make_app(config)
    gctuning.set_thresholds()
    agent = AgentRuntime(config)
    # Events use the connections of results and the clock.
    app.conf.broker_transport_options[broker.CLIENT] = agent.redis
    agent.start()

    signals.worker_ready.connect(lambda **_: gctuning.freeze_objects(), weak=False)
    signals.worker_shutting_down.connect(lambda **_: agent.stopping.set(), weak=False)
    log.info("agent starts", cluster=config.cluster, concurrency=config.agent_concurrency)
    try:
        worker: Any = app.Worker(
            hostname=f"spoke@{config.cluster}",
            loglevel=config.log_level,
            task_events=True,
            # With gossip or mingle, every worker would listen to every other worker, over the WAN.
            without_gossip=True,
            without_mingle=True,
            # `dsf.worker.events` sends heartbeats.
            without_heartbeat=True,
            quiet=True,
            # The option of the boot steps `RunnerStep` and `AgentStep`.
            agent=agent,
        )
        worker.start()
    finally:
        agent.stop()
    return int(worker.exitcode or 0)
