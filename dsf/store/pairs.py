"""State of one scorer on one cluster: its row, its books and its latest score.

The row is what readers of the whole fleet need: a JSON object of texts in the hash `dsf.keys.ROWS`.

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

Ticks not sent by beat are in `dsf.store.ticks`. The hash `dsf.keys.pair_key(cluster, scorer)` has the rest:

    n:scheduled, n:ok, n:empty, n:partial, n:error, n:lost     counters
    n:skipped:<reason>                                         counter
    n:error:<stage>:<reason>                                   counter, sums up to n:error
    n:refused:<reason>, n:clamped                              counters of individual results
    n:held                                                     counter of items whose new value was held back
    t:<stage>:sum, t:<stage>:count                             seconds and number of timed stages
    last_run                                                   newest run id received (or declared lost)
    score                                                      JSON of the newest PairScore
    state_run, score_run                                       run that failing/failure and the score come from
    score_size, score_of                                       bytes of the score, and the namespace they count for
    digest, changes                                            of the score: what the writer compares, and how often
                                                               what should be written has changed

The books balance: scheduled = ok + empty + partial + error + skipped + lost + runs that are still open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final

import redis
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import SchemaValidator, core_schema

from dsf import keys
from dsf.api.meta import LATEST
from dsf.api.scorerule import HeldValue
from dsf.reasons import WriteReason
from dsf.store.client import batched, complain, number, parsed, parsed_all, whole
from dsf.store.history import HistoryEntry, read_row, run_of
from dsf.store.ticks import SKIPS_THRESHOLD, Skips

OUTCOMES = ("ok", "empty", "partial", "error", "skipped", "lost")
#: Outcomes with a score.
SUCCESSES = ("ok", "empty", "partial")

#: Consecutive cycles not taken in time by the agent from which this explains a missing score. Fewer may be chance.
EXPIRED_THRESHOLD = 3


_MOMENT: Final = core_schema.float_schema(ge=0, le=LATEST, allow_inf_nan=False)
_COUNT: Final = core_schema.int_schema(ge=0, le=int(LATEST))
_TEXT: Final = core_schema.str_schema()
_FIELD: Final = core_schema.typed_dict_field
#: The fields of a row, in which numbers are texts; all others are dropped.
_ROW: Final = SchemaValidator(
    core_schema.typed_dict_schema(
        {
            "last_success": _FIELD(_MOMENT),
            "valid_until": _FIELD(_MOMENT),
            "items": _FIELD(_COUNT),
            "value": _FIELD(core_schema.float_schema(allow_inf_nan=False)),
            "failing": _FIELD(_COUNT),
            "expired": _FIELD(_COUNT),
            "expired_run": _FIELD(_TEXT),
            "expired_at": _FIELD(_MOMENT),
            "failure_text": _FIELD(_TEXT, validation_alias="failure"),
            "remark_text": _FIELD(_TEXT, validation_alias="remark"),
        },
        total=False,
    )
)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_Moment = Annotated[float, Field(ge=0, le=LATEST)]


class PairFailure(BaseModel):
    """Why the newest cycle of a pair failed, or has not all of its results. `at` is unix seconds on the hub's clock."""

    model_config = ConfigDict(frozen=True)

    run: str
    stage: str
    reason: str
    message: str
    at: _Moment


class Unwritten(BaseModel):
    """Why the backend does not have a pair's valid score. `since` is unix seconds."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: A value of `dsf.reasons.WriteReason`.
    reason: str
    message: str
    since: _Moment

    @property
    def is_upstreams(self) -> bool:
        """True if the backend still has the score of the original project's agent, which is no failure."""
        return self.reason == WriteReason.WRITTEN_BY_UPSTREAM


class PairScore(BaseModel):
    """The newest score of a pair: what the metrics show and what the AddOnPlacementScore is made from.

    `results` are (labels, score as the API gave it), `items` (dimension, floored and clamped value).
    `at` is when it was measured, `valid_until` until when it may be used, both unix seconds.
    """

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    run: str
    score_name: str
    at: _Moment
    valid_until: _Moment
    results: list[tuple[dict[str, str], float]] = []
    items: list[tuple[str, int]] = []
    #: Values that `spec.execution.hold` keeps back, by item: the value in `items` is the published one.
    held: dict[str, HeldValue] = {}


