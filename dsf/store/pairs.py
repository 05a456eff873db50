"""State of one scorer on one cluster: its row, its counters and its latest score.

The row has the data that readers of the whole fleet need. It is a JSON object of texts in the hash `dsf.keys.ROWS`:

    last_success                       unix seconds of the newest successful cycle
    valid_until                        when its newest score expires
    items                              number of items of that score (results, if it goes to metrics only)
    value                              the number that represents the score: its item, or the mean of its items;
                                       absent if there is none
    remark                             JSON of a PairFailure: why the score has no items, or not all of its results;
                                       absent if all count
    failing                            consecutive failed cycles (errors and lost)
    failure                            JSON of the newest PairFailure; removed after a success
    expired, expired_run, expired_at   consecutive cycles expired in the queue, and the newest of them; removed after a
                                       cycle that ran

Skipped ticks are described in `dsf.store.ticks`. The hash `dsf.keys.pair_key(cluster, scorer)` has all other data:

    n:scheduled, n:ok, n:empty, n:partial, n:error, n:lost     counters
    n:skipped:<reason>                                         counter
    n:error:<stage>:<reason>                                   counter, sums up to n:error
    n:refused:<reason>, n:clamped                              counters of individual results
    n:held                                                     counter of items whose new value was held back
    t:<stage>:sum, t:<stage>:count                             seconds and number of timed stages
    last_run                                                   newest run id received (or declared lost)
    score                                                      JSON of the newest PairScore
    state_run, score_run                                       run that failing/failure and the score come from
    score_size, score_of                                       bytes of the score, and the namespace whose share they
                                                               use
    digest, changes                                            digest of the score, by which the writer recognises a
                                                               change, and the number of changes

The counters balance: scheduled = ok + empty + partial + error + skipped + lost + runs that are still open.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import redis
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import SchemaValidator, core_schema

from dsf import keys
from dsf.api.meta import LATEST
from dsf.api.scorerule import HeldValue
from dsf.reasons import WriteReason
from dsf.store.client import (
    log_unreadable,
    parse_all_stored,
    parse_counter,
    parse_number,
    parse_stored,
    split_by_size,
    split_into_batches,
)
from dsf.store.history import HistoryEntry, parse_row, parse_run_id
from dsf.store.ticks import SKIPS_THRESHOLD, Skips

OUTCOMES = ("ok", "empty", "partial", "error", "skipped", "lost")
#: Outcomes of cycles that have a score.
SUCCESSES = ("ok", "empty", "partial")

#: Number of consecutive expired cycles that explains a missing score. Fewer expired cycles may be chance.
EXPIRED_THRESHOLD = 3

_TIME_SCHEMA: Final = core_schema.float_schema(ge=0, le=LATEST, allow_inf_nan=False)
_COUNT_SCHEMA: Final = core_schema.int_schema(ge=0, le=int(LATEST))
_TEXT_SCHEMA: Final = core_schema.str_schema()
_make_field: Final = core_schema.typed_dict_field
#: Validates the fields of a row, in which numbers are texts. Other fields are dropped.
_ROW_VALIDATOR: Final = SchemaValidator(
    core_schema.typed_dict_schema(
        {
            "last_success": _make_field(_TIME_SCHEMA),
            "valid_until": _make_field(_TIME_SCHEMA),
            "items": _make_field(_COUNT_SCHEMA),
            "value": _make_field(core_schema.float_schema(allow_inf_nan=False)),
            "failing": _make_field(_COUNT_SCHEMA),
            "expired": _make_field(_COUNT_SCHEMA),
            "expired_run": _make_field(_TEXT_SCHEMA),
            "expired_at": _make_field(_TIME_SCHEMA),
            "failure_text": _make_field(_TEXT_SCHEMA, validation_alias="failure"),
            "remark_text": _make_field(_TEXT_SCHEMA, validation_alias="remark"),
        },
        total=False,
    )
)
_NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
#: Cluster and scorer.
Pair = tuple[str, str]
_UnixSeconds = Annotated[float, Field(ge=0, le=LATEST)]


class PairFailure(BaseModel):
    """The reason why the newest cycle of a pair failed, or why some of its results do not count.

    `at` is unix seconds by the hub's clock.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    stage: str
    reason: str
    message: str
    at: _UnixSeconds


