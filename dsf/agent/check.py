"""`dsf agent --check`: tests step by step whether this cluster's agent can reach the hub's Redis.

The check uses an agent's settings, works with every way to expose Redis, and needs no running agent. Ticks stay in the
queue.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import redis
from pydantic import SecretStr

from dsf import keys
from dsf.agent.main import make_relay
from dsf.agent.outbox import SigningKeyFile
from dsf.errors import DsfError, RelayError, SettingsError
from dsf.process.launch import EXIT_FAILURE, EXIT_USAGE
from dsf.redislink.link import Link
from dsf.settings import Settings
from dsf.store.client import connect


@dataclass(frozen=True)
class Step:
    """A step of the check: `detail` describes the success, or the failure and its remedy."""

    name: str
    is_ok: bool
    detail: str


def run(settings: Settings) -> int:
    """Print one line per step until one fails; return 0 if all work, 1 if one does not, 2 for a wrong setting."""
    try:
        for step in run_steps(settings):
            print(f"{'ok  ' if step.is_ok else 'FAIL'}  {step.name:<14}  {step.detail}")
            if not step.is_ok:
                return EXIT_FAILURE
    except SettingsError as error:
        print(f"FAIL  settings        {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


def run_steps(settings: Settings) -> Iterator[Step]:
    """Run the steps and yield each. The caller stops after a failed step, which makes later ones meaningless.

    Raises SettingsError.
    """
    if not keys.is_name(settings.cluster):
        raise SettingsError(f"DSF_CLUSTER: {settings.cluster!r} is not the name of a managed cluster")
    SigningKeyFile(settings).get_key()
    yield Step("signing key", True, f"of cluster {settings.cluster}")
    # Use any free port, because an agent in the same pod listens on the port of the URL.
    relay = make_relay(settings, port=0)
    if relay is None:
        yield from _check_redis(settings, lambda: "")
        return
    relay.start()
    try:
        try:
            relay.check_kubeconfig()
        except RelayError as error:
            yield Step("kubeconfig", False, str(error))
            return
        yield Step("kubeconfig", True, f"for the hub, from {settings.hub_kubeconfig}")
        try:
            relay.open_websocket().close()
        except RelayError as error:
            yield Step("port-forward", False, str(error))
            return
        yield Step("port-forward", True, f"to {settings.redis_pod} through the hub's API server")
        yield from _check_redis(_with_port(settings, relay.address[1]), relay.find_problem)
    finally:
        relay.stop()


def _with_port(settings: Settings, port: int) -> Settings:
    """Return the settings with another port in redis_url; its host stays the one in the certificate."""
    url = urlsplit(settings.resolved_redis_url())
    user, separator, _ = url.netloc.rpartition("@")
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    changed_url = url._replace(netloc=f"{user}{separator}{host}:{port}").geturl()
    return settings.model_copy(update={"redis_url": SecretStr(changed_url)})


def _check_redis(settings: Settings, relay_problem: Callable[[], str]) -> Iterator[Step]:
    link = Link(settings)
    description = f"{link.address}, {'with' if link.uses_tls else 'without'} TLS"
    with connect(settings, name=f"dsf-agent-{settings.cluster}-check", retries=0) as client:
        try:
            client.ping()
        except redis.AuthenticationError as error:
            yield Step("connection", True, f"to {description}")
            yield Step("login", False, str(error))
            return
        except (redis.RedisError, DsfError) as error:
            yield Step("connection", False, relay_problem() or str(error))
            return
        yield Step("connection", True, f"to {description}")
        yield Step("login", True, f"as {settings.redis_username or link.address.username or 'the default user'}")
        yield _check_queue(settings, client)


def _check_queue(settings: Settings, client: redis.Redis) -> Step:
    queue, slot = keys.spoke_queue(settings.cluster), keys.mail_slots(settings.cluster)[0]
    try:
        client.exists(slot)
        tick_count = client.llen(queue)
    except redis.exceptions.NoPermissionError as error:
        remedy = (
            f"this user may not use the queue {queue} and the mailbox of cluster {settings.cluster} ({error}): the hub "
            "delivers one user per cluster; is DSF_CLUSTER the name under which the hub knows this cluster?"
        )
        return Step("queue", False, remedy)
    except redis.RedisError as error:
        return Step("queue", False, str(error))
    return Step("queue", True, f"{queue}, {tick_count} ticks waiting")
