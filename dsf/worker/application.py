"""The Celery application of each role, made from its settings: `make_app`.

All roles have one configuration. They differ in the tasks that are registered, the queues that are known, and the boot
steps of the worker. `dsf.celery` makes the application of Celery's own commands, and of programs that import it.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn
from urllib.parse import quote

from celery import Celery, signals
from celery.app.amqp import Queues
from kombu import Exchange, Queue
from kombu.utils.imports import symbol_by_name

import dsf.log
from dsf import keys
from dsf.process import tracing
from dsf.redislink import broker
from dsf.redislink.link import HEALTH_CHECK_INTERVAL, Link, get_connect_timeout
from dsf.settings import Role, Settings, settings

#: The only task modules of a results worker, so that a message in its queue can run no other task.
_INGEST_MODULES: Final = ["dsf.tasks.ingest"]
#: Role -> modules with the tasks of its worker. `hub` is a process of `dsf hub` with the service `results`.
_TASK_MODULES: Final[Mapping[Role, list[str]]] = {
    "agent": ["dsf.tasks.cycle"],
    "results": _INGEST_MODULES,
    "hub": _INGEST_MODULES,
}

#: Boot steps of workers, in addition to Celery's.
_RESULTS_STEPS: Final = ["dsf.worker.liveness:Liveness", "dsf.results.worker:ResultsStep"]
_WORKER_STEPS: Final[Mapping[Role, list[str]]] = {
    "agent": ["dsf.agent.main:RunnerStep", "dsf.worker.liveness:Liveness"],
    "results": _RESULTS_STEPS,
    "hub": _RESULTS_STEPS,
}

#: Roles of processes in which users send ticks.
_SENDERS: Final[tuple[Role, ...]] = ("cli", "flower")

#: Role -> transport, for roles with a transport of their own. An agent checks each message before Celery reads it.
_TRANSPORTS = {"agent": "dsf.agent.ticks:TickTransport"}


class Application(Celery):
    """A Celery application that checks users' calls of cycles."""

    def __init__(self, *args: Any, config: Settings, **options: Any) -> None:
        """`args` and `options` are Celery's. `config` is this process's settings."""
        super().__init__(*args, **options)
        self._settings = config

    @property
    def role(self) -> Role:
        """The role of this process."""
        return self._settings.role

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *remaining_args: Any, **options: Any) -> Any:
        """Send a task by name, as Celery does; see `dsf.worker.calls.prepare_call` for calls of a cycle."""
        if self.role in _SENDERS:
            prepare = symbol_by_name("dsf.worker.calls:prepare_call")
            args, kwargs = prepare(self._settings, name, args, kwargs, options)
        return super().send_task(name, args, kwargs, *remaining_args, **options)

    def add_periodic_task(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ScheduleError, because only DynamicScorers define the schedule."""
        symbol_by_name("dsf.worker.calls:refuse_periodic_task")()
        raise NotImplementedError


def _make_queue(name: str) -> Queue:
    # Do not declare the queue, because that takes round trips, and agents have no rights on the keys of bindings.
    return Queue(name, Exchange(name, no_declare=True), routing_key=name, no_declare=True)


class _SpokeQueues(Queues):
    """Queues of all clusters, for processes from which users send ticks."""

    def __missing__(self, name: str) -> Queue:
        cluster = keys.cluster_of_queue(name)
        if cluster is None or not keys.is_name(cluster):
            raise KeyError(name)
        queue = _make_queue(name)
        self[name] = queue
        return queue


def _make_transport_options(config: Settings, link: Link) -> dict[str, Any]:
    """Return the options of kombu's Redis transport. Options that must be equal in all processes are marked (=)."""
    options: dict[str, Any] = {
        # The transport reads the credentials at each connect, because they may be rotated.
        broker.CREDENTIALS: link.credentials,
        broker.ADDRESS: str(link.address),
        broker.TRANSPORT: _TRANSPORTS.get(config.role, "dsf.redislink.broker:Transport"),
        **dict.fromkeys(("connection_class", "connection_class_ssl"), link.connection_class),
        # (=) One list per queue, and a name without control characters.
        "sep": ":",
        "priority_steps": [0],
        "socket_timeout": config.redis_socket_timeout,
        "socket_connect_timeout": get_connect_timeout(config),
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        # Without this option, the first message after a half-open connection is lost.
        "retry_on_timeout": True,
        "polling_interval": config.redis_polling_interval,
        "client_name": f"dsf-{config.role}" + (f"-{config.cluster}" if config.cluster else ""),
    }
    if link.address.is_sentinel:
        # Flower's page of queues needs these names.
        sentinel = link.make_sentinel_options() | {"ssl": link.uses_tls}
        options |= {"master_name": config.redis_sentinel_master, "sentinel_kwargs": sentinel}
    # Deliver at most once: the next tick replaces a lost one, and an agent needs no rights on keys for acknowledgement.
    # Results do not use a queue.
    options["ack_emulation"] = False
    # The default, Base64, makes messages a third longer and only protects bytes that JSON does not have.
    options["body_encoding"] = None
    return options


def make_configuration(config: Settings) -> dict[str, Any]:
    """Return Celery's settings for the role of this process.

    Raises SettingsError when the URL of Redis or a named file cannot be used.
    """
    queues = [_make_queue(keys.spoke_queue(config.cluster) if config.role == "agent" else keys.RESULTS_QUEUE)]
    link = Link(config)
    values: dict[str, Any] = {
        "broker_url": _make_flower_url(link) if config.role == "flower" else link.url,
        "broker_transport_options": _make_transport_options(config, link),
        # Retry for ever. The default gives up after 100 attempts, about 48 minutes.
        "broker_connection_max_retries": None,
        "broker_connection_retry_on_startup": True,
        # Retry rejected commands too: a full Redis, a Redis without its replica, and a replica are temporary states.
        "broker_channel_error_retry": True,
        # Results are separate messages; a result backend would mean a shared key space and more round trips.
        "result_backend": None,
        "task_ignore_result": True,
        "accept_content": ["json"],
        "task_queues": queues,
        "task_default_queue": queues[0].name,
        # A name in a message must not create a queue.
        "task_create_missing_queues": False,
        "enable_utc": True,
        "timezone": "UTC",
        # Waiting work stays in the queue, where it can expire, not in a worker's memory.
        "worker_prefetch_multiplier": 1,
        # Flower shows tasks by these events; without SENT events a tick is a single message.
        "worker_send_task_events": True,
        "task_send_sent_event": False,
        # `dsf.worker.remotecontrol` replaces Celery's remote control.
        "worker_enable_remote_control": False,
        # Flower's event queue is a subscription and leaves nothing that must expire.
        "event_queue_expires": None,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_proc_alive_timeout": 10.0,
        # Celery's future default, set to avoid a warning at each lost connection. The setting cancels late-acknowledged
        # tasks: agents have none, a single thread runs no other, and multiple threads do not support it.
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "beat_scheduler": "dsf.beat_schedule:BeatScheduler",
        "task_publish_retry": True,
        "task_publish_retry_policy": {
            "max_retries": 5,
            "interval_start": 0.1,
            "interval_step": 0.4,
            "interval_max": 2.0,
        },
        # The router refuses a call without the queue of a cluster.
        "task_routes": ["dsf.worker.calls:route"],
    }
    if config.role == "agent":
        values |= {
            # Threads share memory, and the stages mostly wait for HTTP responses.
            "worker_pool": "dsf.agent.fairqueue:SharedThreads",
            "worker_concurrency": config.agent_concurrency,
            # More than the maximum of waiting ticks (`dsf.agent.fairqueue`), so that ticks that may not begin yet do
            # not block later ticks of other scorers.
            "worker_prefetch_multiplier": 100,
            "worker_consumer": "dsf.worker.liveness:PatientConsumer",
            "task_annotations": {"dsf.cycle": {"rate_limit": config.agent_rate_limit}},
        }
    if config.role in ("results", "hub"):
        values |= {
            # The worker itself runs no tasks: results do not use its queue, and a separate thread ingests them.
            "worker_pool": "solo",
            "worker_consumer": "dsf.worker.liveness:PatientConsumer",
        }
    if link.uses_tls:
        values["broker_use_ssl"] = link.tls_options | {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    return values


def _make_flower_url(link: Link) -> str:
    # Flower's queue page opens its own connection by URL, and shows the URL without the password.
    username, password = link.credentials.read()
    user = f"{quote(username, safe='')}:{quote(password, safe='')}@" if username or password else ""
    return link.url.replace("://", f"://{user}", 1)


def make_app(config: Settings, *, is_imported: bool = False) -> Application:
    """Return a Celery application for one role.

    `is_imported` is for another program, which may have a Celery application and logging of its own: both stay in use.
    """
    modules = _TASK_MODULES.get(config.role, [])
    application = Application(
        "dsf",
        config=config,
        include=modules,
        control=f"dsf.worker.remotecontrol:{'FlowerControl' if config.role == 'flower' else 'RemoteControl'}",
        amqp=broker.Amqp,
        events="dsf.worker.events:Events",
        set_as_current=not is_imported,
        # Disable Celery's fixup for Django, which would load the project that DJANGO_SETTINGS_MODULE names.
        fixups=[],
    )
    application.conf.update(make_configuration(config))
    application.steps["worker"].update(_WORKER_STEPS.get(config.role, []))
    if config.role in _TASK_MODULES:
        application.steps["consumer"].add("dsf.worker.events:GatheredEvents")
    if config.role == "agent":
        application.steps["consumer"].add("dsf.agent.main:AgentStep")
    if config.remote_control and config.role in _TASK_MODULES:
        application.steps["consumer"].add("dsf.worker.remotecontrol:Listener")
    if config.role in _SENDERS:
        # Callers use a cluster's queue by name; in other processes this is an error.
        application.amqp.queues_cls = _SpokeQueues
        application.backend_cls = "dsf.worker.calls:NoResults"
    if config.role == "cli":
        symbol_by_name("dsf.worker.calls:register_cycle")(application)
    if not is_imported:
        signals.setup_logging.connect(_setup_logging)
    return application


def _setup_logging(**_: Any) -> None:
    dsf.log.setup(settings())


# Celery calls the receivers below for workers of other projects too, if their program imports `dsf.celery`.
@signals.celeryd_init.connect
def _refuse_workers(instance: Any, options: Mapping[str, Any] | None = None, **_: Any) -> None:
    app = instance.app
    if not isinstance(app, Application):
        return
    if app.role not in _TASK_MODULES:
        sys.exit(
            f"DSF_ROLE={app.role} is no worker: `dsf agent` takes a cluster's queue, "
            "`dsf hub --target results` hub.results"
        )
    own_queue = app.conf.task_default_queue
    names = (options or {}).get("queues") or ()
    other_queues = set(names.split(",") if isinstance(names, str) else names) - {own_queue}
    if other_queues:
        sys.exit(
            f"this worker takes {own_queue} only, not {', '.join(sorted(other_queues))}: start it with "
            f"`-Q {own_queue}`; a cluster's queue is for its agent, which `dsf agent` starts"
        )


@signals.worker_init.connect
@signals.beat_init.connect
def _start_tracing(sender: Any, **_: Any) -> None:
    if isinstance(sender.app, Application):
        tracing.start(sender.app.role)


@signals.worker_init.connect
def _remove_celerys_tasks(sender: Any, **_: Any) -> None:
    # Celery's helpers (chunks, map, chord unlock, ...) call any registered task with any arguments.
    if isinstance(sender.app, Application):
        tasks = sender.app.tasks
        for name in [name for name in tasks if name.startswith("celery.")]:
            tasks.pop(name)
