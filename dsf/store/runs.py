"""Records the end of runs, with a result or as lost, in the counters, state, score and history of their pairs.

The sender of a tick opens the run. Each method of this module runs one Lua script, so that a crash between two steps, a
duplicate message or a second worker never unbalances the counters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import redis

import dsf.log
from dsf import keys
from dsf.messages import is_run_id, run_time
from dsf.store.client import load_lua, run_atomically, split_into_batches
from dsf.store.history import HistoryEntry
from dsf.store.pairs import EXPIRED_THRESHOLD, PairFailure, PairScore
from dsf.store.registry import Registry, ScorerRecord

# Prefixes of the keys of pairs and of their histories.
_PAIR_PREFIX, _HISTORY_PREFIX = (make_key("", "").removesuffix("/") for make_key in (keys.pair_key, keys.history_key))
#: Cycles kept per pair for `dsf history`.
HISTORY_LENGTH: Final = 50
# Maximum lost runs or pairs per script call, which blocks Redis for other clients.
_BATCH_SIZE = 500
# Maximum results per script call, for the same reason.
_MAX_RESULTS = 300
_INGEST_KEYS = (
    keys.OPEN_RUNS,
    keys.LOST_RUNS,
    keys.ENTRIES,
    keys.WRITES,
    keys.WRITES_WAKE,
    keys.REJECTED,
    keys.HUB_CHANGED,
    keys.HUB_WAKE,
    keys.SCORE_BYTES,
)
#: Outcome of a score that would exceed its namespace's share of bytes. The score is not stored, and the run stays open.
NO_ROOM: Final = "no_room"

log = dsf.log.get(__name__)


class Ending(NamedTuple):
    """The changes at the end of one run: to the counters, state, score and history of its pair."""

    cluster: str
    scorer: str
    run: str
    #: ok, empty, partial, error, skipped or lost. Only an open run can become lost.
    outcome: str
    history: HistoryEntry
    #: Set for errors and lost runs.
    failure: PairFailure | None = None
    #: Why a successful cycle has no items, or fewer items than results.
    remark: PairFailure | None = None
    #: Set for successful cycles.
    score: PairScore | None = None
    #: Digest of the score. A score with the digest of the previous one need not be written.
    digest: str = ""
    #: The reason with which the script refuses a run that is not open; empty to record such a run.
    refusal: str = ""
    #: Consecutive failed cycles after which whenFailing replaces the score; 0 never replaces it.
    failure_threshold: int = 0
    #: True if the score is published as an AddOnPlacementScore.
    is_written: bool = True
    #: The scorer's namespace, and the maximum bytes of its scores in Redis; 0 sets no limit.
    namespace: str = ""
    room: int = 0
    #: Counters of the pair hash (names without spaces) and their increments.
    counters: Mapping[str, float] = MappingProxyType({})


class Runs:
    """Ends runs and removes the data of deleted pairs.

    Methods raise redis.RedisError if Redis is unreachable, and may then be repeated.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._ingest_script = client.register_script(load_lua("ingest"))
        self._forget_script = client.register_script(load_lua("forget"))

    def end_all(self, endings: Sequence[Ending], *, now: float) -> list[str | redis.ResponseError]:
        """End runs in the order of `endings`, and store the state and score of each pair's newest run.

        The call needs one round trip for all pairs, and one more for each further ending of the same pair. Returns one
        outcome per ending:

        - its own outcome if it was recorded,
        - NO_ROOM if nothing was stored because the namespace has used its share of bytes,
        - `late` if the run had been declared lost (the score counts, the books do not change),
        - `replayed` or `stale` if it was refused,
        - `removed` if the pair no longer exists,
        - `ended` for a lost run that is no longer open,
        - Redis' error for this ending, which does not affect the others.
        """
        outcomes: dict[int, str | redis.ResponseError] = {}
        for numbers in _split_by_pair(endings):
            arguments: list[str | int] = [f"{now:.6f}", HISTORY_LENGTH, _HISTORY_PREFIX, EXPIRED_THRESHOLD]
            arguments += [_encode_ending(endings[number]) for number in numbers]
            responses: list[Any] = self._ingest_script(keys=_INGEST_KEYS, args=arguments)
            for number, response in zip(numbers, responses, strict=True):
                is_error = isinstance(response, redis.ResponseError)
                outcomes[number] = response if is_error else str(response)
        return [outcomes[number] for number in range(len(endings))]

    def count_rejections(self, rejection_counts: Mapping[str, int]) -> None:
        """Add to the counts of results that were refused before their run was known, by reason."""
        if rejection_counts:
            run_atomically(
                self._redis,
                *(("HINCRBY", keys.REJECTED, reason, number) for reason, number in rejection_counts.items()),
            )

    def sweep(self, *, now: float, lost_after: float) -> tuple[list[str], bool]:
        """Declare runs lost whose deadline passed `lost_after` seconds ago.

        While a result waits in the cluster's mailbox, its runs get another minute, because the result may belong to
        one of them. Returns the lost runs as `<pair>/<run id>`, and True if there may be more.
        """
        # Lost runs are stored for an hour, so that late results are recognised.
        self._redis.zremrangebyscore(keys.LOST_RUNS, "-inf", now - 3600)
        overdue_runs: Any = self._redis.zrangebyscore(
            keys.OPEN_RUNS, "-inf", now - lost_after, start=0, num=_BATCH_SIZE, withscores=True
        )
        has_mail = self._has_mail({keys.split_pair(member)[0] for member, _ in overdue_runs})
        # Grant the extra minute only once, so that an agent cannot keep its runs open by filling its mailbox.
        overdue_members = [
            member
            for member, deadline in overdue_runs
            if not has_mail[keys.split_pair(member)[0]] or deadline <= now - lost_after - 60
        ]
        scorers = Registry(self._redis).read_scorers() if overdue_members else {}
        endings = {
            member: ending
            for member in overdue_members
            if (ending := _make_lost_ending(member, scorers, now)) is not None
        }
        responses = dict(zip(endings, self.end_all(list(endings.values()), now=now), strict=True))
        damaged_members = [member for member in overdue_members if not isinstance(responses.get(member), str)]
        if damaged_members:
            # Remove members that are not runs, and runs of pairs with damaged data, because they cannot be counted.
            self._redis.zrem(keys.OPEN_RUNS, *damaged_members)
        # Do not report runs that have just ended or whose pair was removed.
        lost_runs = [
            member for member, response in responses.items() if not isinstance(response, str) or response == "lost"
        ]
        return lost_runs, len(overdue_runs) == _BATCH_SIZE

    def _has_mail(self, clusters: Collection[str]) -> dict[str, bool]:
        """Return for each cluster True if results wait in its mailbox."""
        with self._redis.pipeline(transaction=False) as pipe:
            for cluster in clusters:
                pipe.exists(*keys.mail_slots(cluster))
            return {cluster: bool(count) for cluster, count in zip(clusters, pipe.execute(), strict=True)}

    def find_leftovers(self) -> set[str]:
        """Return pairs that are no longer in the schedule, but may still have data."""
        scheduled_pairs = {str(pair) for pair in self._redis.hkeys(keys.ENTRIES)}
        return {str(pair) for pair in self._redis.zrange(keys.CHANGED, 0, -1)} - scheduled_pairs

    def forget(self, pairs: Iterable[str]) -> list[str]:
        """Remove state, books and history of pairs that are not in the schedule, and return the pairs that had data.

        The hub controller calls this method when it removes a pair. The sweeper repeats the call, because the
        controller may die first.
        """
        # Hashes with a field per pair.
        pair_hashes = keys.ROWS, keys.SKIPS, keys.UNWRITTEN
        forgotten_pairs: list[str] = []
        for batch in split_into_batches(sorted(pairs), _BATCH_SIZE):
            response: list[object] = self._forget_script(
                keys=[keys.ENTRIES, keys.SCORE_BYTES],
                args=[_PAIR_PREFIX, _HISTORY_PREFIX, len(pair_hashes), *pair_hashes, *batch],
            )
            forgotten_pairs += [str(pair) for pair in response]
        return forgotten_pairs

    def forget_lags(self) -> None:
        """Remove beat's lag counters of scorers that no longer exist."""
        scorer_names = {str(name) for name in self._redis.hkeys(keys.SCORERS)}
        fields = [str(name) for name in self._redis.hkeys(keys.BEAT_LAGS)]
        if obsolete_fields := [field for field in fields if field.rpartition(":")[0] not in scorer_names]:
            self._redis.hdel(keys.BEAT_LAGS, *obsolete_fields)


