"""Watches the Redis server (version, owner, eviction, persistence, misuse of credentials) and all processes' clocks."""

from __future__ import annotations

import hashlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis

import dsf.log
from dsf.errors import SettingsError
from dsf.fleet.actions import Actions
from dsf.fleet.changes import Actor
from dsf.process.hubclock import HubClock
from dsf.process.outage import Outage
from dsf.process.threads import SupervisedThread
from dsf.redisacl.misuse import MisuseWatch
from dsf.redislink import address
from dsf.settings import Settings
from dsf.store import server
from dsf.store.client import run_until_stopped
from dsf.store.clocks import find_clock_problem, read_reports

log = dsf.log.get(__name__)

#: Seconds between two checks of the clocks.
_CHECK_SECONDS: Final = 5.0
#: Seconds between two checks of the server.
_SERVER_CHECK_SECONDS: Final = 30.0
#: Seconds before the next check if a credential may be misused.
_URGENT_CHECK_SECONDS: Final = 1.0


class RedisWatch:
    """Checks Redis periodically in a thread. `on_unusable` gets the errors after which the hub cannot continue."""

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        clock: HubClock,
        outage: Outage,
        on_unusable: Callable[[SettingsError], object],
    ) -> None:
        self._redis = client
        self._settings = settings
        self._clock = clock
        self._outage = outage
        self._on_unusable = on_unusable
        self._owner: server.Owner | None = None
        # Number of consecutive checks that found a claim by another instance of this installation. None before the
        # first check, which usually finds the claim of the previous leader.
        self._foreign_claims: int | None = None
        self._problems: dict[str, str] = {}
        # Kind -> problem that another part of the hub has found.
        self._reported_problems: dict[str, str] = {}
        self._is_memory_logged = False
        self._misuse = MisuseWatch(client, self._revoke if settings.redis_manage_users else None)
        # time.monotonic() of the next check of the server.
        self._next_server_check = 0.0
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._run, "redis-watch")

    def start(self, secret: bytes) -> None:
        """Check once, then periodically; `secret` is unique to the installation.

        Raises SettingsError if Redis cannot be used by this hub. While it cannot be reached, the thread retries.
        """
        self._owner = make_owner(self._settings, secret)
        try:
            self._check_server()
        except redis.RedisError as error:
            if refusal := server.describe_refusal(error):
                raise SettingsError(f"DSF_REDIS_URL: {refusal}") from None
            log.warning("redis is checked when it can be reached", error=str(error))
        self._thread.start()

    def stop(self) -> None:
        """Stop the checks, and release the database."""
        self._stopping.set()
        self._thread.join(5)
        if self._owner is None or self._outage.is_on:
            return
        try:
            server.release_database(self._redis, self._owner)
        except redis.RedisError as error:
            log.info("the database is released when its owner expires", error=str(error))

    def report(self, kind: str, text: str) -> None:
        """Replace the problem of this kind that another part of the hub has found; empty if it is solved."""
        if text and self._reported_problems.get(kind) != text:
            log.error("the hub has a problem", problem=text)
        other_problems = {
            other_kind: problem for other_kind, problem in self._reported_problems.items() if other_kind != kind
        }
        self._reported_problems = {**other_problems, kind: text} if text else other_problems

    def _run(self) -> None:
        run_until_stopped(self._check, self._stopping, task="look at redis", retry_seconds=_CHECK_SECONDS)

    def _check(self) -> float:
        # Check for misuse first, and also during an outage, which misuse may have caused.
        self._check_misuse()
        if self._outage.is_on or self._misuse.is_urgent:
            return _URGENT_CHECK_SECONDS
        if time.monotonic() >= self._next_server_check:
            try:
                self._check_server()
            except SettingsError as error:
                self._on_unusable(error)
                return _CHECK_SECONDS
        now = self._clock.now()
        clock_problem = find_clock_problem(read_reports(self._redis, now))
        problems = {
            **self._reported_problems,
            **self._problems,
            **self._misuse.get_problems(),
            **({server.CLOCK: clock_problem} if clock_problem else {}),
        }
        server.write_problems(self._redis, problems)
        return _CHECK_SECONDS

    def _check_misuse(self) -> None:
        try:
            self._misuse.check()
        except redis.exceptions.NoPermissionError as error:
            # The operator's Redis user has rules of an earlier version.
            log.debug("misuse of credentials is not watched", error=str(error))

    def _revoke(self, clusters: Sequence[str], reason: str) -> None:
        """Request new credentials for clusters."""
        actor = Actor(name="the hub", claimed=False, way="watch")
        Actions(self._redis, self._settings, actor).request_credentials("revoke", clusters, note=reason)

    def _claim(self, owner: server.Owner, database: str) -> None:
        """Claim the database, or renew the claim. Raises SettingsError if a copy of this hub also claims it."""
        is_foreign = server.claim_database(self._redis, owner, database)
        if self._foreign_claims is not None:
            self._foreign_claims = self._foreign_claims + 1 if is_foreign else 0
        else:
            self._foreign_claims = 0
        # A single foreign claim may come from a restored Redis, or from the previous leader before it ended. Two in a
        # row can only come from another running hub.
        if self._foreign_claims > 1:
            raise SettingsError(
                f"DSF_REDIS_URL: the database {database} is in use by a copy of this hub, such as one that was "
                "restored "
                "from a backup on another cluster; stop one of them, or give it a Redis and a signing secret of its own"
            )

    def _check_server(self) -> None:
        assert self._owner is not None
        try:
            info: dict[str, Any] = self._redis.info()
        except redis.exceptions.NoPermissionError:
            # The operator's Redis user lacks this permission, so the operator has to check the server.
            info = {}
        server.check_server(info)
        self._claim(self._owner, str(address.parse(self._settings.resolved_redis_url())))
        problems = server.find_server_problems(info)
        for kind, text in problems.items():
            if self._problems.get(kind) != text:
                log.error("redis is not as it must be", problem=text)
        self._problems = problems
        if not self._is_memory_logged and info and (text := server.describe_unbounded_memory(info)):
            log.warning("redis is not bounded", problem=text)
            self._is_memory_logged = True
        self._next_server_check = time.monotonic() + _SERVER_CHECK_SECONDS


def make_owner(settings: Settings, secret: bytes) -> server.Owner:
    """Return the installation of a hub controller; all its replicas have the same id.

    A copy of the installation has the same id, too, such as one that was restored from a backup on another cluster.
    """
    if settings.backend == "dir":
        folder = str(settings.manifests.resolve()) if settings.manifests is not None else ""
        identity, name = folder, f"the hub of {folder} on {socket.gethostname()}"
    else:
        identity, name = settings.namespace, f"the hub of namespace {settings.namespace} (pod {socket.gethostname()})"
    digest = hashlib.blake2b(identity.encode(), key=secret[:64], digest_size=16)
    return server.Owner(id=digest.hexdigest(), name=name, instance=secrets.token_hex(8))