class Unwritten(BaseModel):
    """The reason why the backend does not have the valid score of a pair. `since` is unix seconds."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: A value of `dsf.reasons.WriteReason`.
    reason: str
    message: str
    since: _UnixSeconds

    @property
    def is_upstream_score(self) -> bool:
        """True if the backend still has a score of the upstream agent. This is not a failure."""
        return self.reason == WriteReason.WRITTEN_BY_UPSTREAM


class PairScore(BaseModel):
    """The newest score of a pair, for the metrics and the AddOnPlacementScore.

    `results` has (labels, score as the API returned it), and `items` has (dimension, floored and clamped value). `at`
    is the time of measurement, and `valid_until` the time at which the score expires. Both are unix seconds.
    """

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    run: str
    score_name: str
    at: _UnixSeconds
    valid_until: _UnixSeconds
    results: list[tuple[dict[str, str], float]] = []
    items: list[tuple[str, int]] = []
    #: Item -> new value that `spec.execution.hold` withholds. `items` has the published value.
    held: dict[str, HeldValue] = {}


@dataclass(slots=True, eq=False)
class PairState:
    """Parsed state of a pair: the content of its row, and its hash if the caller requested it.

    Times are unix seconds. Missing counters are 0.
    """

    cluster: str
    scorer: str
    #: Fields of the pair's hash: its counters and its newest score; empty unless the caller requested them.
    hash_fields: Mapping[str, str] = field(default_factory=lambda: _NO_FIELDS)
    #: Time of the newest successful cycle, from which every displayed age is counted; None before the first one.
    last_success: float | None = None
    #: Time at which the newest score expires; 0 before the first score.
    valid_until: float = 0.0
    #: Number of items of the newest score; None if the row does not have it.
    items: int | None = None
    #: Number that represents the newest score: its only item, or the mean of its items; None without items.
    value: float | None = None
    #: Number of consecutive failed cycles.
    failing: int = 0
    #: Number of consecutive cycles that expired in the queue of the cluster, with run id and time of the newest one.
    expired: int = 0
    expired_run: str = ""
    expired_at: float = 0.0
    #: `failure` and `remark` as JSON.
    failure_text: str | None = None
    remark_text: str | None = None
    #: Reason why beat skips the ticks of the pair; None if beat sent the newest tick.
    skips: Skips | None = None
    #: `unwritten` as JSON.
    unwritten_text: str | None = None

    @property
    def pair(self) -> str:
        """Name of the pair: `<cluster>/<scorer>`."""
        return keys.pair(self.cluster, self.scorer)

    def count(self, outcome: str) -> int:
        """Return the number of cycles with this outcome. `scheduled` counts all cycles."""
        if outcome == "skipped":
            return sum(self.read_skip_counts().values())
        return self._read_counter(f"n:{outcome}")

    def read_skip_counts(self) -> dict[str, int]:
        """Return the number of skipped cycles by reason."""
        return self._read_counters("n:skipped:")

    def read_error_counts(self) -> dict[tuple[str, str], int]:
        """Return the number of failed cycles by (stage, reason)."""
        counts: dict[tuple[str, str], int] = {}
        for name, count in self._read_counters("n:error:").items():
            stage, _, reason = name.partition(":")
            counts[stage, reason] = count
        return counts

    def read_refusal_counts(self) -> dict[str, int]:
        """Return the number of refused results by reason."""
        return self._read_counters("n:refused:")

    @property
    def clamped(self) -> int:
        """Number of clamped values."""
        return self._read_counter("n:clamped")

    @property
    def held(self) -> int:
        """Number of withheld values of items. A value counts once per cycle."""
        return self._read_counter("n:held")

    def read_timings(self) -> dict[str, tuple[float, int]]:
        """Return stage -> (sum of seconds, number of measurements)."""
        return {
            stage: (
                parse_number("books", self.pair, self.hash_fields[f"t:{stage}:sum"]),
                self._read_counter(f"t:{stage}:count"),
            )
            for stage in ("fetch", "score", "publish")
            if f"t:{stage}:sum" in self.hash_fields
        }

    @property
    def scheduled(self) -> int:
        """Number of cycles that were due or requested."""
        return self._read_counter("n:scheduled")

    @property
    def open(self) -> int:
        """Number of runs that have not ended: the scheduled cycles without those that have an outcome."""
        return self.scheduled - sum(self.count(outcome) for outcome in OUTCOMES)

    @property
    def last_run(self) -> str:
        """Id of the newest received run; empty before the first one."""
        return self.hash_fields.get("last_run", "")

    @property
    def failure(self) -> PairFailure | None:
        """Failure of the newest cycle; None after a success."""
        return parse_stored(PairFailure, self.pair, self.failure_text)

    @property
    def current_failure(self) -> PairFailure | None:
        """Reason why the newest cycles have no score: they fail, or they expire in the queue; None if they have one."""
        if self.expired >= EXPIRED_THRESHOLD:
            message = (
                f"its cycles wait in the queue of {self.cluster} until the next one is due and are skipped: the agent "
                "was away or has more to do than it can; check that it runs, raise the interval or "
                "DSF_AGENT_CONCURRENCY, or find the scorer that takes its time (dsf history)"
            )
            return PairFailure(run=self.expired_run, stage="", reason="expired", message=message, at=self.expired_at)
        return self.failure if self.failing > 0 else None

    @property
    def is_failing(self) -> bool:
        """True if the newest cycles have no score, even if the stored reason has been removed."""
        return self.failing > 0 or self.expired >= EXPIRED_THRESHOLD

    @property
    def is_skipped(self) -> bool:
        """True after SKIPS_THRESHOLD consecutive skipped ticks."""
        return self.skips is not None and self.skips.ticks >= SKIPS_THRESHOLD

    @property
    def remark(self) -> PairFailure | None:
        """Reason why the newest score has no items, or why some results do not count; None if all results count."""
        return parse_stored(PairFailure, self.pair, self.remark_text)

    @property
    def unwritten(self) -> Unwritten | None:
        """Reason why the backend does not have the valid score; None if it has the score, or if there is no score."""
        cause = parse_stored(Unwritten, self.pair, self.unwritten_text)
        return None if cause is None or cause.is_upstream_score else cause

    @property
    def score_bytes(self) -> int:
        """Approximate text size of the newest score."""
        return len(self.hash_fields.get("score", ""))

    @property
    def score(self) -> PairScore | None:
        """Newest score, which may have expired; None before the first one."""
        return parse_stored(PairScore, self.pair, self.hash_fields.get("score"))

    def _read_counters(self, prefix: str) -> dict[str, int]:
        return {name[len(prefix) :]: self._read_counter(name) for name in self.hash_fields if name.startswith(prefix)}

    def _read_counter(self, name: str) -> int:
        return parse_counter("books", f"{self.pair} {name}", self.hash_fields.get(name))


def parse_row_fields(pair: str, text: str | None) -> dict[str, Any]:
    """Return the content of a pair's stored row as arguments of PairState.

    Return an empty dict for a missing or unreadable row, because the next result of the pair replaces the row.
    """
    if not text:
        return {}
    try:
        fields: dict[str, Any] = _ROW_VALIDATOR.validate_json(text)
    except ValidationError as error:
        log_unreadable("row", pair, hash(text), str(error.errors(include_url=False, include_input=False)[0]["msg"]))
        return {}
    return fields


#: Maximum bytes of the scores that one round trip reads. A score may have megabytes, and a pair of a scorer with large
#: scores is read together with others.
MAX_SCORE_BYTES_PER_BATCH: Final = 8 * 1024 * 1024
#: Maximum bytes of a score that is read although it is not needed, because omitting it takes another round trip.
_SMALL_SCORE_BYTES: Final = 16 * 1024
#: Assumed bytes of a score whose size is unknown.
_UNKNOWN_SCORE_BYTES: Final = 64 * 1024


def parse_score_size(text: str | None) -> int:
    """Return the bytes of a pair's score from the field `score_size` of its hash."""
    is_size = text is not None and text.isascii() and text.isdigit() and len(text) < 16
    return int(text) if is_size and text is not None else _UNKNOWN_SCORE_BYTES


