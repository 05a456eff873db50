"""Ingests results: verifies the sender, validates the result, and records it in the books."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import redis

import dsf.log
from dsf import keys
from dsf.errors import MessageRejectedError, SchemaMismatchError, SettingsError
from dsf.messages import Result, parse_claimed_cluster, verify
from dsf.process import hubclock, tracing
from dsf.process.hubclock import TOLERANCE
from dsf.results.ending import is_plausible, make_ending, make_ending_without_room
from dsf.results.hold import PublishedScores, read_score_sizes
from dsf.settings import Settings
from dsf.store.agents import AgentRecord, Agents
from dsf.store.client import parse_all_stored, parse_validity_factor, split_by_size
from dsf.store.clocks import ClockReports
from dsf.store.entries import ScheduleOverride, find_interval, list_targets
from dsf.store.pairs import MAX_SCORE_BYTES_PER_BATCH, Pair, PairScore
from dsf.store.registry import ClusterRecord, ScorerRecord
from dsf.store.runs import NO_ROOM, Ending, Runs
from dsf.store.writes import VALIDITY_FACTOR_FIELD

#: Outcomes of `Ingest.ingest_frames` for refused results. Each refusal is counted.
REFUSED = ("bad_signature", "replayed", "stale", "unknown_cluster", "malformed", "removed")

_REFUSAL_TEXTS = {
    "replayed": "this run has ended before",
    "removed": "this scorer no longer runs on this cluster",
}
_MIN_SECRET_BYTES = 16

# (schema version of an agent's messages, version of its software).
_Versions = tuple[int, str]


@dataclass(slots=True)
class _IncomingFrame:
    """The state of one frame during its ingestion. Each step sets fields for the next step, or refuses the frame."""

    frame: bytes
    #: The outcome, or Redis' error; empty until it is decided.
    outcome: str | redis.ResponseError = ""
    #: The sender according to the signature.
    cluster: str = field(init=False)
    key_id: int = field(init=False)
    versions: _Versions = field(init=False)
    #: The result, or the error of a frame with an unsupported schema.
    message: Result | SchemaMismatchError = field(init=False)
    result: Result = field(init=False)
    scorer: ScorerRecord = field(init=False)
    ending: Ending = field(init=False)


log = dsf.log.get(__name__)


class Ingest:
    """Ingests results. Several threads and processes may ingest concurrently.

    `clock` returns unix seconds by the hub's clock. `own_offset` returns the hub's time minus this machine's, in
    seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        *,
        clock: Callable[[], float] = hubclock.now,
        own_offset: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._settings = settings
        self._secret = read_master_secret(settings)
        self._redis = client
        self._runs = Runs(client)
        self._clock = clock
        self._own_offset = own_offset
        self._clock_reports = ClockReports(client, settings)
        # Limits the log lines that forged results cause.
        self._throttle = dsf.log.Throttle()
        self._agents = Agents(client)
        # Cluster -> newest key id, versions of its agent, and the monotonic time at which to store them again.
        self._stored_agents: dict[str, tuple[int, _Versions, float]] = {}

    def ingest_frames(self, frames: Sequence[bytes]) -> list[str | redis.ResponseError]:
        """Ingest frames in two round trips, with the same effect as one after the other.

        Returns one outcome per frame: ok, empty, partial, error or skipped, `late` for the result of a run that was
        declared lost, one of REFUSED, or Redis' error. Ingesting a frame twice has no effect. The content of a frame
        never raises an error. Raises redis.RedisError if Redis is unreachable; the caller may then repeat the call.
        """
        now = self._clock()
        incoming = [_IncomingFrame(frame) for frame in frames]
        pending_frames = self._apply(self._verify, incoming)
        records = _read_registry(self._redis, pending_frames)
        pending_frames = self._apply(partial(self._authorise, records), pending_frames)
        self._store_agents(pending_frames)
        pending_frames = self._apply(partial(self._match, records), pending_frames)
        self._correct_times(pending_frames, now)
        self._make_endings(pending_frames, records, now)
        rejection_counts = Counter(str(item.outcome) for item in incoming if item.outcome)
        pending_frames = [item for item in pending_frames if not item.outcome]
        self._end_runs(pending_frames, now)
        oversized_frames = [item for item in pending_frames if item.outcome == NO_ROOM]
        for item in oversized_frames:
            item.ending = make_ending_without_room(item.result, item.scorer, now)
        self._end_runs(oversized_frames, now)
        self._runs.count_rejections(rejection_counts)
        for item in pending_frames:
            self._report(item, now)
        return [item.outcome for item in incoming]

    def _apply(
        self, step: Callable[[_IncomingFrame], object], incoming: Iterable[_IncomingFrame]
    ) -> list[_IncomingFrame]:
        """Apply a step to each item, and return the items that it accepts."""
        accepted_frames: list[_IncomingFrame] = []
        for item in incoming:
            try:
                step(item)
                accepted_frames.append(item)
            except MessageRejectedError as error:
                item.outcome = error.reason
                self._log_refusal(error.reason, item.frame, str(error))
            except Exception:
                # Drop the result, because a bug must not block the mailbox for ever.
                log.exception("result dropped")
                item.outcome = "malformed"
        return accepted_frames

    def _end_runs(self, pending_frames: Sequence[_IncomingFrame], now: float) -> None:
        """End the runs in the books, and set the outcomes."""
        endings = [item.ending for item in pending_frames]
        for item, outcome in zip(pending_frames, self._runs.end_all(endings, now=now), strict=True):
            item.outcome = outcome

    def _report(self, item: _IncomingFrame, now: float) -> None:
        """Trace and log the outcome."""
        if isinstance(item.outcome, redis.ResponseError):
            return
        ending = item.ending
        run = keys.run_member(ending.cluster, ending.scorer, ending.run)
        tracing.record_ingest(run, ending.outcome, now, self._clock())
        if item.outcome in REFUSED:
            text = _REFUSAL_TEXTS.get(item.outcome, ending.history.message)
            self._log_refusal(item.outcome, item.frame, text, scorer=ending.scorer, run=ending.run)

    def _correct_times(self, pending_frames: Sequence[_IncomingFrame], now: float) -> None:
        """Correct the times of agents whose clocks agree with this machine's clock, if that differs from Redis' clock.

        The clock reports say with which of the two clocks each agent agrees, so that users can tell which one is wrong.
        """
        offset = self._own_offset()
        if abs(offset) <= TOLERANCE:
            return
        offset_by_cluster: dict[str, float] = {}
        for item in pending_frames:
            if is_plausible(item.result, now):
                offset_by_cluster[item.cluster] = 0.0
                continue
            corrected_result = item.result.model_copy(update={"at": item.result.at + offset})
            if is_plausible(corrected_result, now):
                offset_by_cluster[item.cluster] = offset
                item.result = corrected_result
        self._clock_reports.report_agents(offset_by_cluster, now)

    def _make_endings(self, pending_frames: Sequence[_IncomingFrame], records: _RegistryRecords, now: float) -> None:
        """Set the endings of all items."""
        # Sort by run, because slots return the results of a pair in arbitrary order, and a hold compares each result
        # with the previous result.
        sorted_frames = sorted(pending_frames, key=lambda item: item.result.run)
        held_results = [(item.result, item.scorer) for item in sorted_frames if item.scorer.hold is not None]
        if not held_results:
            self._set_endings(sorted_frames, records, now, None)
            return
        sizes = read_score_sizes(self._redis, held_results)
        sized_frames = ((item, sizes.get((item.cluster, item.result.scorer), 0)) for item in sorted_frames)
        replacements: dict[Pair, PairScore] = {}
        # Read the current scores in parts, because all of them may take hundreds of megabytes.
        for batch in split_by_size(sized_frames, MAX_SCORE_BYTES_PER_BATCH):
            batch_results = [(item.result, item.scorer) for item in batch]
            published_scores = PublishedScores(self._redis, batch_results, now=now, replacements=replacements)
            self._set_endings(batch, records, now, published_scores)

    def _set_endings(
        self,
        frames: Sequence[_IncomingFrame],
        records: _RegistryRecords,
        now: float,
        published_scores: PublishedScores | None,
    ) -> None:
        """Set the endings of frames. `published_scores` is None if no scorer of the batch has a hold."""

        def set_ending(item: _IncomingFrame) -> None:
            result = item.result
            item.ending = make_ending(
                result,
                item.scorer,
                now=now,
                factor=records.factor,
                interval=find_interval(result.scorer, result.cluster, 0, records.overrides) or None,
                published_score=published_scores.get_older_score(result) if published_scores is not None else None,
            )
            if published_scores is not None:
                published_scores.replace(result.cluster, item.scorer, item.ending.score)

        self._apply(set_ending, frames)

    def count_rejection(self, reason: str) -> None:
        """Count a result that was dropped before ingestion. Raises redis.RedisError."""
        self._runs.count_rejections({reason: 1})

    def _verify(self, item: _IncomingFrame) -> None:
        """Verify the signature, and set sender and message. Raises MessageRejectedError."""
        try:
            item.key_id, result = verify(item.frame, self._secret)
        except SchemaMismatchError as error:
            # Record the agent's version, so that users see an outdated agent instead of missing results.
            item.cluster, item.key_id, item.message = error.cluster, error.key_id, error
            item.versions = error.schema_version, error.version
        else:
            item.cluster, item.message = result.cluster, result
            item.versions = result.v, result.version

    def _authorise(self, records: _RegistryRecords, item: _IncomingFrame) -> None:
        """Raise MessageRejectedError unless the hub accepts the sender and its key."""
        cluster = records.clusters.get(item.cluster)
        if cluster is None:
            raise MessageRejectedError("unknown_cluster", f"the hub has not accepted a cluster {item.cluster}")
        if item.key_id not in cluster.key_ids:
            raise MessageRejectedError(
                "bad_signature", f"signed with the withdrawn key {item.key_id} of {item.cluster}"
            )

    def _match(self, records: _RegistryRecords, item: _IncomingFrame) -> None:
        """Set the result and its scorer. Raises MessageRejectedError."""
        if isinstance(item.message, SchemaMismatchError):
            raise item.message
        scorer = records.scorers.get(item.message.scorer)
        if scorer is None:
            # The scorer was deleted during the run. The sweeper removes the run with it.
            raise MessageRejectedError("stale", f"scorer {item.message.scorer} no longer exists")
        item.result, item.scorer = item.message, scorer

    def _store_agents(self, authorised_frames: Iterable[_IncomingFrame]) -> None:
        """Store the versions and key ids of senders, if they changed or were stored 30 s ago."""
        changed_agents: dict[str, tuple[_Versions, int]] = {}
        for item in authorised_frames:
            stored_id, stored_versions, refresh_at = self._stored_agents.get(item.cluster, (0, None, 0.0))
            if item.key_id > stored_id or item.versions != stored_versions or time.monotonic() >= refresh_at:
                # Keep the newest id, for which a rotation waits: results signed with the old key may arrive later.
                newest_id = max(
                    item.key_id, stored_id, changed_agents[item.cluster][1] if item.cluster in changed_agents else 0
                )
                changed_agents[item.cluster] = item.versions, newest_id
        if not changed_agents:
            return
        self._agents.write_all(
            {
                name: (AgentRecord(schema_version=schema, version=version), key_id)
                for name, ((schema, version), key_id) in changed_agents.items()
            }
        )
        # The periodic refresh restores versions that Redis lost.
        refresh_at = time.monotonic() + 30.0
        self._stored_agents |= {
            name: (key_id, versions, refresh_at) for name, (versions, key_id) in changed_agents.items()
        }

    def _log_refusal(self, reason: str, frame: bytes, text: str, **context: str) -> None:
        not_logged = self._throttle.take(reason)
        if not_logged is None:
            return
        # Do not log the payload, which is untrusted and may be long.
        log.warning(
            "result refused",
            reason=reason,
            cluster=parse_claimed_cluster(frame),
            why=text[:500],
            not_logged=not_logged,
            **context,
        )


