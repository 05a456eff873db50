"""Checks the health of scoring APIs and polls their /config.

A scorer becomes Active after a fully successful check, and stays Active while `/healthz` succeeds. A bad `/config` of
an Active scorer is reported, and the last valid configuration stays in effect. After `FAILURE_THRESHOLD` consecutive
failed checks the scorer becomes Inactive. A scorer that was never Active at this URL becomes Inactive after the first
failed check.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, NamedTuple

import dsf.log
from dsf import http
from dsf.api.problems import quote_head
from dsf.api.remoteconfig import CHECK_TIMEOUT, MAX_CONFIG_BYTES, RemoteConfig, find_user_problem, parse_remote_config
from dsf.api.scorer import DynamicScorer
from dsf.api.types import ConfigSyncMode, HealthStatus, ResolveReason
from dsf.api.urls import get_base_url
from dsf.backends.memoryshares import MAX_BYTES as MAX_SHARED_BYTES
from dsf.backends.memoryshares import MIN_SHARE, MemoryShares, estimate_bytes
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
from dsf.store.notices import NOT_READ, ConfigRead, truncate
from dsf.text import clean, describe_request, has_user, shorten_url

log = dsf.log.get(__name__)

#: Consecutive failed checks that make an Active scorer Inactive. A single failure may be a restart of its pod.
FAILURE_THRESHOLD: Final = 3
#: Parallel checks, shared equally by namespaces: hanging scoring APIs in one namespace must not delay the others.
CONCURRENCY: Final = 16
#: Maximum bytes read from a response, after decompression.
MAX_BYTES: Final = MAX_CONFIG_BYTES
#: Hints for scoring APIs whose `auth` and `tls` use Secrets on the clusters, which the hub cannot read.
_DOCS_LINK: Final = "(docs/sources.md#what-the-hub-asks)"
_AUTH_HINT: Final = f"; the hub asks without scoring.auth: let it in, or set another configURL {_DOCS_LINK}"
_TLS_HINT: Final = f"; the hub asks without scoring.tls: it trusts the CAs of trustedCA {_DOCS_LINK}"


class HealthTarget(NamedTuple):
    """The target of a health check."""

    config_url: str
    mode: ConfigSyncMode
    #: Direct access, or through a proxy.
    access: Access = PLAIN
    #: uid of the DynamicScorer, which differs after deletion and re-creation.
    uid: str = ""
    #: True if the scorer's author may see response texts. Authors in other namespaces than the hub's see only the
    #: HTTP status and the kind of a failure, because the URL may point to any page that the hub reaches.
    shows_responses: bool = True
    #: Reason why the hub must not send requests to this URL; empty if it may.
    refusal: str = ""
    #: Compile error of an expression, which has no URL; empty if the expression compiles.
    expression_error: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. In mode None, `config` and `config_failure` are None."""

    #: Reason why the scoring API does not count as healthy; None if it does.
    health_failure: Obstacle | None
    config: RemoteConfig | None = None
    config_failure: Obstacle | None = None


@dataclass(frozen=True)
class Health:
    """The known state of one scoring API."""

    status: HealthStatus = HealthStatus.Unknown
    #: Last valid response from configURL. It stays if later responses are invalid, and if the mode becomes None.
    config: RemoteConfig | None = None
    #: Consecutive failed checks, at most FAILURE_THRESHOLD.
    failures: int = 0
    #: Reason why the newest check failed; None after a success.
    failure: Obstacle | None = None
    #: Reason why the newest check got no valid configuration; None after a success, and in mode None.
    config_failure: Obstacle | None = None
    #: True after the first check of this URL in this mode.
    is_checked: bool = False
    #: True if the scorer was Active at this URL and in this mode, so that a failed check may be transient.
    is_proven: bool = False

    @classmethod
    def from_status(cls, scorer: DynamicScorer) -> Health:
        """Return the state from a stored status. If the spec has changed since, `is_proven` is False."""
        status = scorer.status
        is_proven = status.observed_generation == scorer.metadata.generation
        config = status.last_synced_config
        if config is not None and find_user_problem(config):
            # Upstream's manager wrote this invalid config. Drop it; the next check reports the reason.
            config = None
        return cls(status.health_status, config, is_proven=is_proven)

    def apply_check(self, check: CheckResult) -> Health:
        """Return the state after a check; `FAILURE_THRESHOLD` consecutive failures make a proven scorer Inactive."""
        is_active = self.status is HealthStatus.Active and self.is_proven
        failure = check.health_failure or (None if is_active else check.config_failure)
        # The limit keeps the Health of a permanently failing scoring API equal, so that its status is not rewritten.
        failures = 0 if failure is None else min(self.failures + 1, FAILURE_THRESHOLD)
        is_still_active = failure is None or (is_active and failures < FAILURE_THRESHOLD)
        return Health(
            status=HealthStatus.Active if is_still_active else HealthStatus.Inactive,
            config=check.config or self.config,
            failures=failures,
            failure=failure,
            config_failure=check.config_failure,
            is_checked=True,
            is_proven=self.is_proven or failure is None,
        )

    def reset_checks(self) -> Health:
        """Return the state after a change of URL or mode: status and config stay in effect until the first check."""
        return replace(self, failures=0, failure=None, config_failure=None, is_checked=False, is_proven=False)


