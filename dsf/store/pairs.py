"""State of one scorer on one cluster: its row, its books and its latest score.

The row is what readers of the whole fleet need: a JSON object of texts in the hash `dsf.keys.ROWS`.

    last_success                       unix seconds of the newest successful cycle
    valid_until                        when its newest score expires
    items                              number of items of that score (results, if it goes to metrics only)
    value                              the number that represents the score: its item, or the mean of its items; empty
                                       if there is none
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
    digest, changes                                            of the score: what the writer compares, and how often
                                                               what should be written has changed

The books balance: scheduled = ok + empty + partial + error + skipped + lost + runs that are still open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

import redis
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import SchemaValidator, core_schema

from dsf import keys
from dsf.api.hold import Waiting
from dsf.api.pauses import LATEST
from dsf.store.client import batched, complain, number, parsed, whole
from dsf.store.history import HistoryEntry, read_row, run_of
from dsf.store.ticks import SKIPS_THRESHOLD, Skips

OUTCOMES = ("ok", "empty", "partial", "error", "skipped", "lost")
#: Outcomes with a score.
SUCCESSES = ("ok", "empty", "partial")

SCHEDULED = "n:scheduled"
LAST_RUN = "last_run"
LAST_SUCCESS = "last_success"
FAILING = "failing"
FAILURE = "failure"
SCORE = "score"
REMARK = "remark"
EXPIRED = "expired"
EXPIRED_RUN = "expired_run"
EXPIRED_AT = "expired_at"
VALID_UNTIL = "valid_until"
ITEMS = "items"
VALUE = "value"

#: Consecutive cycles not taken in time by the agent from which this explains a missing score. One or two may be chance.
EXPIRED_THRESHOLD = 3


_MOMENT: Final = core_schema.float_schema(ge=0, le=LATEST, allow_inf_nan=False)
_COUNT: Final = core_schema.int_schema(ge=0, le=int(LATEST))
_NUMBER: Final = core_schema.union_schema(
    [core_schema.literal_schema([""]), core_schema.float_schema(allow_inf_nan=False)]
)
_TEXT: Final = core_schema.str_schema()
#: The fields of a row, in which numbers are texts; all others are dropped.
_ROW: Final = SchemaValidator(
    core_schema.typed_dict_schema(
        {
            name: core_schema.typed_dict_field(schema, required=False)
            for schema, names in (
                (_MOMENT, (LAST_SUCCESS, VALID_UNTIL, EXPIRED_AT)),
                (_COUNT, (FAILING, EXPIRED, ITEMS)),
                (_NUMBER, (VALUE,)),
                (_TEXT, (REMARK, FAILURE, EXPIRED_RUN)),
            )
            for name in names
        }
    )
)
_Moment = Annotated[float, Field(ge=0, le=LATEST)]


class PairFailure(BaseModel):
    """Why the newest cycle of a pair failed, or has not all of its results. `at` is unix seconds on the hub's clock."""

    model_config = ConfigDict(frozen=True)

    run: str
    stage: str
    reason: str
    message: str
    at: _Moment