class _RegistryRecords(NamedTuple):
    """Records of the senders and scorers of a batch by name, and overrides by target."""

    clusters: dict[str, ClusterRecord]
    scorers: dict[str, ScorerRecord]
    overrides: dict[str, ScheduleOverride]
    #: Factor that extends every validity.
    factor: float


def _read_registry(client: redis.Redis, verified_frames: Collection[_IncomingFrame]) -> _RegistryRecords:
    """Read the records in one round trip. Raises redis.RedisError if Redis is unreachable."""
    results = [item.message for item in verified_frames if isinstance(item.message, Result)]
    names: dict[str, list[str]] = {
        keys.CLUSTERS: list({item.cluster for item in verified_frames}),
        keys.SCORERS: list({result.scorer for result in results}),
        keys.OVERRIDES: list({target for result in results for target in list_targets(result.scorer, result.cluster)}),
    }
    with client.pipeline(transaction=False) as pipe:
        for key, requested_names in names.items():
            # HMGET needs at least one field. "" is never a valid name.
            pipe.hmget(key, requested_names or [""])
        pipe.hget(keys.WRITE_STATS, VALIDITY_FACTOR_FIELD)
        *texts, factor = pipe.execute()
    clusters, scorers, overrides = (
        dict(zip(names[key], row, strict=False)) for key, row in zip(names, texts, strict=True)
    )
    return _RegistryRecords(
        parse_all_stored(ClusterRecord, clusters),
        parse_all_stored(ScorerRecord, scorers),
        parse_all_stored(ScheduleOverride, overrides),
        parse_validity_factor(factor),
    )


def read_master_secret(settings: Settings) -> bytes:
    """Return the hub's master secret. Raises SettingsError if it is missing, too short or not hexadecimal."""
    text = settings.resolved_signing_secret()
    if not text:
        raise SettingsError(
            "DSF_SIGNING_SECRET or DSF_SIGNING_SECRET_FILE: not set; results cannot be verified without the hub's "
            "master secret, which the controller creates at its first start"
        )
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < _MIN_SECRET_BYTES:
        raise SettingsError(f"DSF_SIGNING_SECRET: at least {2 * _MIN_SECRET_BYTES} hexadecimal digits are needed")
    return secret