@dataclass(slots=True, eq=False)
class PairState:
    """A pair, parsed: the content of its row, and its hash if that was read. Times are unix seconds; missing counters
    are 0."""

    cluster: str
    scorer: str
    #: Its hash: counters and the newest score.
    books: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    #: The newest successful cycle; None before the first. Every displayed age is counted from here.
    last_success: float | None = None
    #: End of its newest score's validity; 0 before the first.
    valid_until: float = 0.0
    #: Number of items of its newest score; None if not recorded.
    items: int | None = None
    #: The number that represents its newest score: its item, or the mean of its items; None without any.
    value: float | None = None
    #: Consecutive failed cycles.
    failing: int = 0
    #: Consecutive cycles that expired in the cluster's queue before its agent took them, and the newest of them.
    expired: int = 0
    expired_run: str = ""
    expired_at: float = 0.0
    #: JSON of `failure` and of `remark`.
    failure_text: str | None = None
    remark_text: str | None = None
    #: Why beat sends it no ticks now; None if it sent the newest one.
    skips: Skips | None = None
    #: JSON of `unwritten`.
    unwritten_text: str | None = None

    @property
    def pair(self) -> str:
        """`<cluster>/<scorer>`."""
        return keys.pair(self.cluster, self.scorer)

    def count(self, outcome: str) -> int:
        """Return the number of cycles with this outcome, or `scheduled`."""
        if outcome == "skipped":
            return sum(self.skipped().values())
        return self._whole(f"n:{outcome}")

    def skipped(self) -> dict[str, int]:
        """Skipped cycles by reason."""
        return self._by_prefix("n:skipped:")

    def errors(self) -> dict[tuple[str, str], int]:
        """Failed cycles by (stage, reason)."""
        counts: dict[tuple[str, str], int] = {}
        for name, count in self._by_prefix("n:error:").items():
            stage, _, reason = name.partition(":")
            counts[stage, reason] = count
        return counts

    def refused(self) -> dict[str, int]:
        """Individual results refused, by reason."""
        return self._by_prefix("n:refused:")

    @property
    def clamped(self) -> int:
        """Values that were clamped."""
        return self._whole("n:clamped")

    @property
    def held(self) -> int:
        """New values of items that were held back; each counts once a cycle."""
        return self._whole("n:held")

    def timings(self) -> dict[str, tuple[float, int]]:
        """Stage -> (sum of seconds, number)."""
        return {
            stage: (number("books", self.pair, self.books[f"t:{stage}:sum"]), self._whole(f"t:{stage}:count"))
            for stage in ("fetch", "score", "publish")
            if f"t:{stage}:sum" in self.books
        }

    @property
    def scheduled(self) -> int:
        """Cycles due or requested."""
        return self._whole("n:scheduled")

    @property
    def open(self) -> int:
        """Runs that have not ended yet: scheduled minus every outcome."""
        return self.scheduled - sum(self.count(outcome) for outcome in OUTCOMES)

    @property
    def last_run(self) -> str:
        """Newest run id received; empty before the first."""
        return self.books.get("last_run", "")

    @property
    def failure(self) -> PairFailure | None:
        """Why the newest cycle failed; None after a success."""
        return parsed(PairFailure, self.pair, self.failure_text)

    @property
    def trouble(self) -> PairFailure | None:
        """Why the newest cycles have no score: they fail, or the agent takes none in time. None if they have."""
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
        """True if its newest cycles have no score; also if the stored reason has been removed."""
        return self.failing > 0 or self.expired >= EXPIRED_THRESHOLD

    @property
    def is_skipped(self) -> bool:
        """True after SKIPS_THRESHOLD consecutive skipped ticks."""
        return self.skips is not None and self.skips.ticks >= SKIPS_THRESHOLD

    @property
    def remark(self) -> PairFailure | None:
        """Why the newest score has no items, or not all of its results; None if all count."""
        return parsed(PairFailure, self.pair, self.remark_text)

    @property
    def unwritten(self) -> Unwritten | None:
        """Why the backend does not have its valid score; None if it has, or if no cycle has brought one yet."""
        cause = parsed(Unwritten, self.pair, self.unwritten_text)
        return None if cause is None or cause.is_upstreams else cause

    @property
    def score_bytes(self) -> int:
        """Approximate text size of the newest score."""
        return len(self.books.get("score", ""))

    @property
    def score(self) -> PairScore | None:
        """The newest score, expired or not."""
        return parsed(PairScore, self.pair, self.books.get("score"))

    def _by_prefix(self, prefix: str) -> dict[str, int]:
        return {name[len(prefix) :]: self._whole(name) for name in self.books if name.startswith(prefix)}

    def _whole(self, name: str) -> int:
        return whole("books", f"{self.pair} {name}", self.books.get(name))


