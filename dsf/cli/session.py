"""Settings and Redis client of a command: from the environment, else from a running demo."""

from __future__ import annotations

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
from dsf.cli.output import flat
from dsf.errors import SettingsError, UnknownClusterError
from dsf.process import hubclock
from dsf.redislink import address
from dsf.settings import Settings
from dsf.store.client import connect

if TYPE_CHECKING:
    from dsf.cli.kubehub import KubeHub
    from dsf.fleet.client import Client
    from dsf.fleet.queries import FleetQueries

SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True)
class CommandSession:
    """Settings and Redis client of a command."""

    settings: Settings
    redis: redis.Redis


def command_settings() -> Settings:
    """Settings from the environment; without a Redis URL, Redis and folders of a running demo.

    From here on, only warnings and errors are logged, to standard error: standard output is for data.

    Raises SettingsError naming the wrong variable, and if an option chose an API server.
    """
    if context.kube_choice() != context.KubeChoice():
        raise SettingsError(
            "this command needs the hub's Redis, and cannot use a kubeconfig: set DSF_REDIS_URL, or run it in a pod of "
            "the hub: kubectl -n open-cluster-management exec deploy/dynamic-scoring-hub -- dsf ..."
        )
    settings = for_a_person(Settings.load())
    dsf.log.prepare(settings)
    running = running_demo(settings)
    if running is not None and not by_environment():
        # On standard error: with several demos, users must know which one was used.
        typer.echo(f"dsf: using the demo {flat(str(running))}", err=True)
    return _of_demo(settings, running)


def for_a_person(settings: SettingsT) -> SettingsT:
    """Log only warnings and errors, unless the environment sets a level."""
    return settings if "log_level" in settings.model_fields_set else settings.model_copy(update={"log_level": "ERROR"})


def hub_settings(settings: SettingsT) -> SettingsT:
    """Settings with kubectl's kubeconfig if none is set outside of a pod."""
    if settings.kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in os.environ:
        return settings
    kubeconfig = context.default_kubeconfig()
    return settings.model_copy(update={"kubeconfig": kubeconfig}) if kubeconfig is not None else settings


def _of_demo(settings: Settings, running: context.CliContext | None) -> Settings:
    if running is None:
        return settings
    if not by_environment():
        settings = settings.with_redis(running.redis_url)
    values: dict[str, object] = {}
    for name in ("manifests", "out_dir"):
        folder = getattr(running, name)
        if folder and getattr(settings, name) is None:
            values[name] = Path(folder)
    return settings.model_copy(update=values)


def agent_settings(cluster: str) -> Settings:
    """Settings of the agent of `cluster`: from the environment, else from a hub on a folder.

    Raises SettingsError naming the wrong variable, and UnknownClusterError when that hub has no such cluster.
    """
    from dsf.agent.secrets import token_folder

    settings = command_settings()
    out = settings.out
    if settings.agent_config is not None or settings.agent_kube or out is None:
        return settings
    folder = out / "clusters" / cluster
    if not keys.is_name(cluster) or not folder.is_dir():
        cluster_names = ", ".join(sorted(path.name for path in out.glob("clusters/*"))) or "none"
        raise UnknownClusterError(f"no cluster {cluster!r} is accepted; {out / 'clusters'} has: {cluster_names}")
    running = running_demo(settings)
    return settings.model_copy(
        update={
            "agent_config": folder / "dynamic-scoring-config.yaml",
            "agent_secrets_dir": settings.agent_secrets_dir or token_folder(out, cluster),
            "agent_host_aliases": settings.agent_host_aliases
            or (running.host_aliases.get(cluster, {}) if running else {}),
        }
    )


@contextmanager
def session() -> Iterator[CommandSession]:
    """Settings, a Redis client that is closed at the end, and the hub's time. Raises redis.RedisError."""
    with _connected() as opened, _hub_time(opened.redis):
        yield opened


@contextmanager
def _connected() -> Iterator[CommandSession]:
    """A session without the hub's time; Redis may be away."""
    settings = command_settings()
    # About three seconds: Redis may be restarting. A user waits, so not longer.
    client = connect(settings, name="dsf-cli", retries=8)
    try:
        yield CommandSession(settings, client)
    finally:
        client.close()


#: Seconds by which this machine's clock may differ from the hub's before a command says so: less may be the time that
#: a response took.
_NOTICEABLE: Final = 5.0


@contextmanager
def _hub_time(server: hubclock.Server) -> Iterator[None]:
    """Use the hub's time in this command, and say so if this machine's differs. Raises redis.RedisError."""
    clock = hubclock.HubClock(server)
    if not clock.measure():
        # Once more: connecting may have taken the time.
        clock.measure()
    hubclock.use(clock)
    try:
        print_clock_offset(clock.offset())
        yield
    finally:
        hubclock.use(None)


