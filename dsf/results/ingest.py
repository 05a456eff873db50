"""Ingestion of results: sender verification, validation, bookkeeping."""

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
from dsf.messages import Result, claimed_cluster, verify
from dsf.process import hubclock, tracing
from dsf.process.hubclock import TOLERANCE
from dsf.results.ending import ending_of, is_plausible, without_room
from dsf.results.hold import Published
from dsf.settings import Settings
from dsf.store.agents import AgentRecord, Agents
from dsf.store.client import parsed_all, read_factor
from dsf.store.clocks import ClockReports
from dsf.store.entries import ScheduleOverride, interval_in_force, targets_of
from dsf.store.registry import ClusterRecord, ScorerRecord
from dsf.store.runs import NO_ROOM, Ending, Runs
from dsf.store.writes import VALIDITY_FACTOR

#: Answers of `Ingest.handle_all` for refused results; each is counted.
REFUSED = ("bad_signature", "replayed", "stale", "unknown_cluster", "malformed", "removed")

_WHY = {
    "replayed": "this run has ended before",
    "removed": "this scorer does not run on this cluster any more",
}
_LEAST_SECRET = 16

# Versions of an agent's messages and software.
_Versions = tuple[int, str]


@dataclass(slots=True)
class _Incoming:
    """One frame on its way into the books. Each step sets what the next one needs, or refuses it with an answer."""

    frame: bytes
    #: What became of it; empty until that is decided.
    answer: str | redis.ResponseError = ""
    #: The sender, by the signature.
    cluster: str = field(init=False)
    key_id: int = field(init=False)
    versions: _Versions = field(init=False)
    #: The result, or why it cannot be read.
    message: Result | SchemaMismatchError = field(init=False)
    result: Result = field(init=False)
    scorer: ScorerRecord = field(init=False)
    ending: Ending = field(init=False)


log = dsf.log.get(__name__)


