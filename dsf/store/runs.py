"""How runs end: with a result, or lost.

The sender of its tick opens a run. Each method here is one Lua script, so that a crash between two steps, a duplicate
message or a second worker never unbalances the books.
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
from dsf.store.client import at_once, batched, lua
from dsf.store.history import HistoryEntry
from dsf.store.pairs import EXPIRED_THRESHOLD, PairFailure, PairScore
from dsf.store.registry import Registry, ScorerRecord

# Key prefixes of pair hashes and histories.
_PREFIXES = keys.pair_key("", "").removesuffix("/"), keys.history_key("", "").removesuffix("/")
#: Cycles kept per pair for `dsf history`.
HISTORY_LENGTH: Final = 50
# Runs declared lost, or pairs, per script call: it blocks Redis for other clients.
_BATCH = 500
# Results per script call, for the same reason.
_ENDED_AT_ONCE = 300
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
#: Outcome of a score that would exceed the bytes of its namespace: nothing is written, and its run stays open.
NO_ROOM: Final = "no_room"

log = dsf.log.get(__name__)


class Ending(NamedTuple):
    """The outcome of one result, ready for the books."""

    cluster: str
    scorer: str
    run: str
    #: ok, empty, partial, error, skipped or lost. Only a run that is still open can be lost.
    outcome: str
    history: HistoryEntry
    #: Errors and lost runs only.
    failure: PairFailure | None = None
    #: Why its score has no items, or not all; successes only.
    remark: PairFailure | None = None
    #: Successes only.
    score: PairScore | None = None
    #: Digest of the score to write; equal digests need no write.
    digest: str = ""
    #: If set, only a run that the hub is waiting for may end so; others are refused with this reason.
    refusal: str = ""
    #: Consecutive failed cycles after which another value is to be written; 0: never.
    failure_threshold: int = 0
    #: Whether the score is to be written as an object.
    is_written: bool = True
    #: The scorer's namespace, and the bytes that its scores may take in Redis; 0: any number.
    namespace: str = ""
    room: int = 0
    #: Counters of the pair hash (names without spaces) and their increments.
    counters: Mapping[str, float] = MappingProxyType({})


class Runs:
    """Ends runs. Methods raise redis.RedisError if Redis is unreachable; they may then be repeated."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._ingest = client.register_script(lua("ingest"))
        self._forget = client.register_script(lua("forget"))

    def end_all(self, endings: Sequence[Ending], *, now: float) -> list[str | redis.ResponseError]:
        """Close the books of runs, of a pair in their order, and store the state and score of each that is its pair's
        newest.

        The call needs one round trip for all pairs, and one more for each further ending of a pair. Returns for each of
        `endings` its outcome; NO_ROOM if nothing was stored because the scores of its namespace take their bytes;
        `late` if it had been declared lost (its score counts, the books stay); `replayed` or `stale` if it was refused;
        `removed` if the pair no longer exists; `ended` for a lost run that is not open any more. An error of Redis for
        one ending is in its place and does not affect the others; an error for all is raised.
        """
        outcomes: dict[int, str | redis.ResponseError] = {}
        for numbers in _by_turn(endings):
            arguments: list[str | int] = [f"{now:.6f}", HISTORY_LENGTH, _PREFIXES[1], EXPIRED_THRESHOLD]
            arguments += [_document(endings[number]) for number in numbers]
            answers: list[Any] = self._ingest(keys=_INGEST_KEYS, args=arguments)
            for number, answer in zip(numbers, answers, strict=True):
                is_error = isinstance(answer, redis.ResponseError)
                outcomes[number] = answer if is_error else str(answer)
        return [outcomes[number] for number in range(len(endings))]

    def refuse(self, rejection_counts: Mapping[str, int]) -> None:
        """Count results refused before their run was known, by reason."""
        if rejection_counts:
            at_once(
                self._redis,
                *(("HINCRBY", keys.REJECTED, reason, number) for reason, number in rejection_counts.items()),
            )

    def sweep(self, *, now: float, lost_after: float) -> tuple[list[str], bool]:
        """Declare runs lost whose deadline passed `lost_after` seconds ago.

        While a result waits in their cluster's mailbox, which could be theirs, only those a minute later than that.
        Returns the runs as `<pair>/<run id>`, and whether there may be more.
        """
        # A lost run is remembered for that long, so that its late result is recognised.
        self._redis.zremrangebyscore(keys.LOST_RUNS, "-inf", now - 3600)
        overdue: Any = self._redis.zrangebyscore(
            keys.OPEN_RUNS, "-inf", now - lost_after, start=0, num=_BATCH, withscores=True
        )
        has_mail = self._has_mail({keys.split_pair(member)[0] for member, _ in overdue})
        # A waiting message may be the missing result; but the wait is bounded, should somebody keep putting things
        # there.
        overdue_members = [
            member
            for member, deadline in overdue
            if not has_mail[keys.split_pair(member)[0]] or deadline <= now - lost_after - 60
        ]
        scorers = Registry(self._redis).scorers() if overdue_members else {}
        endings = {member: ending for member in overdue_members if (ending := _lost(member, scorers, now)) is not None}
        answers = dict(zip(endings, self.end_all(list(endings.values()), now=now), strict=True))
        spoilt = [member for member in overdue_members if not isinstance(answers.get(member), str)]
        if spoilt:
            # Members that are no run, and those of pairs whose data is spoilt, have no books and must not stop the
            # others.
            self._redis.zrem(keys.OPEN_RUNS, *spoilt)
        # The other runs may have ended meanwhile, and those of removed pairs are just forgotten.
        lost = [member for member, answer in answers.items() if not isinstance(answer, str) or answer == "lost"]
        return lost, len(overdue) == _BATCH

    def _has_mail(self, clusters: Collection[str]) -> dict[str, bool]:
        """True if results wait in the mailboxes of these clusters."""
        with self._redis.pipeline(transaction=False) as pipe:
            for cluster in clusters:
                pipe.exists(*keys.mail_slots(cluster))
            return {cluster: bool(count) for cluster, count in zip(clusters, pipe.execute(), strict=True)}

    def leftovers(self) -> set[str]:
        """Pairs formerly in the schedule that may still have data."""
        scheduled = {str(pair) for pair in self._redis.hkeys(keys.ENTRIES)}
        return {str(pair) for pair in self._redis.zrange(keys.CHANGED, 0, -1)} - scheduled

    def forget(self, pairs: Iterable[str]) -> list[str]:
        """Remove state, books and history of these pairs unless they are in the schedule.

        Returns those that had data. The hub controller does this on removing a pair, but may die in between.
        """
        # Data that ends with a pair.
        by_pair = keys.ROWS, keys.SKIPS, keys.UNWRITTEN
        forgotten: list[str] = []
        for batch in batched(sorted(pairs), _BATCH):
            answer: list[object] = self._forget(
                keys=[keys.ENTRIES, keys.SCORE_BYTES], args=[*_PREFIXES, len(by_pair), *by_pair, *batch]
            )
            forgotten += [str(pair) for pair in answer]
        return forgotten

    def forget_lags(self) -> None:
        """Remove beat's counters of removed scorers."""
        scorer_names = {str(name) for name in self._redis.hkeys(keys.SCORERS)}
        fields = [str(name) for name in self._redis.hkeys(keys.BEAT_LAGS)]
        if obsolete_fields := [field for field in fields if field.rpartition(":")[0] not in scorer_names]:
            self._redis.hdel(keys.BEAT_LAGS, *obsolete_fields)


