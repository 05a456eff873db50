"""Settings, Redis client and data source of a command: from the environment, else from a running demo."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import redis
import typer

import dsf.log
from dsf import keys
from dsf.cli import context
from dsf.cli.output import flatten
from dsf.errors import SettingsError, UnknownClusterError
from dsf.process import hubclock
from dsf.redislink import address
from dsf.settings import Settings
from dsf.store.client import CLI_CONNECTION_RETRIES, connect

if TYPE_CHECKING:
    from dsf.cli.kubehub import KubeHub
    from dsf.fleet.client import Client
    from dsf.fleet.queries import FleetQueries

SettingsT = TypeVar("SettingsT", bound=Settings)

#: Maximum difference in seconds between this machine's clock and the hub's without a warning. The duration of the
#: measurement may cause a small difference.
_MAX_SILENT_OFFSET_SECONDS: Final = 5.0


@dataclass(frozen=True)
class CommandSession:
    """The settings and the Redis client of a command."""

    settings: Settings
    redis: redis.Redis


def load_command_settings() -> Settings:
    """Return the settings from the environment. Without a Redis URL, add the Redis and the folders of a running demo.

    Also configures logging: only errors, to standard error, because standard output is for data.

    Raises SettingsError, which names an invalid variable, and also if an option selects an API server.
    """
    if context.get_kube_choice() != context.KubeChoice():
        raise SettingsError(
            "this command needs the hub's Redis, and cannot use a kubeconfig: set DSF_REDIS_URL, or run it in a pod of "
            "the hub: kubectl -n open-cluster-management exec deploy/dynamic-scoring-hub -- dsf ..."
        )
    settings = limit_log_level(Settings.load())
    dsf.log.prepare(settings)
    demo = find_running_demo(settings)
    if demo is not None and not is_redis_configured():
        _print_demo_name(str(demo))
    return _apply_demo(settings, demo)


@functools.cache
def _print_demo_name(demo: str) -> None:
    """Print to stderr, once, which demo the command uses, because several may run."""
    typer.echo(f"dsf: using the demo {flatten(demo)}", err=True)


def limit_log_level(settings: SettingsT) -> SettingsT:
    """Return the settings with log level ERROR, unless the environment sets a level."""
    return settings if "log_level" in settings.model_fields_set else settings.model_copy(update={"log_level": "ERROR"})


def add_kubeconfig(settings: SettingsT) -> SettingsT:
    """Add kubectl's kubeconfig to settings without one, unless the process runs in a pod."""
    if settings.kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in os.environ:
        return settings
    kubeconfig = context.find_default_kubeconfig()
    return settings.model_copy(update={"kubeconfig": kubeconfig}) if kubeconfig is not None else settings


def _apply_demo(settings: Settings, demo: context.RunningDemo | None) -> Settings:
    """Add the Redis and the folders of the demo to the settings that do not have them."""
    if demo is None:
        return settings
    if not is_redis_configured():
        settings = settings.with_redis(demo.redis_url)
    values: dict[str, object] = {}
    for name in ("manifests", "out_dir"):
        folder = getattr(demo, name)
        if folder and getattr(settings, name) is None:
            values[name] = Path(folder)
    return settings.model_copy(update=values)


def load_agent_settings(cluster: str) -> Settings:
    """Return the settings of the agent of `cluster`: from the environment, else from a hub with a folder of manifests.

    Raises SettingsError, which names an invalid variable, and UnknownClusterError if that hub has no such cluster.
    """
    from dsf.agent.secrets import find_token_folder

    settings = load_command_settings()
    out_dir = settings.out
    if settings.agent_config is not None or settings.agent_kube or out_dir is None:
        return settings
    folder = out_dir / "clusters" / cluster
    if not keys.is_name(cluster) or not folder.is_dir():
        cluster_names = ", ".join(sorted(path.name for path in out_dir.glob("clusters/*"))) or "none"
        raise UnknownClusterError(f"no cluster {cluster!r} is accepted; {out_dir / 'clusters'} has: {cluster_names}")
    demo = find_running_demo(settings)
    return settings.model_copy(
        update={
            "agent_config": folder / "dynamic-scoring-config.yaml",
            "agent_secrets_dir": settings.agent_secrets_dir or find_token_folder(out_dir, cluster),
            "agent_host_aliases": settings.agent_host_aliases or (demo.host_aliases.get(cluster, {}) if demo else {}),
        }
    )


@contextmanager
def open_session() -> Iterator[CommandSession]:
    """Yield a session, and use the hub's time. Closes the Redis client at the end. Raises redis.RedisError."""
    with _connect_session() as command_session, _use_hub_time(command_session.redis):
        yield command_session


@contextmanager
def _connect_session() -> Iterator[CommandSession]:
    """Yield a session with this machine's time, even if Redis is unreachable. Closes the Redis client at the end."""
    settings = load_command_settings()
    client = connect(settings, name="dsf-cli", retries=CLI_CONNECTION_RETRIES)
    try:
        yield CommandSession(settings, client)
    finally:
        client.close()


@contextmanager
def _use_hub_time(server: hubclock.Server) -> Iterator[None]:
    """Use the hub's time in this command, and warn if this machine's clock differs. Raises redis.RedisError."""
    clock = hubclock.HubClock(server)
    if not clock.measure():
        # Measure again: the first measurement may include the time to connect, and is then discarded.
        clock.measure()
    hubclock.use(clock)
    try:
        print_clock_offset(clock.offset())
        yield
    finally:
        hubclock.use(None)