class Ingest:
    """Handles results, concurrently in any number of threads and processes.

    `clock` gives unix seconds by the hub's clock, `own_offset` the seconds to add to this machine's for them.
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
        self._secret = master_secret(settings)
        self._redis = client
        self._runs = Runs(client)
        self._clock = clock
        self._own_offset = own_offset
        self._clock_reports = ClockReports(client, settings)
        # A flood of forged results must not fill the disk with log lines.
        self._throttle = dsf.log.Throttle()
        self._agents = Agents(client)
        # Cluster -> newest key id used, its agent's versions, and until when these need not be stored again.
        self._noted: dict[str, tuple[int, _Versions, float]] = {}

    def handle_all(self, frames: Sequence[bytes]) -> list[str | redis.ResponseError]:
        """Ingest several frames in order, as if one by one, in two round trips.

        Returns for each what became of it: the outcome (ok, empty, partial, error, skipped), `late` for the result of a
        run that was declared lost, one of REFUSED, or Redis' error. Handling the same frame again changes nothing.
        Never raises because of a frame's content; raises redis.RedisError if Redis is unreachable, and all may then
        be handled again.
        """
        now = self._clock()
        incoming = [_Incoming(frame) for frame in frames]
        pending = self._accepted(self._verify, incoming)
        registered = _registered(self._redis, pending)
        pending = self._accepted(partial(self._authorise, registered), pending)
        self._note(pending)
        pending = self._accepted(partial(self._match, registered), pending)
        self._correct_times(pending, now)
        self._decide(pending, registered, now)
        rejection_counts = Counter(str(item.answer) for item in incoming if item.answer)
        pending = [item for item in pending if not item.answer]
        self._end(pending, now)
        crowded = [item for item in pending if item.answer == NO_ROOM]
        for item in crowded:
            item.ending = without_room(item.result, item.scorer, now)
        self._end(crowded, now)
        self._runs.refuse(rejection_counts)
        for item in pending:
            self._report(item, now)
        return [item.answer for item in incoming]

    def _accepted(self, step: Callable[[_Incoming], object], incoming: Iterable[_Incoming]) -> list[_Incoming]:
        """Apply a step to each; return those that it does not refuse."""
        accepted: list[_Incoming] = []
        for item in incoming:
            try:
                step(item)
                accepted.append(item)
            except MessageRejectedError as error:
                item.answer = error.reason
                self._log(error.reason, item.frame, str(error))
            except Exception:
                # A mistake of ours must not keep this result, and those behind it, waiting for ever.
                log.exception("result dropped")
                item.answer = "malformed"
        return accepted

    def _end(self, pending: Sequence[_Incoming], now: float) -> None:
        """Close the books of their runs, and set the answers."""
        endings = [item.ending for item in pending]
        for item, answer in zip(pending, self._runs.end_all(endings, now=now), strict=True):
            item.answer = answer

    def _report(self, item: _Incoming, now: float) -> None:
        """Trace and log the outcome."""
        if isinstance(item.answer, redis.ResponseError):
            return
        ending = item.ending
        run = keys.run_member(ending.cluster, ending.scorer, ending.run)
        tracing.ingested(run, ending.outcome, now, self._clock())
        if item.answer in REFUSED:
            why = _WHY.get(item.answer, ending.history.message)
            self._log(item.answer, item.frame, why, scorer=ending.scorer, run=ending.run)

    def _correct_times(self, pending: Sequence[_Incoming], now: float) -> None:
        """Read times of agents that agree with this machine against Redis as this machine's, and report on which side
        each agent is: with no third clock nobody knows which of two is wrong."""
        offset = self._own_offset()
        if abs(offset) <= TOLERANCE:
            return
        sides: dict[str, float] = {}
        for item in pending:
            if is_plausible(item.result, now):
                sides[item.cluster] = 0.0
                continue
            corrected = item.result.model_copy(update={"at": item.result.at + offset})
            if is_plausible(corrected, now):
                sides[item.cluster] = offset
                item.result = corrected
        self._clock_reports.report_agents(sides, now)

    def _decide(self, pending: Sequence[_Incoming], registered: _Registered, now: float) -> None:
        """Set the endings."""
        held_results = [(item.result, item.scorer) for item in pending if item.scorer.hold is not None]
        published = Published(self._redis, held_results, now=now) if held_results else None

        def decide(item: _Incoming) -> None:
            result = item.result
            item.ending = ending_of(
                result,
                item.scorer,
                now=now,
                factor=registered.factor,
                interval=interval_in_force(result.scorer, result.cluster, 0, registered.overrides) or None,
                published=published.before(result) if published is not None else None,
            )
            if published is not None:
                published.replace(result.cluster, item.scorer, item.ending.score)

        # By run: a mailbox gives the results of a pair in any order, and each is held against the one before.
        self._accepted(decide, sorted(pending, key=lambda item: item.result.run))

    def refuse(self, reason: str) -> None:
        """Count a result dropped without ingestion. Raises redis.RedisError."""
        self._runs.refuse({reason: 1})

    def _verify(self, item: _Incoming) -> None:
        """Set sender and message, if the signature is valid. Raises MessageRejectedError."""
        try:
            item.key_id, result = verify(item.frame, self._secret)
        except SchemaMismatchError as error:
            # Its agent is reported: else users would suspect a lossy network.
            item.cluster, item.key_id, item.message = error.cluster, error.key_id, error
            item.versions = error.schema_version, error.version
        else:
            item.cluster, item.message = result.cluster, result
            item.versions = result.v, result.version

    def _authorise(self, registered: _Registered, item: _Incoming) -> None:
        """Raises MessageRejectedError unless the hub accepts the sender and its key."""
        cluster = registered.clusters.get(item.cluster)
        if cluster is None:
            raise MessageRejectedError("unknown_cluster", f"the hub has not accepted a cluster {item.cluster}")
        if item.key_id not in cluster.key_ids:
            raise MessageRejectedError(
                "bad_signature", f"signed with the withdrawn key {item.key_id} of {item.cluster}"
            )

    def _match(self, registered: _Registered, item: _Incoming) -> None:
        """Set the result and its scorer. Raises MessageRejectedError."""
        if isinstance(item.message, SchemaMismatchError):
            raise item.message
        scorer = registered.scorers.get(item.message.scorer)
        if scorer is None:
            # Its scorer was deleted meanwhile. The sweeper forgets the run with it.
            raise MessageRejectedError("stale", f"no scorer {item.message.scorer} runs any more")
        item.result, item.scorer = item.message, scorer

    def _note(self, authorised: Iterable[_Incoming]) -> None:
        """Store the versions and keys of senders for the hub, where they are new or were stored some time ago."""
        news: dict[str, tuple[_Versions, int]] = {}
        for item in authorised:
            noted_id, noted, until = self._noted.get(item.cluster, (0, None, 0.0))
            if item.key_id > noted_id or item.versions != noted or time.monotonic() >= until:
                # A rotation waits for the new key; a result signed with the old one may come later.
                newest = max(item.key_id, noted_id, news[item.cluster][1] if item.cluster in news else 0)
                news[item.cluster] = item.versions, newest
        if not news:
            return
        self._agents.write_all(
            {
                name: (AgentRecord(schema_version=schema, version=version), key_id)
                for name, ((schema, version), key_id) in news.items()
            }
        )
        # Redis may lose the versions.
        until = time.monotonic() + 30.0
        self._noted |= {name: (key_id, versions, until) for name, (versions, key_id) in news.items()}

    def _log(self, reason: str, frame: bytes, why: str, **context: str) -> None:
        not_logged = self._throttle.take(reason)
        if not_logged is None:
            return
        # Never the payload: it is foreign and may be long.
        log.warning(
            "result refused",
            reason=reason,
            cluster=claimed_cluster(frame),
            why=why[:500],
            not_logged=not_logged,
            **context,
        )


class _Registered(NamedTuple):
    """Records in Redis of the senders and scorers of some messages, by name, and overrides by target."""

    clusters: dict[str, ClusterRecord]
    scorers: dict[str, ScorerRecord]
    overrides: dict[str, ScheduleOverride]
    #: Extends every validity.
    factor: float


def _registered(client: redis.Redis, verified: Collection[_Incoming]) -> _Registered:
    """Read in one round trip. Raises redis.RedisError if Redis is unreachable."""
    results = [item.message for item in verified if isinstance(item.message, Result)]
    names: dict[str, list[str]] = {
        keys.CLUSTERS: list({item.cluster for item in verified}),
        keys.SCORERS: list({result.scorer for result in results}),
        keys.OVERRIDES: list({target for result in results for target in targets_of(result.scorer, result.cluster)}),
    }
    with client.pipeline(transaction=False) as pipe:
        for key, requested_names in names.items():
            # The command takes no empty list; "" is no valid name.
            pipe.hmget(key, requested_names or [""])
        pipe.hget(keys.WRITE_STATS, VALIDITY_FACTOR)
        *texts, factor = pipe.execute()
    clusters, scorers, overrides = (
        dict(zip(names[key], row, strict=False)) for key, row in zip(names, texts, strict=True)
    )
    return _Registered(
        parsed_all(ClusterRecord, clusters),
        parsed_all(ScorerRecord, scorers),
        parsed_all(ScheduleOverride, overrides),
        read_factor(factor),
    )


def master_secret(settings: Settings) -> bytes:
    """The hub's master secret. Raises SettingsError if it is missing, too short or not hexadecimal."""
    text = settings.resolved_signing_secret()
    if not text:
        raise SettingsError(
            "DSF_SIGNING_SECRET or DSF_SIGNING_SECRET_FILE: without the hub's master secret no result can be checked; "
            "the hub controller makes it at its first start"
        )
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < _LEAST_SECRET:
        raise SettingsError(f"DSF_SIGNING_SECRET: at least {2 * _LEAST_SECRET} hexadecimal digits are needed")
    return secret