def check(target: HealthTarget, *, timeout: float) -> CheckResult:
    """Check one scoring API. All requests together take at most `timeout` seconds. Failures are part of the result."""
    if target.refusal:
        return CheckResult(Obstacle(str(ResolveReason.HostNotAllowed), target.refusal))
    if not target.config_url:
        error = target.expression_error
        return CheckResult(Obstacle(str(ResolveReason.ExpressionInvalid), error) if error else None)
    deadline = time.monotonic() + timeout

    def send_request(url: str) -> http.Response | Obstacle:
        try:
            return http.probe(url, deadline=deadline, max_bytes=MAX_BYTES, access=target.access)
        except HttpError as error:
            # Omit the duration of a timeout, because a varying message would change the status at each check.
            is_timeout = error.reason == "timeout"
            message = f"{describe_request('GET', url)}: no complete response in time" if is_timeout else str(error)
            hint = _TLS_HINT if TLS_FAILED in message else ""
            if not is_timeout and not target.shows_responses:
                message = f"{describe_request('GET', url)}: {describe_failure(error.reason, error.status)}"
            return Obstacle(_to_camel_case(error.reason), message + hint)

    try:
        healthz = f"{get_base_url(target.config_url)}/healthz"
    except ValueError as error:
        hint = _AUTH_HINT if has_user(target.config_url) else ""
        return CheckResult(Obstacle("InvalidURL", f"spec.configURL: {error}{hint}"))
    response = send_request(healthz)
    if isinstance(response, Obstacle) or target.mode is not ConfigSyncMode.Full:
        # Skip /config in mode None, and after a failed request, because the server would fail again.
        return CheckResult(_find_failure(healthz, response, target))
    config, config_failure = _read_config(target, send_request(target.config_url))
    # If the scoring API has no /healthz, its /config shows whether it is up.
    health_failure = (
        config_failure if response.status == HTTPStatus.NOT_FOUND else _find_failure(healthz, response, target)
    )
    return CheckResult(health_failure, config, config_failure)


def make_read_notice(name: str, target: HealthTarget, result: CheckResult, request: str) -> ConfigRead:
    """Return the notice that tells users whether a check has read a scorer's /config; `request` is a request's id."""
    if result.config is not None:
        return ConfigRead(name=name, at=hubclock.now(), request=request)
    failure = result.config_failure or result.health_failure
    if target.mode is not ConfigSyncMode.Full:
        return ConfigRead(name=name, problem=NOT_READ, request=request)
    return ConfigRead(name=name, problem=truncate(failure.message) if failure else "", request=request)


def _find_failure(url: str, response: http.Response | Obstacle, target: HealthTarget) -> Obstacle | None:
    if isinstance(response, Obstacle):
        return response
    if response.status != HTTPStatus.OK:
        text = f"{shorten_url(url)}: status {response.status}, not 200"
        if target.shows_responses:
            text += f"; the response starts with {quote_head(response.body)}"
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            text += _AUTH_HINT
        return Obstacle("HTTPError", text)
    return None


def _read_config(
    target: HealthTarget, response: http.Response | Obstacle
) -> tuple[RemoteConfig | None, Obstacle | None]:
    failure = _find_failure(target.config_url, response, target)
    if failure is not None or isinstance(response, Obstacle):
        return None, failure
    try:
        return parse_remote_config(response.body), None
    except RemoteConfigError as error:
        text = str(error) if target.shows_responses else f"the response is no valid configuration; {RESPONSE_HIDDEN}"
        return None, Obstacle("ConfigInvalid", clean(f"{shorten_url(target.config_url)}: {text}", 1024))


def _estimate_config_bytes(config: RemoteConfig | None) -> int:
    return estimate_bytes(config.model_dump(mode="json"), MAX_SHARED_BYTES) if config is not None else 0


def _to_camel_case(words: str) -> str:
    return "".join(word.capitalize() for word in words.split("_"))