def _make_lost_ending(member: str, scorers: Mapping[str, ScorerRecord], now: float) -> Ending | None:
    """Return the ending of a run without a result, or None if the member of OPEN_RUNS is not a run."""
    pair, _, run = member.rpartition("/")
    cluster, scorer = keys.split_pair(pair)
    if not (scorer and is_run_id(run)):
        return None
    message = (
        f"sent to the queue of {cluster}, but no result arrived in time; check that the agent of {cluster} runs "
        f"and reaches Redis, and look for run {run} in its log"
    )
    record = scorers.get(scorer)
    return Ending(
        cluster=cluster,
        scorer=scorer,
        run=run,
        outcome="lost",
        history=HistoryEntry(run=run, at=run_time(run), outcome="lost", reason="lost", message=message),
        failure=PairFailure(run=run, stage="", reason="lost", message=message, at=now),
        failure_threshold=record.when_failing.threshold if record is not None else 0,
        is_written=record is not None and record.is_published,
        counters={"n:lost": 1},
    )


def _split_by_pair(endings: Sequence[Ending]) -> Iterable[list[int]]:
    """Return the indexes of the endings for each script call.

    A pair appears at most once per call, because the script reads all states before it writes.
    """
    calls: list[list[int]] = []
    calls_by_pair: Counter[tuple[str, str]] = Counter()
    for number, ending in enumerate(endings):
        pair = ending.cluster, ending.scorer
        if calls_by_pair[pair] == len(calls):
            calls.append([])
        calls[calls_by_pair[pair]].append(number)
        calls_by_pair[pair] += 1
    return [part for call in calls for part in split_into_batches(call, _MAX_RESULTS)]