def print_clock_offset(offset: float) -> None:
    """Say on standard error that this machine's clock differs noticeably from the hub's."""
    if abs(offset) > _NOTICEABLE:
        typer.echo(
            f"dsf: the clock of this machine is {hubclock.described(offset)} the hub's, whose time counts here; "
            "synchronise it (NTP)",
            err=True,
        )


class _MeasuredTime:
    """The hub's time for a command that goes on while Redis is away: measured when it is asked for."""

    def __init__(self, server: hubclock.Server) -> None:
        self._clock = hubclock.HubClock(server, on_measured=self._print_once)
        self._is_said = False

    def __call__(self) -> float:
        """Return unix seconds by the hub's clock. Raises redis.RedisError."""
        self._clock.keep_measured()
        return self._clock.now()

    def _print_once(self, clock: hubclock.HubClock) -> None:
        if not self._is_said:
            self._is_said = True
            print_clock_offset(clock.offset())


@contextmanager
def looking(*, needs_time: bool = False, is_watching: bool = False) -> Iterator[Client | FleetQueries]:
    """Return the data source of a read-only command: a JSON API (`reading_api`), else Redis.

    `needs_time`: the command computes with the hub's time before it reads. The responses of the API have their own
    time. `is_watching`: the command reads again and again; each read raises redis.RedisError while Redis is away.
    """
    with reading_api() as client:
        if client is not None:
            if needs_time:
                with _hub_time(client):
                    yield client
            else:
                yield client
                print_clock_offset(client.offset)
            return
    from dsf.fleet.queries import FleetQueries

    if is_watching:
        with _connected() as opened:
            yield FleetQueries(opened.redis, _MeasuredTime(opened.redis))
        return
    with session() as opened:
        yield FleetQueries(opened.redis)


@contextmanager
def reading_api() -> Iterator[Client | None]:
    """Yield the client for reads: for DSF_API_URL, or for the hub in kubectl's context; None if Redis is used.

    Raises SettingsError naming the wrong variable, and when the token cannot be read.
    """
    settings = for_a_person(Settings.load())
    url = settings.api_url.strip()
    if url and context.wanted() is None and context.kube_choice() == context.KubeChoice():
        from dsf.fleet.client import Client

        dsf.log.prepare(settings)
        yield Client(url, token=settings.resolved_api_token())
        return
    with acting_hub(reads=True) as hub:
        yield None if hub is None else hub.client()


@contextmanager
def acting_hub(*, reads: bool = False) -> Iterator[KubeHub | None]:
    """Yield the hub in kubectl's context for acts; None if Redis is used.

    That is the case if DSF_REDIS_URL or a running demo names it, and no option chooses a kubeconfig. Raises
    SettingsError, also if there is only DSF_API_URL, which is for reads.
    """
    settings = for_a_person(Settings.load())
    choice = context.kube_choice()
    if choice == context.KubeChoice():
        is_elsewhere = context.wanted() is not None or "DSF_REDIS_URL" in os.environ
        if is_elsewhere or running_demo(settings) is not None:
            yield None
            return
        if context.default_kubeconfig() is None:
            if settings.api_url.strip() and not reads:
                raise SettingsError(
                    "DSF_API_URL is for reading only. To act, set KUBECONFIG or give --kubeconfig, with a user who may "
                    "patch dynamicscorers on the hub; or set DSF_REDIS_URL"
                )
            yield None
            return
    elif context.wanted() is not None:
        raise SettingsError("--demo chooses a demo, and --kubeconfig, --context and --namespace a hub: leave out one")
    from dsf.cli.kubehub import KubeHub

    dsf.log.prepare(settings)
    hub = KubeHub(choice, settings.namespace)
    try:
        yield hub
    finally:
        hub.close()


def redis_hint(error: Exception) -> str:
    """Message for a command that could not use Redis, without user name and password."""
    settings = Settings.load()
    running = running_demo(settings)
    settings = _of_demo(settings, running)
    reason = " ".join(str(error).split()).rstrip(".")
    try:
        where = str(address.parse(settings.resolved_redis_url()))
    except SettingsError:
        where = "an invalid URL"
    if by_environment():
        advice = "check DSF_REDIS_URL"
    elif running is not None:
        advice = "it belongs to a running demo; set DSF_REDIS_URL for another one"
    else:
        advice = (
            "no demo runs here, there is no kubeconfig, and DSF_REDIS_URL is not set; set one, or start a demo with "
            "`dsf demo`"
        )
    return f"cannot use Redis at {where} ({reason}): {advice}"


def running_demo(settings: Settings) -> context.CliContext | None:
    """Return the demo whose Redis a command uses; None if none runs or the environment names another Redis.

    Raises ContextError if several run and none is selected.
    """
    if not by_environment():
        return context.choose(context.wanted())
    url = settings.resolved_redis_url()
    # The password makes the URL unique.
    return next((demo for demo in context.running() if demo.redis_url == url), None)


def by_environment() -> bool:
    """True if the environment sets the Redis of a command."""
    return context.wanted() is None and "DSF_REDIS_URL" in os.environ
