"""Ingestion of results: sender verification, validation, bookkeeping."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import redis

import dsf.log
from dsf import keys
from dsf.errors import MessageRejectedError, SchemaMismatchError, SettingsError
from dsf.messages import Result, verify
from dsf.process import tracing
from dsf.results.ending import ending_of
from dsf.results.holding import Published
from dsf.settings import Settings
from dsf.store.agents import AgentRecord, Agents
from dsf.store.client import parsed
from dsf.store.entries import interval_in_force, overrides_at, targets_of
from dsf.store.registry import ClusterRecord, ScorerRecord
from dsf.store.runs import Ending, Runs
from dsf.store.writes import VALIDITY_FACTOR, read_factor

#: Return values of `Ingest.handle` for refused results; each is counted.
REFUSED = ("bad_signature", "replayed", "stale", "unknown_cluster", "malformed", "removed")

_WHY = {
    "replayed": "this run has ended before",
    "removed": "this scorer does not run on this cluster any more",
}
_LEAST_SECRET = 16
#: Max. seconds until a registry change is seen.
REGISTRY_AGE = 1.0

# Versions of an agent's messages and software.
_Versions = tuple[int, str]

log = dsf.log.get(__name__)


class Ingest:
    """Handles results, concurrently in any number of threads and processes.

    `clock` gives unix seconds; `on_change` is called when a writer must check some pair now.
    """

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._secret = master_secret(settings)
        self._redis = client
        self._registry = RegistryCache(client)
        self._runs = Runs(client)
        self._clock = clock
        self._on_change = on_change
        # A flood of forged results must not fill the disk with log lines.
        self._throttle = dsf.log.Throttle()
        self._agents = Agents(client)
        # Cluster -> newest key id used, its agent's versions, and until when these need not be stored again.
        self._noted: dict[str, tuple[int, _Versions, float]] = {}

    def handle(self, envelope: object) -> str:
        """Ingest one envelope; returns what became of it.

        The outcome (ok, empty, partial, error, skipped), `late` for the result of a run that was declared lost, or one
        of REFUSED. Handling the same envelope again changes nothing. Never raises because of an envelope's content;
        raises redis.RedisError if Redis is unreachable, and may then be called again.
        """
        (answer,) = self.handle_all([envelope])
        if isinstance(answer, redis.ResponseError):
            raise answer
        return answer

    def handle_all(self, envelopes: Sequence[object]) -> list[str | redis.ResponseError]:
        """Ingest several envelopes in order, as if one by one, in one round trip.

        Returns for each what `handle` would return, or Redis' error. Raises redis.RedisError if Redis is unreachable;
        all may then be handled again.
        """
        now = self._clock()
        factor = self._registry.validity_factor()
        answers: dict[int, str | redis.ResponseError] = {}
        results: dict[int, tuple[Result, ScorerRecord]] = {}
        refused: Counter[str] = Counter()
        news: dict[str, tuple[_Versions, int]] = {}
        for number, envelope in enumerate(envelopes):
            try:
                results[number] = self._examine(envelope, news)
            except MessageRejectedError as error:
                refused[error.reason] += 1
                answers[number] = error.reason
                self._log(error.reason, envelope, str(error))
            except redis.RedisError:
                raise
            except Exception:
                # A mistake of ours must not keep this result, and those behind it, waiting for ever.
                log.exception("result dropped")
                refused["malformed"] += 1
                answers[number] = "malformed"
        self._note(news)
        intervals = self._intervals([result for result, _ in results.values()])
        endings = self._endings(results, intervals, now, factor)
        ended = self._runs.end_all(
            list(endings.values()),
            refused=refused,
            now=now,
        )
        changed = False
        for (number, ending), answer in zip(endings.items(), ended, strict=True):
            if isinstance(answer, redis.ResponseError):
                answers[number] = answer
                continue
            answers[number] = outcome = answer[0]
            changed = changed or answer[1]
            run = keys.run_member(ending.cluster, ending.scorer, ending.run)
            tracing.ingested(run, ending.outcome, now, self._clock())
            if outcome in REFUSED:
                why = _WHY.get(outcome, ending.history.message)
                self._log(outcome, envelopes[number], why, scorer=ending.scorer, run=ending.run)
        if changed:
            self._on_change()
        return [answers[number] for number in range(len(envelopes))]

    def _endings(
        self,
        results: dict[int, tuple[Result, ScorerRecord]],
        intervals: Sequence[int | None],
        now: float,
        factor: float,
    ) -> dict[int, Ending]:
        """The endings of results by their number, in their order."""
        holding = [each for each in results.values() if each[1].hold is not None]
        published = Published(self._redis, holding, now=now) if holding else None
        made: dict[int, Ending] = {}
        # By run: a mailbox gives the results of a pair in any order, and each is held against the one before.
        for (number, (result, scorer)), interval in sorted(
            zip(results.items(), intervals, strict=True), key=lambda one: one[0][1][0].run
        ):
            before = published.before(result) if published else None
            made[number] = ending = ending_of(
                result, scorer, now=now, factor=factor, interval=interval, published=before
            )
            if published:
                published.replace(result.cluster, scorer, ending.score)
        return {number: made[number] for number in results}

    def _intervals(self, results: Sequence[Result]) -> list[int | None]:
        """The intervals that users set for the pairs of these results; None for those without."""
        pairs = [(result.scorer, result.cluster) for result in results]
        overrides = overrides_at(self._redis, {name for pair in pairs for name in targets_of(*pair)})
        return [interval_in_force(*pair, 0, overrides) or None for pair in pairs]

    def refuse(self, reason: str) -> None:
        """Count a result dropped without ingestion. Raises redis.RedisError."""
        self._runs.refuse({reason: 1})

    def _examine(self, envelope: object, news: dict[str, tuple[_Versions, int]]) -> tuple[Result, ScorerRecord]:
        """The result and its scorer; adds its sender's data to `news`. Raises MessageRejectedError."""
        try:
            result = verify(envelope, self._secret)
        except SchemaMismatchError as error:
            # Its agent is reported: else users would suspect a lossy network.
            self._sender(error.cluster, error.key_id, (error.schema_version, error.version), news)
            raise
        except (ValueError, RecursionError) as error:
            # A lone surrogate, or nesting too deep for the parser.
            raise MessageRejectedError("malformed", f"not readable: {type(error).__name__}") from None
        key_id = envelope["kid"] if isinstance(envelope, dict) else 0
        self._sender(result.cluster, key_id, (result.v, result.version), news)
        scorer = self._registry.scorer(result.scorer)
        if scorer is None:
            # Its scorer was deleted meanwhile. The sweeper forgets the run with it.
            raise MessageRejectedError("stale", f"no scorer {result.scorer} runs any more")
        return result, scorer

    def _sender(self, name: str, key_id: int, versions: _Versions, news: dict[str, tuple[_Versions, int]]) -> None:
        """Check that a cluster may send with this key; adds to `news`. Raises MessageRejectedError."""
        cluster = self._registry.cluster(name)
        if cluster is None:
            raise MessageRejectedError("unknown_cluster", f"the hub has not accepted a cluster {name}")
        if key_id not in cluster.key_ids:
            raise MessageRejectedError("bad_signature", f"signed with the withdrawn key {key_id} of {name}")
        noted_id, noted, until = self._noted.get(name, (0, None, 0.0))
        if key_id <= noted_id and versions == noted and time.monotonic() < until:
            return
        # A rotation waits for the new key; a result signed with the old one may come later.
        news[name] = versions, max(key_id, noted_id, news[name][1] if name in news else 0)

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

    def _log(self, reason: str, envelope: object, why: str, **context: str) -> None:
        not_logged = self._throttle.take(reason)
        if not_logged is None:
            return
        claimed = envelope.get("cluster") if isinstance(envelope, dict) else None
        # Never the payload: it is foreign and may be long.
        log.warning(
            "result refused", reason=reason, cluster=str(claimed)[:253], why=why[:500], not_logged=not_logged, **context
        )