def _encode_ending(ending: Ending) -> str:
    """Return the JSON object of one ending, as lua/ingest.lua describes it."""
    score, history = ending.score, ending.history
    document: dict[str, object] = {
        "pair": keys.pair(ending.cluster, ending.scorer),
        "scorer": ending.scorer,
        "run": ending.run,
        "outcome": ending.outcome,
        "row": history.dump(),
        "failure_threshold": ending.failure_threshold,
        "is_written": ending.is_written,
        "counters": dict(ending.counters),
        "has_expired": ending.outcome == "skipped" and history.reason in ("expired", "share_full"),
        "namespace": ending.namespace,
        "room": ending.room,
    }
    if ending.refusal:
        document["refusal"] = ending.refusal
    if ending.failure is not None:
        document["failure"] = ending.failure.model_dump_json()
    if score is not None:
        document |= {
            "score": score.model_dump_json(),
            "digest": ending.digest,
            "measured_at": f"{score.at:.6f}",
            "valid_until": f"{score.valid_until:.6f}",
            # A metrics-only score has results and no items.
            "items": len(score.items if ending.is_written else score.results),
        }
    if history.value is not None:
        document["value"] = f"{history.value:.6g}"
    if ending.remark is not None:
        document["remark"] = ending.remark.model_dump_json()
    return _json(document)


# Created once, because `json.dumps` would create an encoder per result.
_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