class _HashRead(NamedTuple):
    """A hash to read, with or without the score."""

    key: str
    omits_score: bool


class Pairs:
    """Reads pairs from Redis. Methods raise redis.RedisError if Redis is unreachable."""

    #: Number of pairs that one round trip reads.
    _PAIRS_PER_BATCH = 200

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def list_names(self) -> list[tuple[str, str]]:
        """Return (cluster, scorer) of every entry of the schedule, sorted."""
        return sorted(keys.split_pair(str(member)) for member in self._redis.hkeys(keys.ENTRIES))

    def read_state(self, cluster: str, scorer: str) -> PairState:
        """Return the state of one pair."""
        [state] = self.read_states([(cluster, scorer)])
        return state

    def read_states(
        self, pairs: Iterable[Pair], needs_score: Callable[[Pair, int], bool] = lambda *_: True
    ) -> Iterator[PairState]:
        """Yield the states of these pairs, in the same order. Reads a batch of pairs at a time.

        `needs_score` gets each pair with a large score, and the bytes of the score; if it returns False, the score is
        omitted. A caller that keeps states or scores should keep only the needed parts, because a score may take
        megabytes.
        """
        return self._read(pairs, needs_score)

    def read_rows(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairState]:
        """Yield the states of these pairs without counters and score, because a score may take a megabyte."""
        return self._read(pairs, None)

    def _read(self, pairs: Iterable[Pair], needs_score: Callable[[Pair, int], bool] | None) -> Iterator[PairState]:
        """Yield the states of these pairs, without their hashes if `needs_score` is None."""
        for batch in split_into_batches(pairs, self._PAIRS_PER_BATCH):
            members = [keys.pair(*pair) for pair in batch]
            with self._redis.pipeline(transaction=False) as pipe:
                for key in (keys.ROWS, keys.SKIPS, keys.UNWRITTEN):
                    pipe.hmget(key, members)
                for pair in batch if needs_score is not None else ():
                    pipe.hget(keys.pair_key(*pair), "score_size")
                rows, skips, unwritten, *sizes = pipe.execute()
            all_hash_fields = (
                itertools.repeat(_NO_FIELDS) if needs_score is None else self._read_hashes(batch, sizes, needs_score)
            )
            for index, (pair, hash_fields) in enumerate(zip(batch, all_hash_fields, strict=False)):
                yield PairState(
                    *pair,
                    hash_fields=hash_fields,
                    **parse_row_fields(members[index], rows[index]),
                    skips=Skips.parse(pair[0], skips[index]),
                    unwritten_text=unwritten[index],
                )

    def _read_hashes(
        self, pairs: Sequence[Pair], sizes: Sequence[str | None], needs_score: Callable[[Pair, int], bool]
    ) -> Iterator[Mapping[str, str]]:
        """Yield the hashes of pairs whose scores have these sizes. One round trip reads a limited number of bytes."""
        reads: list[tuple[_HashRead, int]] = []
        for pair, size in zip(pairs, map(parse_score_size, sizes), strict=True):
            omits_score = size > _SMALL_SCORE_BYTES and not needs_score(pair, size)
            reads.append((_HashRead(keys.pair_key(*pair), omits_score), 0 if omits_score else size))
        for batch in split_by_size(reads, MAX_SCORE_BYTES_PER_BATCH):
            with self._redis.pipeline(transaction=False) as pipe:
                for read in batch:
                    (pipe.hkeys if read.omits_score else pipe.hgetall)(read.key)
                responses = pipe.execute()
                names_by_key = {
                    read.key: [name for name in response if name != "score"]
                    for read, response in zip(batch, responses, strict=True)
                    if read.omits_score and response
                }
                for key, names in names_by_key.items():
                    # HMGET needs at least one field.
                    pipe.hmget(key, names or ["score_size"])
                fields_by_key = {
                    key: {name: text for name, text in zip(names, texts, strict=False) if text is not None}
                    for (key, names), texts in zip(names_by_key.items(), pipe.execute(), strict=True)
                }
            for read, response in zip(batch, responses, strict=True):
                yield fields_by_key.get(read.key, _NO_FIELDS) if read.omits_score else response

    def read_unwritten(self) -> dict[str, Unwritten]:
        """Return pair -> reason for all pairs whose valid score is missing in the backend, sorted by pair.

        The dict includes pairs that are not scheduled.
        """
        texts: dict[str, str] = self._redis.hgetall(keys.UNWRITTEN)  # type: ignore[assignment]
        return parse_all_stored(Unwritten, dict(sorted(texts.items())))

    def read_history(self, cluster: str, scorer: str) -> list[HistoryEntry]:
        """Return the newest cycles of a pair, newest first. Rows of later versions are omitted."""
        rows: list[str] = self._redis.lrange(keys.history_key(cluster, scorer), 0, -1)  # type: ignore[assignment]
        return [entry for row in rows if (entry := parse_row(row)) is not None]

    def read_past_runs(self, pairs: Iterable[tuple[str, str]]) -> Iterator[list[str]]:
        """Yield the run ids of the newest cycles of each pair, newest first."""
        for batch in split_into_batches(pairs, self._PAIRS_PER_BATCH):
            with self._redis.pipeline(transaction=False) as pipe:
                for pair in batch:
                    pipe.lrange(keys.history_key(*pair), 0, -1)
                for rows in pipe.execute():
                    yield [run for row in rows if (run := parse_run_id(row))]