class RegistryCache:
    """Scorers and clusters by name: at most a second old, without a round trip per result.

    Methods raise redis.RedisError if Redis is unreachable.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._lock = threading.Lock()
        #: By key, the texts by name. Replaced as a whole: readers hold no lock.
        self._texts: dict[str, dict[str, str]] = {keys.SCORERS: {}, keys.CLUSTERS: {}}
        self._factor = 1.0
        self._read_at = float("-inf")

    def scorer(self, name: str) -> ScorerRecord | None:
        """The scorer of this name, or None. A new one is found at once."""
        record: ScorerRecord | None = _record(ScorerRecord, name, self._text(keys.SCORERS, name))
        return record

    def cluster(self, name: str) -> ClusterRecord | None:
        """The cluster of this name, or None. A new one is found at once."""
        record: ClusterRecord | None = _record(ClusterRecord, name, self._text(keys.CLUSTERS, name))
        return record

    def validity_factor(self) -> float:
        """Current extension factor of validities."""
        self._refresh()
        return self._factor

    def _text(self, key: str, name: str) -> str | None:
        self._refresh()
        text = self._texts[key].get(name)
        # Its first result may come within that second; refusing it would delay the first score by a cycle.
        return self._redis.hget(key, name) if text is None else text  # type: ignore[return-value]

    def _refresh(self) -> None:
        if time.monotonic() - self._read_at < REGISTRY_AGE:
            return
        with self._lock:
            # Another thread may have been faster.
            if time.monotonic() - self._read_at < REGISTRY_AGE:
                return
            # Whole tables: one round trip a second for the fleet instead of one per cluster.
            with self._redis.pipeline(transaction=False) as pipe:
                for key in self._texts:
                    pipe.hgetall(key)
                pipe.hget(keys.WRITE_STATS, VALIDITY_FACTOR)
                *tables, factor = pipe.execute()
            self._texts = dict(zip(self._texts, tables, strict=True))
            self._factor = read_factor(factor)
            self._read_at = time.monotonic()


@functools.lru_cache(maxsize=16_384)
def _record(model: type[Any], name: str, text: str | None) -> Any:
    """Only changes are parsed: a fleet has thousands of clusters."""
    return parsed(model, name, text)


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
