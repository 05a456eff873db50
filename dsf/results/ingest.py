"""Ingestion of results: sender verification, validation, bookkeeping."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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


class _Message(NamedTuple):
    """A validly signed message: its sender, and the result in it or why it cannot be read."""

    cluster: str
    key_id: int
    versions: _Versions
    result: Result | SchemaMismatchError


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
        answers: dict[int, str | redis.ResponseError] = {}
        refused: Counter[str] = Counter()

        @contextmanager
        def refusing(number: int) -> Iterator[None]:
            try:
                yield
            except MessageRejectedError as error:
                answers[number] = error.reason
                self._log(error.reason, frames[number], str(error))
            except Exception:
                # A mistake of ours must not keep this result, and those behind it, waiting for ever.
                log.exception("result dropped")
                answers[number] = "malformed"
            if number in answers:
                refused[str(answers[number])] += 1

        messages: dict[int, _Message] = {}
        for number, frame in enumerate(frames):
            with refusing(number):
                messages[number] = self._verified(frame)
        registered = _registered(self._redis, messages.values())
        results: dict[int, tuple[Result, ScorerRecord]] = {}
        news: dict[str, tuple[_Versions, int]] = {}
        for number, message in messages.items():
            with refusing(number):
                results[number] = self._examined(message, registered, news)
        self._note(news)
        self._correct_times(results, now)
        endings = self._endings(results, registered, now, refusing)
        ended = self._runs.end_all(list(endings.values()), now=now)
        crowded = [number for number, answer in zip(endings, ended, strict=True) if answer == NO_ROOM]
        if crowded:
            endings |= {number: without_room(*results[number], now) for number in crowded}
            ended_now = dict(zip(endings, ended, strict=True))
            failed = self._runs.end_all([endings[number] for number in crowded], now=now)
            ended = list((ended_now | dict(zip(crowded, failed, strict=True))).values())
        self._runs.refuse(refused)
        answers |= dict(zip(endings, self._told(endings, ended, frames, now), strict=True))
        return [answers[number] for number in range(len(frames))]

    def _told(
        self,
        endings: Mapping[int, Ending],
        ended: Sequence[str | redis.ResponseError],
        frames: Sequence[bytes],
        now: float,
    ) -> Iterator[str | redis.ResponseError]:
        """Trace and log the outcome of these endings, and yield it."""
        for (number, ending), answer in zip(endings.items(), ended, strict=True):
            if isinstance(answer, redis.ResponseError):
                yield answer
                continue
            outcome = answer
            run = keys.run_member(ending.cluster, ending.scorer, ending.run)
            tracing.ingested(run, ending.outcome, now, self._clock())
            if outcome in REFUSED:
                why = _WHY.get(outcome, ending.history.message)
                self._log(outcome, frames[number], why, scorer=ending.scorer, run=ending.run)
            yield outcome

    def _correct_times(self, results: dict[int, tuple[Result, ScorerRecord]], now: float) -> None:
        """Read times of agents that agree with this machine against Redis as this machine's, and report on which side
        each agent is: with no third clock nobody knows which of two is wrong."""
        offset = self._own_offset()
        if abs(offset) <= TOLERANCE:
            return
        sides: dict[str, float] = {}
        for number, (result, scorer) in results.items():
            if is_plausible(result, now):
                sides[result.cluster] = 0.0
                continue
            corrected = result.model_copy(update={"at": result.at + offset})
            if is_plausible(corrected, now):
                sides[result.cluster] = offset
                results[number] = corrected, scorer
        self._clock_reports.report_agents(sides, now)

    def _endings(
        self,
        results: dict[int, tuple[Result, ScorerRecord]],
        registered: _Registered,
        now: float,
        refusing: Callable[[int], AbstractContextManager[None]],
    ) -> dict[int, Ending]:
        """The endings of results by their number, in their order."""
        held = [(result, scorer) for result, scorer in results.values() if scorer.hold is not None]
        published = Published(self._redis, held, now=now) if held else None
        made: dict[int, Ending] = {}
        # By run: a mailbox gives the results of a pair in any order, and each is held against the one before.
        for number, (result, scorer) in sorted(results.items(), key=lambda one: one[1][0].run):
            with refusing(number):
                made[number] = ending = ending_of(
                    result,
                    scorer,
                    now=now,
                    factor=registered.factor,
                    interval=interval_in_force(result.scorer, result.cluster, 0, registered.overrides) or None,
                    published=published.before(result) if published is not None else None,
                )
                if published is not None:
                    published.replace(result.cluster, scorer, ending.score)
        return {number: made[number] for number in results if number in made}

    def refuse(self, reason: str) -> None:
        """Count a result dropped without ingestion. Raises redis.RedisError."""
        self._runs.refuse({reason: 1})

    def _verified(self, frame: bytes) -> _Message:
        """The message in a frame with a valid signature. Raises MessageRejectedError."""
        try:
            key_id, result = verify(frame, self._secret)
        except SchemaMismatchError as error:
            # Its agent is reported: else users would suspect a lossy network.
            return _Message(error.cluster, error.key_id, (error.schema_version, error.version), error)
        return _Message(result.cluster, key_id, (result.v, result.version), result)

    def _examined(
        self, message: _Message, registered: _Registered, news: dict[str, tuple[_Versions, int]]
    ) -> tuple[Result, ScorerRecord]:
        """The result and its scorer; adds its sender's data to `news`. Raises MessageRejectedError."""
        name, key_id, versions, result = message
        cluster = registered.clusters.get(name)
        if cluster is None:
            raise MessageRejectedError("unknown_cluster", f"the hub has not accepted a cluster {name}")
        if key_id not in cluster.key_ids:
            raise MessageRejectedError("bad_signature", f"signed with the withdrawn key {key_id} of {name}")
        noted_id, noted, until = self._noted.get(name, (0, None, 0.0))
        if key_id > noted_id or versions != noted or time.monotonic() >= until:
            # A rotation waits for the new key; a result signed with the old one may come later.
            news[name] = versions, max(key_id, noted_id, news[name][1] if name in news else 0)
        if isinstance(result, SchemaMismatchError):
            raise result
        scorer = registered.scorers.get(result.scorer)
        if scorer is None:
            # Its scorer was deleted meanwhile. The sweeper forgets the run with it.
            raise MessageRejectedError("stale", f"no scorer {result.scorer} runs any more")
        return result, scorer

    def _note(self, news: dict[str, tuple[_Versions, int]]) -> None:
        """Store versions for the hub."""
        if not news:
            return
        self._agents.note_all(
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


def _registered(client: redis.Redis, messages: Collection[_Message]) -> _Registered:
    """Read in one round trip. Raises redis.RedisError if Redis is unreachable."""
    results = [message.result for message in messages if isinstance(message.result, Result)]
    names: dict[str, list[str]] = {
        keys.CLUSTERS: list({message.cluster for message in messages}),
        keys.SCORERS: list({result.scorer for result in results}),
        keys.OVERRIDES: list({target for result in results for target in targets_of(result.scorer, result.cluster)}),
    }
    with client.pipeline(transaction=False) as pipe:
        for key, wanted in names.items():
            # The command takes no empty list; "" is nobody's name.
            pipe.hmget(key, wanted or [""])
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
