"""Recordings: the files of backtests, in JSON lines.

A question is what a backtest runs on a cluster: the scorer with its queries and its expression, and the interval. A
moment is a past time at which the scorer ran. A record is the scorer's response at one moment. The question of a
cluster precedes its records:

    {"question":{"cluster":"c1","scorer":"busy","score_name":"busy","every":300,"validity":900,"sources":[...]}}
    {"cluster":"c1","at":1764115200,"outcome":"ok","items":{"busy":42},"series":3}
    {"cluster":"c1","at":1764115500,"outcome":"error","stage":"fetch","reason":"timeout","message":"..."}

Lines are only appended, so you can concatenate the files of several clusters. If a moment has two records, the later
one counts, because a second backtest repeats moments that failed.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO, Final, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dsf import boundedjson
from dsf.api.meta import LATEST
from dsf.api.naming import sanitize_resource_name
from dsf.api.summary import ScorerSummary
from dsf.api.types import MAX_SECONDS
from dsf.backtest.errors import BacktestError
from dsf.boundedjson import Bounds
from dsf.errors import JsonBoundsError

#: Bounds of a line. They have room for 10,000 items with names of a few hundred bytes. The deepest line is a question
#: with the sources of its inputs, which takes 6 levels.
_BOUNDS: Final = Bounds(max_bytes=8 * 1024 * 1024, max_values=50_000, max_depth=16)
#: Seconds of a duration.
_Seconds = Annotated[int, Field(ge=0, le=MAX_SECONDS)]
#: Unix seconds of a moment. Later times than LATEST cannot be shown as a date by all readers.
_Moment = Annotated[int, Field(ge=0, le=int(LATEST))]

#: Outcome of a cycle; see docs/scoring-api.md.
Outcome = Literal["ok", "empty", "partial", "error"]


class _LineModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceQuestion(_LineModel):
    """The query of a source in a question. The address is omitted, because it changes with each port-forward."""

    type: str
    query: str
    #: Seconds from the start of the range query to the moment.
    range: _Seconds
    #: Seconds between two samples.
    step: _Seconds


class InputQuestion(_LineModel):
    """A score that a composite combines, in a question."""

    scorer: str
    #: Name of its variable in the composite's expression.
    name: str
    #: Value where the score is missing; None if the composite then has no item.
    default: float | None


class Question(_LineModel):
    """The inputs of a backtest on a cluster. Records of different questions cannot be mixed in one recording."""

    cluster: str
    scorer: str
    score_name: str
    #: Seconds between two moments.
    every: _Seconds
    #: Seconds for which a score is valid if no other score follows.
    validity: _Seconds
    sources: tuple[SourceQuestion, ...] = ()
    scoring_endpoint: str = ""
    expression: str = ""
    formats: tuple[str, ...] = ()
    aggregate: str = ""
    #: The scores that a composite combines.
    scores: tuple[InputQuestion, ...] = ()
    #: The questions of all scorers that a composite reads, directly or through other composites.
    inputs: tuple[Question, ...] = ()

    @classmethod
    def of(cls, cluster: str, summary: ScorerSummary, interval: int, inputs: Sequence[ScorerSummary] = ()) -> Self:
        """Return the question of a scorer on a cluster, with `interval` seconds between two moments.

        `inputs` are all scorers that a composite reads, directly or through other composites.
        """
        aggregate = f"{summary.aggregate_with} by {','.join(summary.aggregate_by or ())}"
        return cls(
            cluster=cluster,
            scorer=summary.name,
            score_name=summary.score_name,
            every=interval,
            validity=summary.validity_seconds,
            sources=tuple(
                SourceQuestion(
                    type=source.source_type,
                    query=source.source_query,
                    range=source.source_range,
                    step=source.source_step,
                )
                for source in summary.each_source
            ),
            scoring_endpoint=summary.scoring_endpoint,
            expression=summary.expression or "",
            formats=(summary.score_dimension_format, *(summary.more_dimension_formats or ())),
            aggregate=aggregate if summary.aggregate_with else "",
            scores=tuple(
                InputQuestion(scorer=score.scorer, name=score.name, default=score.default)
                for score in summary.scores or ()
            ),
            inputs=tuple(cls.of(cluster, scorer, interval) for scorer in inputs),
        )

    @property
    def resource(self) -> str:
        """Name of the AddOnPlacementScores."""
        return sanitize_resource_name(self.score_name)

    def list_differences(self, other: Question) -> list[str]:
        """Return the names of the fields that differ between both."""
        return [name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)]


class Record(_LineModel):
    """The response of the scorer at one moment."""

    cluster: str
    #: The moment in unix seconds, which is the end of the range query.
    at: _Moment
    outcome: Outcome
    #: Values as in the AddOnPlacementScore: rounded down, from -100 to 100.
    items: dict[str, Annotated[int, Field(ge=-100, le=100)]] = {}
    #: Number of time series that the sources returned.
    series: int = 0
    #: Seconds at the start of a range without a sample of any series; the maximum of all queries.
    unsampled: int = 0
    #: Stage of the cycle that failed, such as `fetch`; empty unless the outcome is `error`, like the next two.
    stage: str = ""
    #: Reason of the failure, such as `timeout`.
    reason: str = ""
    #: Description of the failure for users.
    message: str = ""


class QuestionLine(_LineModel):
    """The line with the question of a cluster, before the records of this cluster."""

    question: Question


_LINE_ADAPTER: TypeAdapter[QuestionLine | Record] = TypeAdapter(QuestionLine | Record)


class Recording:
    """A recording, as a context manager that closes its file.

    Records stay in the file. The memory contains one offset per moment, regardless of the number of items.
    """

    def __init__(self, path: Path | None = None, *, writing: bool = False) -> None:
        """Open the file `path`, by default a temporary one; `writing` creates the file and locks it for this process.

        Raises BacktestError if the file cannot be opened, is in use or has an invalid line.
        """
        self.name = str(path) if path is not None else "this run"
        self.questions: dict[str, Question] = {}
        #: Cluster -> moment -> offset of the line in the file.
        self._offsets: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._successful_moments: set[tuple[str, int]] = set()
        self._file: BinaryIO
        try:
            if path is None:
                self._file = cast("BinaryIO", tempfile.TemporaryFile("w+b"))  # noqa: SIM115 (`__exit__` closes it)
            else:
                flags = os.O_RDWR | os.O_CREAT if writing else os.O_RDONLY
                self._file = os.fdopen(os.open(path, flags, 0o644), "r+b" if writing else "rb")
            if path is not None and writing:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BacktestError(f"{path}: another backtest writes into this file") from None
        except OSError as error:
            raise BacktestError(f"{path}: cannot be opened: {error.strerror}") from None
        try:
            self._read(writing=writing)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def select_clusters(self, clusters: Collection[str]) -> None:
        """Keep only the questions of these clusters; keep all if `clusters` is empty."""
        self.questions = {
            name: question for name, question in self.questions.items() if not clusters or name in clusters
        }

    def begin_question(self, question: Question) -> None:
        """Append a question unless the file has it. Raises BacktestError if the cluster has another question."""
        earlier_question = self.questions.get(question.cluster)
        if earlier_question is None:
            self._append(QuestionLine(question=question))
            self.questions[question.cluster] = question
        elif fields := earlier_question.list_differences(question):
            raise BacktestError(
                f"{self.name}: has moments of another question ({', '.join(fields)} differ); write into another file"
            )

    def add_record(self, record: Record) -> None:
        """Append a record. Raises BacktestError if the file cannot be written."""
        self._record_offset(record, self._append(record))

    def list_missing_moments(self, cluster: str, moments: range) -> list[int]:
        """Return the moments without a record, or with a record of an error only."""
        return [moment for moment in moments if (cluster, moment) not in self._successful_moments]

    def list_moments(self, cluster: str) -> list[int]:
        """Return the moments of a cluster, in order."""
        return sorted(self._offsets[cluster])

    def read_record(self, cluster: str, moment: int) -> Record | None:
        """Return the record of this moment, or None."""
        offset = self._offsets[cluster].get(moment)
        if offset is None:
            return None
        self._file.seek(offset)
        return Record.model_validate_json(self._file.readline())

    def iterate_records(self, cluster: str, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """Yield the records of a cluster from `start` to `end`, both included, in order."""
        for moment in self.list_moments(cluster):
            if (start is None or moment >= start) and (end is None or moment <= end):
                record = self.read_record(cluster, moment)
                if record is not None:
                    yield record

    def _read(self, *, writing: bool) -> None:
        """Read all lines of the file. Raises BacktestError for an invalid line."""
        offset = 0
        for number in itertools.count(1):
            line = self._file.readline(_BOUNDS.max_bytes + 1)
            if not line:
                break
            if len(line) > _BOUNDS.max_bytes:
                raise BacktestError(f"{self.name}:{number}: a line of more than {_BOUNDS.max_bytes} bytes")
            if not line.endswith(b"\n"):
                # Drop the incomplete line of a writer that was killed. The next backtest repeats its moment.
                if writing:
                    self._file.truncate(offset)
                break
            if line.strip():
                self._parse_line(line, offset, number)
            offset += len(line)

    def _parse_line(self, line: bytes, offset: int, number: int) -> None:
        try:
            boundedjson.check(line, _BOUNDS)
            parsed_line = _LINE_ADAPTER.validate_json(line)
        except (ValidationError, JsonBoundsError):
            raise BacktestError(
                f"{self.name}:{number}: is not a line of a backtest (`dsf backtest -o jsonl`)"
            ) from None
        if isinstance(parsed_line, QuestionLine):
            question = parsed_line.question
            first_question = self.questions.setdefault(question.cluster, question)
            if fields := first_question.list_differences(question):
                raise BacktestError(
                    f"{self.name}:{number}: not the same question as before for cluster {question.cluster!r} "
                    f"({', '.join(fields)} differ)"
                )
        elif parsed_line.cluster not in self.questions:
            raise BacktestError(
                f"{self.name}:{number}: no question of cluster {parsed_line.cluster!r} precedes this record"
            )
        else:
            self._record_offset(parsed_line, offset)

    def _append(self, line: QuestionLine | Record) -> int:
        """Append a line, and return its offset. Raises BacktestError if the file cannot be written."""
        offset = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(dump_line(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise BacktestError(f"{self.name}: cannot be written: {error.strerror}") from None
        return offset

    def _record_offset(self, record: Record, offset: int) -> None:
        self._offsets[record.cluster][record.at] = offset
        if record.outcome != "error":
            self._successful_moments.add((record.cluster, record.at))


def dump_line(line: QuestionLine | Record) -> str:
    """Return a line as JSON, without fields that have their default values."""
    return line.model_dump_json(exclude_defaults=True)