def print_clock_offset(offset: float) -> None:
    """Print a warning to stderr if this machine's clock differs from the hub's by more than 5 seconds.

    `offset` is the difference in seconds.
    """
    if abs(offset) > _MAX_SILENT_OFFSET_SECONDS:
        typer.echo(
            f"dsf: the clock of this machine is {hubclock.describe_offset(offset)} the hub's, whose time counts here; "
            "synchronise it (NTP)",
            err=True,
        )


class _MeasuredTime:
    """Measures the hub's time on demand, for a command that continues while Redis is unreachable."""

    def __init__(self, server: hubclock.Server) -> None:
        self._clock = hubclock.HubClock(server, on_measured=self._print_once)
        self._is_printed = False

    def __call__(self) -> float:
        """Return unix seconds by the hub's clock. Raises redis.RedisError."""
        self._clock.keep_measured()
        return self._clock.now()

    def _print_once(self, clock: hubclock.HubClock) -> None:
        if not self._is_printed:
            self._is_printed = True
            print_clock_offset(clock.offset())


@contextmanager
def open_data_source(*, needs_time: bool = False, is_watching: bool = False) -> Iterator[Client | FleetQueries]:
    """Yield the data source of a read-only command: a JSON API (`open_api_client`), else Redis.

    `needs_time` states that the command computes with the hub's time before it reads. Other commands use the time in
    the responses of the API. `is_watching` states that the command reads periodically. Then each read, and not this
    function, raises redis.RedisError while Redis is unreachable.
    """
    with open_api_client() as client:
        if client is not None:
            if needs_time:
                with _use_hub_time(client):
                    yield client
            else:
                yield client
                print_clock_offset(client.offset)
            return
    from dsf.fleet.queries import FleetQueries

    if is_watching:
        with _connect_session() as command_session:
            yield FleetQueries(command_session.redis, _MeasuredTime(command_session.redis))
        return
    with open_session() as command_session:
        yield FleetQueries(command_session.redis)


@contextmanager
def open_api_client() -> Iterator[Client | None]:
    """Yield a client of the JSON API at DSF_API_URL or of the hub in kubectl's context; None if Redis is used.

    Raises SettingsError that names an invalid variable, or if the token cannot be read.
    """
    settings = limit_log_level(Settings.load())
    url = settings.api_url.strip()
    if url and context.get_selected_demo() is None and context.get_kube_choice() == context.KubeChoice():
        from dsf.fleet.client import Client

        dsf.log.prepare(settings)
        yield Client(url, token=settings.resolved_api_token())
        return
    with open_kube_hub(is_read_only=True) as hub:
        yield None if hub is None else hub.make_client()


@contextmanager
def open_kube_hub(*, is_read_only: bool = False) -> Iterator[KubeHub | None]:
    """Yield the hub in kubectl's context. None if Redis is used.

    A command uses Redis if DSF_REDIS_URL is set or a demo runs, unless an option selects a kubeconfig. Raises
    SettingsError for options that exclude each other. Also raises it for acts if only DSF_API_URL is set, which is for
    reads.
    """
    settings = limit_log_level(Settings.load())
    choice = context.get_kube_choice()
    if choice == context.KubeChoice():
        uses_redis = context.get_selected_demo() is not None or "DSF_REDIS_URL" in os.environ
        if uses_redis or find_running_demo(settings) is not None:
            yield None
            return
        if context.find_default_kubeconfig() is None:
            if settings.api_url.strip() and not is_read_only:
                raise SettingsError(
                    "DSF_API_URL is for reading only. To act, set KUBECONFIG or give --kubeconfig, with a user who may "
                    "patch dynamicscorers on the hub; or set DSF_REDIS_URL"
                )
            yield None
            return
    elif context.get_selected_demo() is not None:
        raise SettingsError("--demo chooses a demo, and --kubeconfig, --context and --namespace a hub: leave out one")
    from dsf.cli.kubehub import KubeHub

    dsf.log.prepare(settings)
    hub = KubeHub(choice, settings.namespace)
    try:
        yield hub
    finally:
        hub.close()


def describe_redis_error(error: Exception) -> str:
    """Return the error text of a command that cannot use Redis, without user name and password."""
    settings = Settings.load()
    demo = find_running_demo(settings)
    settings = _apply_demo(settings, demo)
    reason = " ".join(str(error).split()).rstrip(".")
    try:
        redis_address = str(address.parse(settings.resolved_redis_url()))
    except SettingsError:
        redis_address = "an invalid URL"
    if is_redis_configured():
        advice = "check DSF_REDIS_URL"
    elif demo is not None:
        advice = "it belongs to a running demo; set DSF_REDIS_URL for another one"
    else:
        advice = (
            "no demo runs here, there is no kubeconfig, and DSF_REDIS_URL is not set; set one, or start a demo with "
            "`dsf demo`"
        )
    return f"cannot use Redis at {redis_address} ({reason}): {advice}"


def find_running_demo(settings: Settings) -> context.RunningDemo | None:
    """Return the demo whose Redis a command uses; None if no demo runs or the environment names another Redis.

    Raises ContextError if several demos run and none is selected.
    """
    if not is_redis_configured():
        return context.choose_demo(context.get_selected_demo())
    url = settings.resolved_redis_url()
    # Compare the URLs, which are unique because they contain the password of the demo's Redis.
    return next((demo for demo in context.list_running() if demo.redis_url == url), None)


def is_redis_configured() -> bool:
    """True if the environment sets the Redis of a command, and no option selects a demo."""
    return context.get_selected_demo() is None and "DSF_REDIS_URL" in os.environ