class HealthMonitor:
    """Checks all tracked scorers concurrently. Each namespace gets an equal share of the threads."""

    def __init__(
        self,
        settings: Settings,
        outage: Outage,
        on_change: Callable[[ObjectKey], None],
        on_check: Callable[[ObjectKey, HealthTarget, CheckResult, str], None] = lambda *_: None,
    ) -> None:
        """Prepare the checks; `start` begins them.

        `on_change` is called when the Health of a scorer changes. `on_check` is called after each check, with the id of
        the newest request (see `request_check`) before the check. Both are called in the checking threads, outside of
        any lock.
        """
        self._settings = settings
        self._on_change = on_change
        self._on_check = on_check
        # Memory of the kept configurations by namespace. It is limited, because scoring APIs choose its size.
        self._memory_shares = MemoryShares()
        self._max_bytes = max(MAX_SHARED_BYTES // max(1, len(settings.scorer_namespaces)), MIN_SHARE)
        self._requests: dict[ObjectKey, str] = {}
        self._targets: dict[ObjectKey, HealthTarget] = {}
        self._states: dict[ObjectKey, Health] = {}
        # Number of targets by namespace.
        self._namespaces: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._controller = Controller(
            "health", self._check, workers=CONCURRENCY, outage=outage, may_process=self._has_thread
        )

    def start(self) -> None:
        """Start checking."""
        self._controller.start()

    def stop(self) -> None:
        """Stop checking. Hanging checks end with the process."""
        self._controller.stop(1.0)

    def track(self, key: ObjectKey, target: HealthTarget, stored_health: Health) -> Health:
        """Start or continue checking this scorer; return its state. A new or changed target is checked immediately.

        `stored_health` comes from the stored status and is used for a key that is not tracked yet.
        """
        with self._lock:
            previous_target = self._targets.get(key)
            if previous_target == target:
                return self._states[key]
            if previous_target is None:
                self._namespaces[key.namespace] += 1
                self._memory_shares.admit(key, key.namespace, _estimate_config_bytes(stored_health.config), sys.maxsize)
            health = stored_health if previous_target is None else self._states[key].reset_checks()
            self._targets[key] = target
            self._states[key] = health
        self._controller.queue.add(key)
        return health

    def request_check(self, key: ObjectKey, request: str) -> None:
        """Check a scorer immediately, or as soon as it is tracked, for the request with this id."""
        with self._lock:
            self._requests[key] = request
        self._controller.queue.add(key)

    def forget(self, key: ObjectKey) -> None:
        """Stop checking this scorer."""
        with self._lock:
            self._requests.pop(key, None)
            if self._targets.pop(key, None) is not None:
                self._namespaces[key.namespace] -= 1
                # Remove namespaces without targets, so that they get no share of the threads.
                self._namespaces = +self._namespaces
            self._states.pop(key, None)
            self._memory_shares.release(key)

    def get_health(self, key: ObjectKey) -> Health | None:
        """Return the state of a tracked scorer; None if it is not tracked."""
        with self._lock:
            return self._states.get(key)

    def _admit(
        self, key: ObjectKey, target: HealthTarget, config: RemoteConfig, kept_config: RemoteConfig | None
    ) -> bool:
        """Count the memory of a new configuration in place of the kept one; return False if it exceeds the share."""
        if target.shows_responses or config == kept_config:
            return True
        if self._memory_shares.admit(key, key.namespace, _estimate_config_bytes(config), self._max_bytes):
            return True
        self._memory_shares.admit(key, key.namespace, _estimate_config_bytes(kept_config), sys.maxsize)
        return False

    def _describe_full_share(self, key: ObjectKey) -> Obstacle:
        return Obstacle(
            "ConfigInvalid",
            f"the configurations of the scorers in namespace {key.namespace} take more than {self._max_bytes} bytes of "
            "memory: make them shorter",
        )

    def _has_thread(self, _: str, checks: int) -> bool:
        """Return True if a namespace with this number of running checks uses fewer threads than its equal share."""
        return checks < max(1, CONCURRENCY // max(1, len(self._namespaces)))

    def _check(self, key: ObjectKey) -> float | None:
        """Check a scorer; return the seconds until the next check, None if the scorer is no longer tracked."""
        with self._lock:
            target, request = self._targets.get(key), self._requests.get(key, "")
        if target is None:
            return None
        try:
            result = check(target, timeout=CHECK_TIMEOUT)
        except Exception as error:
            # Count an unexpected error as a failed check, so that the scorer does not stay Active.
            log.exception("health check failed with an unexpected error", scorer=key.name)
            text = (
                f"{shorten_url(target.config_url)}: the hub cannot process its response: {type(error).__name__}; the "
                "hub's log says where"
            )
            result = CheckResult(Obstacle("CheckFailed", text))
        with self._lock:
            if self._targets.get(key) != target:
                # The target has changed during the check and is queued again, so drop this outdated result.
                return None
            previous_health = self._states[key]
            if result.config is not None and not self._admit(key, target, result.config, previous_health.config):
                result = replace(result, config=None, config_failure=self._describe_full_share(key))
            new_health = previous_health.apply_check(result)
            self._states[key] = new_health
        self._on_check(key, target, result, request)
        if new_health != previous_health:
            log.info("health checked", scorer=key.name, status=new_health.status.value, failures=new_health.failures)
            self._on_change(key)
        # Random intervals keep checks from running all at the same time.
        return self._settings.health_interval * random.uniform(0.9, 1)  # noqa: S311