def row_fields(pair: str, text: str | None) -> dict[str, Any]:
    """Return the content of a pair's stored row as arguments of PairState; empty for a missing or unreadable row, which
    the pair's next result replaces."""
    if not text:
        return {}
    try:
        fields: dict[str, Any] = _ROW.validate_json(text)
    except ValidationError as error:
        complain("row", pair, hash(text), str(error.errors(include_url=False, include_input=False)[0]["msg"]))
        return {}
    return fields


class Pairs:
    """Reads pairs. Methods raise redis.RedisError if Redis is unreachable."""

    #: Pairs read per round trip.
    _BATCH = 200

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def names(self) -> list[tuple[str, str]]:
        """(cluster, scorer) of every entry of the schedule, sorted."""
        return sorted(keys.split_pair(str(member)) for member in self._redis.hkeys(keys.ENTRIES))

    def state(self, cluster: str, scorer: str) -> PairState:
        """One pair."""
        [state] = self.states([(cluster, scorer)])
        return state

    def states(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairState]:
        """Many pairs, a few round trips."""
        return self._read(pairs, has_books=True)

    def rows(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairState]:
        """Many pairs without books and score, which may be a megabyte."""
        return self._read(pairs, has_books=False)

    def _read(self, pairs: Iterable[tuple[str, str]], *, has_books: bool) -> Iterator[PairState]:
        for batch in batched(pairs, self._BATCH):
            members = [keys.pair(*pair) for pair in batch]
            with self._redis.pipeline(transaction=False) as pipe:
                for key in (keys.ROWS, keys.SKIPS, keys.UNWRITTEN):
                    pipe.hmget(key, members)
                for pair in batch if has_books else ():
                    pipe.hgetall(keys.pair_key(*pair))
                rows, skips, unwritten, *books = pipe.execute()
            for place, pair in enumerate(batch):
                yield PairState(
                    *pair,
                    books=books[place] if has_books else _NOTHING,
                    **row_fields(members[place], rows[place]),
                    skips=Skips.of(pair[0], skips[place]),
                    unwritten_text=unwritten[place],
                )

    def unwritten(self) -> dict[str, Unwritten]:
        """Return every pair whose valid score is not in the backend, sorted, and why.

        Also pairs that are not scheduled.
        """
        texts: dict[str, str] = self._redis.hgetall(keys.UNWRITTEN)  # type: ignore[assignment]
        return parsed_all(Unwritten, dict(sorted(texts.items())))

    def history(self, cluster: str, scorer: str) -> list[HistoryEntry]:
        """Return the newest cycles, newest first; without those of later versions."""
        rows: list[str] = self._redis.lrange(keys.history_key(cluster, scorer), 0, -1)  # type: ignore[assignment]
        return [entry for row in rows if (entry := read_row(row)) is not None]

    def past_runs(self, pairs: Iterable[tuple[str, str]]) -> Iterator[list[str]]:
        """The runs of the newest cycles of each pair, newest first."""
        for batch in batched(pairs, self._BATCH):
            with self._redis.pipeline(transaction=False) as pipe:
                for pair in batch:
                    pipe.lrange(keys.history_key(*pair), 0, -1)
                for rows in pipe.execute():
                    yield [run for row in rows if (run := run_of(row))]
