"""Health checks of scoring APIs and the polling of their /config.

A scorer becomes Active after a fully successful check, and stays Active while `/healthz` succeeds: a bad `/config` then
leaves the last good one in force and is only reported. After some consecutive failed checks the scorer becomes
Inactive; one that never was Active at this URL, after the first.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, NamedTuple

import dsf.log
from dsf import http
from dsf.api.problems import head
from dsf.api.remoteconfig import CHECK_TIMEOUT, MAX_CONFIG_BYTES, RemoteConfig, parse_remote_config, user_problem
from dsf.api.scorer import DynamicScorer
from dsf.api.types import ConfigSyncMode, HealthStatus, ResolveReason
from dsf.api.urls import base_url
from dsf.backends.protocol import ObjectKey
from dsf.errors import HttpError, RemoteConfigError
from dsf.http.access import PLAIN, Access
from dsf.http.failures import TLS_FAILED
from dsf.hub.admission import RESPONSE_HIDDEN, describe_failure
from dsf.hub.controller import Controller
from dsf.hub.scorerplan import Obstacle
from dsf.process import hubclock
from dsf.process.outage import Outage
from dsf.settings import Settings
from dsf.store.notices import NOT_READ, ConfigRead, cut
from dsf.text import cleaned, has_user, place, shown_url

log = dsf.log.get(__name__)

#: Failed checks in a row that make an Active scorer Inactive: one may be a restart of its pod.
FAILURE_THRESHOLD: Final = 3
#: Parallel checks, shared equally by the namespaces of scorers: hung scoring APIs of one must not delay the others.
CONCURRENCY: Final = 16
#: Max. bytes read of a response, after decompression.
MAX_BYTES: Final = MAX_CONFIG_BYTES
#: `auth` and `tls` of a scoring API use the clusters' Secrets, which the hub lacks. Alternatives:
_HELP: Final = "(docs/sources.md#what-the-hub-asks)"
_OPEN: Final = f"; the hub asks without scoring.auth: let it in, or set another configURL {_HELP}"
_OWN_CA: Final = f"; the hub asks without scoring.tls: it trusts the CAs of trustedCA {_HELP}"


class HealthTarget(NamedTuple):
    """Target of a check."""

    config_url: str
    mode: ConfigSyncMode
    #: Direct access, or through a proxy.
    access: Access = PLAIN
    #: uid of the DynamicScorer: it differs after deletion and re-creation.
    uid: str = ""
    #: Whether its author may see what servers answer. The author of a scorer in a namespace other than the hub's sees
    #: only status and kind: the URL may be that of any page that the hub reaches.
    shows_answers: bool = True
    #: Why the hub must not send requests to this URL; empty if it may.
    refusal: str = ""
    #: The mistake in an expression, which has no URL; empty if it compiles.
    mistake: str = ""


@dataclass(frozen=True)
class Check:
    """Result of one check. In mode None `/config` is not requested: `config` and `config_failure` are None."""

    health_failure: Obstacle | None
    config: RemoteConfig | None = None
    config_failure: Obstacle | None = None


@dataclass(frozen=True)
class Health:
    """Known state of one scoring API."""

    status: HealthStatus = HealthStatus.Unknown
    #: The last valid response of configURL; it stays if later ones are bad, and if the mode becomes None.
    config: RemoteConfig | None = None
    #: Consecutive failed checks, at most FAILURE_THRESHOLD.
    failures: int = 0
    #: Why the newest check failed; None after a success.
    failure: Obstacle | None = None
    config_failure: Obstacle | None = None
    #: Whether a check of this URL in this mode has ended.
    is_checked: bool = False
    #: Whether it was Active at this URL and in this mode, so that a failed check may be transient.
    is_proven: bool = False

    @classmethod
    def of(cls, scorer: DynamicScorer) -> Health:
        """Findings of an earlier hub. If the spec changed since, they may be of another URL."""
        status = scorer.status
        is_proven = status.observed_generation == scorer.metadata.generation
        config = status.last_synced_config
        if config is not None and user_problem(config):
            # Upstream's manager wrote it: the next status omits it, and the next check reports the reason.
            config = None
        return cls(status.health_status, config, is_proven=is_proven)

    def after(self, check: Check) -> Health:
        """The state after one more check; `FAILURE_THRESHOLD` consecutive failures make a proven scorer Inactive."""
        is_active = self.status is HealthStatus.Active and self.is_proven
        failure = check.health_failure or (None if is_active else check.config_failure)
        # No more than count: a scoring API that stays down is no news at each check.
        failures = 0 if failure is None else min(self.failures + 1, FAILURE_THRESHOLD)
        stays = failure is None or (is_active and failures < FAILURE_THRESHOLD)
        return Health(
            status=HealthStatus.Active if stays else HealthStatus.Inactive,
            config=check.config or self.config,
            failures=failures,
            failure=failure,
            config_failure=check.config_failure,
            is_checked=True,
            is_proven=self.is_proven or failure is None,
        )

    def elsewhere(self) -> Health:
        """The state after a change of URL or mode: all stays in force until the first check, which then decides."""
        return replace(self, failures=0, failure=None, config_failure=None, is_checked=False, is_proven=False)


def check(target: HealthTarget, *, timeout: float) -> Check:
    """Check one scoring API; `timeout` covers everything."""
    if target.refusal:
        return Check(Obstacle(str(ResolveReason.HostNotAllowed), target.refusal))
    if not target.config_url:
        return Check(Obstacle(str(ResolveReason.ExpressionInvalid), target.mistake) if target.mistake else None)
    deadline = time.monotonic() + timeout

    def ask(url: str) -> http.Answer | Obstacle:
        try:
            return http.probe(url, deadline=deadline, max_bytes=MAX_BYTES, access=target.access)
        except HttpError as error:
            # Without the seconds of a timeout: a message that varies would change the status at each check.
            late = error.reason == "timeout"
            message = f"{place('GET', url)}: no complete answer in time" if late else str(error)
            help_ = _OWN_CA * (TLS_FAILED in message)
            if not late and not target.shows_answers:
                message = f"{place('GET', url)}: {describe_failure(error.reason, error.status)}"
            return Obstacle(_camel_case(error.reason), message + help_)

    try:
        healthz = f"{base_url(target.config_url)}/healthz"
    except ValueError as error:
        open_ = _OPEN * has_user(target.config_url)
        return Check(Obstacle("InvalidURL", f"spec.configURL: {error}{open_}"))
    answer = ask(healthz)
    if isinstance(answer, Obstacle) or target.mode is not ConfigSyncMode.Full:
        # Without any response further requests to this server are pointless.
        return Check(_failure_of(healthz, answer, target))
    config, config_failure = _read_config(target, ask(target.config_url))
    # A scoring API without /healthz: its /config shows whether it is up.
    health_failure = config_failure if answer.status == HTTPStatus.NOT_FOUND else _failure_of(healthz, answer, target)
    return Check(health_failure, config, config_failure)


def config_read(name: str, target: HealthTarget, result: Check, request: str) -> ConfigRead:
    """For people: whether a check of this scorer brought its /config."""
    if result.config is not None:
        return ConfigRead(name=name, at=hubclock.now(), request=request)
    failure = result.config_failure or result.health_failure
    if target.mode is not ConfigSyncMode.Full:
        return ConfigRead(name=name, problem=NOT_READ, request=request)
    return ConfigRead(name=name, problem=cut(failure.message) if failure else "", request=request)


def _failure_of(url: str, answer: http.Answer | Obstacle, target: HealthTarget) -> Obstacle | None:
    if isinstance(answer, Obstacle):
        return answer
    if answer.status != HTTPStatus.OK:
        text = f"{shown_url(url)}: status {answer.status}, not 200"
        if target.shows_answers:
            text += f"; the answer starts with {head(answer.body)}"
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            text += _OPEN
        return Obstacle("HTTPError", text)
    return None


def _read_config(target: HealthTarget, answer: http.Answer | Obstacle) -> tuple[RemoteConfig | None, Obstacle | None]:
    failure = _failure_of(target.config_url, answer, target)
    if failure is not None or isinstance(answer, Obstacle):
        return None, failure
    try:
        return parse_remote_config(answer.body), None
    except RemoteConfigError as error:
        text = str(error) if target.shows_answers else f"the answer is no valid configuration; {RESPONSE_HIDDEN}"
        return None, Obstacle("ConfigInvalid", cleaned(f"{shown_url(target.config_url)}: {text}", 1024))


def _camel_case(words: str) -> str:
    return "".join(word.capitalize() for word in words.split("_"))


class HealthMonitor:
    """Checks all tracked scorers concurrently. A hanging one holds one thread, and a namespace has only its share."""

    def __init__(
        self,
        settings: Settings,
        outage: Outage,
        on_change: Callable[[ObjectKey], None],
        on_check: Callable[[ObjectKey, HealthTarget, Check, str], None] = lambda *_: None,
    ) -> None:
        """Both are called in the checking threads, outside of any lock: `on_change` when a scorer's Health changes,
        `on_check` with each check and the newest request (`ask`) that came before it."""
        self._settings = settings
        self._on_change = on_change
        self._on_check = on_check
        self._requests: dict[ObjectKey, str] = {}
        self._targets: dict[ObjectKey, HealthTarget] = {}
        self._known: dict[ObjectKey, Health] = {}
        # Number of targets by namespace.
        self._namespaces: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._controller = Controller(
            "health", self._check, workers=CONCURRENCY, outage=outage, may_begin=self._has_thread
        )

    def start(self) -> None:
        """Start checking."""
        self._controller.start()

    def stop(self) -> None:
        """Start no more checks; hanging ones end with the process."""
        self._controller.stop(1.0)

    def track(self, key: ObjectKey, target: HealthTarget, stored_health: Health) -> Health:
        """Start or continue checking this scorer; returns its state. A new or changed target is checked at once.

        `stored_health` comes from its status and counts for a key that is not tracked yet.
        """
        with self._lock:
            before = self._targets.get(key)
            if before == target:
                return self._known[key]
            if before is None:
                self._namespaces[key.namespace] += 1
            health = stored_health if before is None else self._known[key].elsewhere()
            self._targets[key] = target
            self._known[key] = health
        self._controller.queue.add(key)
        return health

    def ask(self, key: ObjectKey, request: str) -> None:
        """Check a scorer at once, or as soon as it is tracked, for the request with this id."""
        with self._lock:
            self._requests[key] = request
        self._controller.queue.add(key)

    def forget(self, key: ObjectKey) -> None:
        """Stop checking this scorer."""
        with self._lock:
            self._requests.pop(key, None)
            if self._targets.pop(key, None) is not None:
                self._namespaces[key.namespace] -= 1
                # Only those with targets: they share the threads.
                self._namespaces = +self._namespaces
            self._known.pop(key, None)

    def health(self, key: ObjectKey) -> Health | None:
        """The state of a tracked scorer."""
        with self._lock:
            return self._known.get(key)

    def _has_thread(self, key: ObjectKey, checked: Set[ObjectKey]) -> bool:
        """True if this scorer's namespace has a thread left of its equal share."""
        share = max(1, CONCURRENCY // max(1, len(self._namespaces)))
        return sum(other.namespace == key.namespace for other in checked) < share

    def _check(self, key: ObjectKey) -> float | None:
        """Returns the seconds until the next check; None for a scorer that is tracked no more."""
        with self._lock:
            target, request = self._targets.get(key), self._requests.get(key, "")
        if target is None:
            return None
        try:
            result = check(target, timeout=CHECK_TIMEOUT)
        except Exception as error:
            # A response that the hub cannot handle is a failure: the scorer must not stay Active.
            log.exception("health check failed in an unexpected way", scorer=key.name)
            text = (
                f"{shown_url(target.config_url)}: the hub cannot take its answer: {type(error).__name__}; the hub's "
                "log says where"
            )
            result = Check(Obstacle("CheckFailed", text))
        with self._lock:
            if self._targets.get(key) != target:
                # Changed meanwhile, and in the queue again: this result is for an old target.
                return None
            before = self._known[key]
            after = before.after(result)
            self._known[key] = after
        self._on_check(key, target, result, request)
        if after != before:
            log.info("health checked", scorer=key.name, status=after.status.value, failures=after.failures)
            self._on_change(key)
        # The jitter keeps checks from running in step.
        return self._settings.health_interval * random.uniform(0.9, 1)  # noqa: S311