def _lost(member: str, scorers: Mapping[str, ScorerRecord], now: float) -> Ending | None:
    """How a run ends of which nothing was heard; None if the member of OPEN_RUNS names no run."""
    pair, _, run = member.rpartition("/")
    cluster, scorer = keys.split_pair(pair)
    if not (scorer and is_run_id(run)):
        return None
    message = (
        f"sent to the queue of {cluster} and nothing was heard of it in time; check that the agent of {cluster} runs "
        f"and reaches Redis, and what its log says of run {run}"
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


def _by_turn(endings: Sequence[Ending]) -> Iterable[list[int]]:
    """The numbers of the endings for each call of the script: a pair is in a call once, as its state is read before
    anything is written."""
    turns: list[list[int]] = []
    of_pair: Counter[tuple[str, str]] = Counter()
    for number, ending in enumerate(endings):
        pair = ending.cluster, ending.scorer
        if of_pair[pair] == len(turns):
            turns.append([])
        turns[of_pair[pair]].append(number)
        of_pair[pair] += 1
    # A script call blocks Redis for other clients.
    return [part for turn in turns for part in batched(turn, _ENDED_AT_ONCE)]


def _document(ending: Ending) -> str:
    """The JSON object of one result for the script, which describes it."""
    score, history = ending.score, ending.history
    document: dict[str, object] = {
        "pair": keys.pair(ending.cluster, ending.scorer),
        "scorer": ending.scorer,
        "run": ending.run,
        "outcome": ending.outcome,
        "row": history.row(),
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


# Made once: `json.dumps` would make one for each result.
_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