class PairScore(BaseModel):
    """The newest score of a pair: what the exporter shows and what the AddOnPlacementScore is made from.

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
    #: What `spec.execution.hold` keeps back, by item: its value in `items` is the published one.
    held: dict[str, Waiting] = {}


class PairState:
    """One pair, parsed: fields of its row, and of its hash if they were read. Missing counters are 0."""

    def __init__(
        self, cluster: str, scorer: str, fields: Mapping[str, Any], skips: str | None = None, unwritten: str = ""
    ) -> None:
        self.cluster = cluster
        self.scorer = scorer
        #: Why the backend refused the AddOnPlacementScore; empty if it did not.
        self.unwritten = unwritten
        self._fields = fields
        self._skips = skips

    @property
    def pair(self) -> str:
        """`<cluster>/<scorer>`."""
        return keys.pair(self.cluster, self.scorer)

    def __bool__(self) -> bool:
        return bool(self._fields)

    def count(self, outcome: str) -> int:
        """Number of cycles with this outcome, or `scheduled`."""
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
            stage: (number("books", self.pair, self._fields[f"t:{stage}:sum"]), self._whole(f"t:{stage}:count"))
            for stage in ("fetch", "score", "publish")
            if f"t:{stage}:sum" in self._fields
        }

    @property
    def scheduled(self) -> int:
        """Cycles due or requested."""
        return self._whole(SCHEDULED)

    @property
    def open(self) -> int:
        """Runs that have not ended yet: scheduled minus every outcome."""
        return self.scheduled - sum(self.count(outcome) for outcome in OUTCOMES)

    @property
    def last_run(self) -> str:
        """Newest run id received; empty before the first."""
        return str(self._fields.get(LAST_RUN, ""))

    @property
    def last_success(self) -> float | None:
        """Unix seconds of the newest successful cycle. Every displayed age is counted from here."""
        text = self._fields.get(LAST_SUCCESS)
        return None if text is None else float(text)

    @property
    def failing(self) -> int:
        """Consecutive failed cycles."""
        return int(self._fields.get(FAILING, 0))

    @property
    def failure(self) -> PairFailure | None:
        """Why the newest cycle failed; None after a success."""
        text = self._fields.get(FAILURE)
        return parsed(PairFailure, self.pair, text)

    @property
    def expired(self) -> int:
        """Consecutive cycles that expired in the cluster's queue before its agent took them."""
        return int(self._fields.get(EXPIRED, 0))

    @property
    def trouble(self) -> PairFailure | None:
        """Why the newest cycles have no score: they fail, or the agent takes none in time. None if they have."""
        if self.expired >= EXPIRED_THRESHOLD:
            message = (
                f"its cycles wait in the queue of {self.cluster} until the next one is due and are skipped: the agent "
                "was away or has more to do than it can; check that it runs, raise the interval or "
                "DSF_AGENT_CONCURRENCY, or find the scorer that takes its time (dsf history)"
            )
            return PairFailure(
                run=self._fields.get(EXPIRED_RUN, ""),
                stage="",
                reason="expired",
                message=message,
                at=float(self._fields.get(EXPIRED_AT, 0)),
            )
        return self.failure if self.failing > 0 else None

    @property
    def skips(self) -> Skips | None:
        """Why beat sends it no ticks now; None if it sent the newest one."""
        return Skips.of(self.cluster, self._skips)

    @property
    def is_failing(self) -> bool:
        """Whether its newest cycles have no score; also if the stored reason has been removed."""
        return self.failing > 0 or self.expired >= EXPIRED_THRESHOLD

    @property
    def is_skipped(self) -> bool:
        """Whether so many of its newest ticks were not sent that this counts."""
        skips = self.skips
        return skips is not None and skips.ticks >= SKIPS_THRESHOLD

    @property
    def valid_until(self) -> float:
        """End of its newest score's validity (unix seconds); 0 before the first."""
        return float(self._fields.get(VALID_UNTIL, 0))

    @property
    def items(self) -> int | None:
        """Number of items of its newest score; None if not recorded."""
        text = self._fields.get(ITEMS)
        return None if text is None else int(text)

    @property
    def value(self) -> float | None:
        """The number that represents its newest score: its item, or the mean of its items; None without any."""
        text = self._fields.get(VALUE)
        return None if text in (None, "") else float(text)

    @property
    def remark(self) -> PairFailure | None:
        """Why the newest score has no items, or not all of its results; None if all count."""
        text = self._fields.get(REMARK)
        return parsed(PairFailure, self.pair, text)

    @property
    def score_bytes(self) -> int:
        """Approximate text size of the newest score."""
        return len(self._fields.get(SCORE, ""))

    @property
    def score(self) -> PairScore | None:
        """The newest score, expired or not."""
        text = self._fields.get(SCORE)
        return parsed(PairScore, self.pair, text)

    def _by_prefix(self, prefix: str) -> dict[str, int]:
        return {name[len(prefix) :]: self._whole(name) for name in self._fields if name.startswith(prefix)}

    def _whole(self, name: str) -> int:
        return whole("books", f"{self.pair} {name}", self._fields.get(name))


def row_fields(pair: str, text: str | None) -> dict[str, Any]:
    """The fields of a pair's stored row; none of a missing or unreadable one, which its next result puts right."""
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
        """One pair; falsy if nothing is known of it."""
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
                for key in (keys.ROWS, keys.SKIPS, keys.WRITES_REFUSED):
                    pipe.hmget(key, members)
                for pair in batch if has_books else ():
                    pipe.hgetall(keys.pair_key(*pair))
                rows, skips, refused, *books = pipe.execute()
            for place, pair in enumerate(batch):
                fields = row_fields(members[place], rows[place])
                if has_books:
                    fields = {**books[place], **fields}
                yield PairState(*pair, fields, skips[place], refused[place] or "")

    def history(self, cluster: str, scorer: str) -> list[HistoryEntry]:
        """The newest cycles, newest first; without those of later versions."""
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
