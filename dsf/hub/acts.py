"""Executes acts that users request by annotations on a DynamicScorer (`dsf.api.acts`), and keeps the responses.

Each value of an annotation is executed at most once, because the hub writes accepted values to the object's status
before it executes them. The status reconciler reads later responses from here and writes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import redis
from pydantic import ValidationError

import dsf.log
from dsf.api.acts import (
    ACTS,
    MAX_RUNS,
    Act,
    ActRequest,
    ActResponse,
    ActRun,
    find_requests,
    get_annotation,
    parse_request,
)
from dsf.api.meta import format_rfc3339
from dsf.api.naming import MAX_NAME_LENGTH
from dsf.api.scorer import DynamicScorerStatus
from dsf.api.types import FILE_ANNOTATION
from dsf.backends.protocol import Backend, Manifest, ObjectKey
from dsf.errors import BackendError, UnknownNameError
from dsf.fleet import rescore
from dsf.fleet.actions import Actions
from dsf.fleet.changes import Actor, parse_change_id
from dsf.fleet.rescore import RunView
from dsf.hub.desiredstate import DesiredState
from dsf.process import hubclock
from dsf.settings import Settings
from dsf.store.notices import Notices
from dsf.store.schedule import ScheduleStore
from dsf.text import clean, list_names

log = dsf.log.get(__name__)

#: Prefix of the field managers that `dsf` uses. The user's name follows.
MANAGER_PREFIX: Final = "dsf/"
#: Delay between two polls of pending acts, as a fraction of the time since the request, and its limits in seconds.
_POLL_SHARE, _POLL_MIN, _POLL_MAX = 0.25, 0.2, 5.0
#: Maximum seconds until all cycles of a rescore have ended.
_MAX_RESCORE_SECONDS: Final = 600.0
#: Maximum seconds until a sync has read the /config.
_MAX_SYNC_SECONDS: Final = 30.0
#: Maximum seconds for which an act waits until the hub has registered its scorer or cluster in Redis.
_MAX_REGISTRATION_SECONDS: Final = 10.0


@dataclass
class _PendingAct:
    """An executed act whose effect is not complete."""

    #: time.monotonic() after which the act counts as failed.
    deadline: float
    #: Requested cycles.
    runs: list[RunView] = field(default_factory=list)
    #: Id of the request to read a /config.
    sync: str = ""


@dataclass
class _ScorerActs:
    """The acts of one DynamicScorer and their responses."""

    uid: str
    responses: dict[Act, ActResponse]
    pending_acts: dict[Act, _PendingAct] = field(default_factory=dict)
    #: Accepted acts that are not executed yet, each with the time of its acceptance (time.monotonic()).
    accepted_at: dict[Act, float] = field(default_factory=dict)


class ActRunner:
    """Executes acts, one after another for each DynamicScorer. Thread-safe."""

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        backend: Backend,
        desired: DesiredState,
        on_response: Callable[[ObjectKey], None],
    ) -> None:
        """`on_response` is called for a scorer whose responses have changed."""
        self._redis = client
        self._settings = settings
        self._backend = backend
        self._desired = desired
        self._on_response = on_response
        self._scorers: dict[ObjectKey, _ScorerActs] = {}
        self._lock = threading.Lock()

    def list_responses(self, key: ObjectKey) -> list[ActResponse] | None:
        """Return the responses for the status of a scorer, in the order of ACTS; None without a response."""
        manifest = self._backend.get(*key)
        if manifest is None:
            return None
        responses = self._get_state(key, manifest).responses
        return [responses[act] for act in ACTS if act in responses] or None

    def reconcile(self, key: ObjectKey) -> float | None:
        """Execute the new acts of a scorer and poll its pending acts; return the seconds until the next poll.

        Raises BackendError and redis.RedisError; the caller retries.
        """
        if not self._desired.is_known:
            return 0.5
        manifest = self._backend.get(*key)
        if manifest is None:
            with self._lock:
                self._scorers.pop(key, None)
            return None
        scorer_acts, metadata = self._get_state(key, manifest), manifest["metadata"]
        requests = find_requests(metadata.get("annotations") or {})
        new_acts = [
            act
            for act, text in requests.items()
            if act not in scorer_acts.responses or scorer_acts.responses[act].request != text
        ]
        # Execute acts in the order of their requests. The sort is stable, so acts with equal times keep their order.
        new_acts.sort(key=lambda act: _find_manager(metadata, act)[1])
        self._accept(key, scorer_acts, {act: requests[act] for act in new_acts}, metadata)
        previous_responses = dict(scorer_acts.responses)
        try:
            for act in [*scorer_acts.accepted_at]:
                self._execute(key, scorer_acts, act)
            for act in [*scorer_acts.pending_acts]:
                self._poll(key.name, scorer_acts, act)
        finally:
            if scorer_acts.responses != previous_responses:
                self._on_response(key)
        return self._compute_delay(scorer_acts)

    def _accept(
        self, key: ObjectKey, scorer_acts: _ScorerActs, requests: Mapping[Act, str], metadata: Manifest
    ) -> None:
        """Accept acts, and write this to the status, so that a restarted hub does not execute them again.

        Raises BackendError if the status cannot be written; no act is accepted then.
        """
        if not requests:
            return
        previous_responses, accepted_at = dict(scorer_acts.responses), time.monotonic()
        for act, text in requests.items():
            scorer_acts.responses[act] = ActResponse(
                act=act,
                request=text,
                handled_at=datetime.now(UTC),
                by=_find_author(metadata, act),
                outcome="Running",
                message="accepted",
            )
        try:
            manifest = self._backend.get(*key) or {}
            status = DynamicScorerStatus(acts=self.list_responses(key)).to_manifest()
            self._backend.update_status(*key, {**(manifest.get("status") or {}), "acts": status["acts"]})
        except BackendError:
            scorer_acts.responses = previous_responses
            raise
        for act in requests:
            scorer_acts.pending_acts.pop(act, None)
            scorer_acts.accepted_at[act] = accepted_at

    def _get_state(self, key: ObjectKey, manifest: Manifest) -> _ScorerActs:
        """Return the acts of a scorer. The first call reads the responses from its stored status."""
        uid = manifest["metadata"].get("uid") or ""
        with self._lock:
            scorer_acts = self._scorers.get(key)
            if scorer_acts is None or scorer_acts.uid != uid:
                stored_responses = (manifest.get("status") or {}).get("acts") or ()
                self._scorers[key] = scorer_acts = _ScorerActs(uid, _read_responses(stored_responses))
            return scorer_acts

    def _execute(self, key: ObjectKey, scorer_acts: _ScorerActs, act: Act) -> None:
        """Execute an accepted act, unless it has to wait for its scorer or cluster to be registered."""
        response = scorer_acts.responses[act]
        actions = Actions(self._redis, self._settings, Actor(name=response.by, claimed=True, way="annotation"))
        try:
            if self._desired.plan.find_owner_key(key.name) != f"{key.namespace}/{key.name}":
                raise ValueError("the hub ignores this DynamicScorer; its condition Ready says why")
            response = self._perform(actions, key.name, scorer_acts, parse_request(act, response.request), response)
        except (UnknownNameError, ValueError) as error:
            if (
                isinstance(error, UnknownNameError)
                and time.monotonic() - scorer_acts.accepted_at[act] < _MAX_REGISTRATION_SECONDS
            ):
                return
            response = response.model_copy(update={"outcome": "Refused", "message": clean(str(error), 1024)})
        del scorer_acts.accepted_at[act]
        scorer_acts.responses[act] = response
        log.info("act handled", act=act, by=response.by, outcome=response.outcome, message=response.message)

    def _perform(
        self, actions: Actions, name: str, scorer_acts: _ScorerActs, request: ActRequest, response: ActResponse
    ) -> ActResponse:
        """Perform the action of an act; return the response.

        Raises UnknownNameError and ValueError before anything has changed, and redis.RedisError.
        """
        if request.act == "sync":
            ident = actions.sync(name, note=request.note)
            scorer_acts.pending_acts["sync"] = _PendingAct(time.monotonic() + _MAX_SYNC_SECONDS, sync=ident)
            return response.model_copy(update={"message": "/config is being read"})
        if request.act == "rescore":
            clusters = list(request.clusters)
            if request.selector is not None:
                clusters = actions.select_clusters(name, request.selector)
            runs = actions.rescore(name, clusters, note=request.note)
            scorer_acts.pending_acts["rescore"] = _PendingAct(time.monotonic() + _MAX_RESCORE_SECONDS, runs=runs)
            message = f"{sum(bool(run.run_id) for run in runs)} of {len(runs)} cycles requested"
            return response.model_copy(update={"message": message, "clusters": len(runs)})
        pause_end = request.compute_end(hubclock.now())
        clusters = actions.execute(name, request, pause_end=pause_end)
        cluster_names = list_names(clusters, 5) if clusters else "all clusters"
        end_text = format_rfc3339(datetime.fromtimestamp(pause_end, UTC)) if pause_end is not None else "it is resumed"
        message = {
            "pause": f"paused on {cluster_names} until {end_text}",
            "resume": f"resumed on {cluster_names}",
            "interval": f"the interval on {cluster_names} is {request.interval} s",
            "reset": f"the declared interval applies on {cluster_names}, and no pause",
        }[request.act]
        count = len(clusters) or len(ScheduleStore(self._redis).read_entries_of(name))
        return response.model_copy(update={"outcome": "Done", "message": message, "clusters": count})

    def _poll(self, name: str, scorer_acts: _ScorerActs, act: Act) -> None:
        """Complete the response of a pending act if it has ended or timed out. Raises redis.RedisError."""
        pending_act = scorer_acts.pending_acts[act]
        has_timed_out = time.monotonic() >= pending_act.deadline
        update: dict[str, Any]
        if act == "sync":
            config_read = Notices(self._redis).read_config_read(name)
            if config_read is not None and parse_change_id(config_read.request or "0") >= parse_change_id(
                pending_act.sync
            ):
                update = {
                    "outcome": "Failed" if config_read.problem else "Done",
                    "message": config_read.problem or "/config was read",
                }
            elif has_timed_out:
                update = {"outcome": "Failed", "message": f"/config was not read within {_MAX_SYNC_SECONDS:.0f} s"}
            else:
                return
        else:
            pending_act.runs = rescore.read_outcomes(self._redis, name, pending_act.runs)
            if any(map(rescore.is_open, pending_act.runs)) and not has_timed_out:
                return
            # Read no scores, because those of one scorer may take more memory than the hub has.
            update = _summarise(rescore.explain_runs(self._redis, name, pending_act.runs))
        scorer_acts.responses[act] = scorer_acts.responses[act].model_copy(update=update)
        del scorer_acts.pending_acts[act]

    def _compute_delay(self, scorer_acts: _ScorerActs) -> float | None:
        """Return the seconds until the next poll; None without unfinished acts."""
        unfinished_acts = scorer_acts.pending_acts.keys() | scorer_acts.accepted_at.keys()
        if not unfinished_acts:
            return None
        newest_request_at = max(scorer_acts.responses[act].handled_at for act in unfinished_acts)
        elapsed_seconds = (datetime.now(UTC) - newest_request_at).total_seconds()
        return min(max(elapsed_seconds * _POLL_SHARE, _POLL_MIN), _POLL_MAX)


def _read_responses(stored_responses: Any) -> dict[Act, ActResponse]:
    responses: dict[Act, ActResponse] = {}
    for item in stored_responses:
        try:
            response = ActResponse.model_validate(item, by_alias=True)
        except ValidationError:
            # Another version of the hub wrote this status.
            continue
        if response.outcome == "Running":
            text = "the hub controller restarted meanwhile; `dsf history` and `dsf status` say what came of it"
            response = response.model_copy(update={"outcome": "Failed", "message": text})
        responses[response.act] = response
    return responses


def _summarise(runs: list[RunView]) -> dict[str, Any]:
    """Return the fields of a response that summarize ended cycles."""
    runs_without_score = [run for run in runs if not run.has_score]
    message = f"{len(runs) - len(runs_without_score)} of {len(runs)} clusters have a new score"
    if runs_without_score:
        example_run = runs_without_score[0]
        cause = f"{example_run.stage} {example_run.reason}".strip() or example_run.outcome or "not sent"
        message += (
            f"; {example_run.cluster}: {cause}: {example_run.message}"
            if example_run.message
            else f"; {example_run.cluster}: {cause}"
        )
    rows = [
        ActRun(
            cluster=run.cluster,
            run=run.run_id,
            has_score=run.has_score,
            message=clean(run.message, 300),
            **run.model_dump(include={"outcome", "stage", "reason"}),
        )
        for run in sorted(runs, key=lambda run: run.has_score)[:MAX_RUNS]
    ]
    return {"outcome": "Failed" if runs_without_score else "Done", "message": clean(message, 1024), "runs": rows}


def _find_manager(metadata: Manifest, act: Act) -> tuple[str, str]:
    """Return (newest field manager of an act's annotation, RFC 3339 time of its write); both empty if unknown."""
    field_name = f"f:{get_annotation(act)}"
    managers = [
        (str(entry.get("time") or ""), str(entry.get("manager") or ""))
        for entry in metadata.get("managedFields") or ()
        if field_name in (((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {})
    ]
    written_at, manager = max(managers, default=("", ""))
    return manager, written_at


def _find_author(metadata: Manifest, act: Act) -> str:
    """Return the author of an act's annotation, which is its file or field manager. The hub cannot verify it."""
    manager, _ = _find_manager(metadata, act)
    if not manager and (file := (metadata.get("annotations") or {}).get(FILE_ANNOTATION)):
        return clean(f"file {file}", MAX_NAME_LENGTH)
    return clean(manager.removeprefix(MANAGER_PREFIX), MAX_NAME_LENGTH) or "kubectl annotate"
