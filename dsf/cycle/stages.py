"""The stages fetch and score of one cycle.

Each has the summary's time-out, limited by the time until the next cycle. Any failure is a CycleError with the stage, a
reason usable as metric label, and a message; it never contains a secret.

The scoring request between them is in memory, or beyond a size in a file without a name: the system frees it when the
process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal, NamedTuple, NoReturn

from dsf import http
from dsf.api.scoringresponse import MAX_RESPONSE_BYTES, ScoringResponse, parse_response
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType
from dsf.auth.authenticator import Authenticator
from dsf.auth.secrets import SecretSource
from dsf.cycle.composite import FindResults, no_results, score_inputs
from dsf.cycle.evaluation import Evaluation, score_series
from dsf.errors import CycleError, ExpressionError, HttpError, ScoringResponseError, SettingsError
from dsf.http.access import PLAIN, Access
from dsf.http.client import Stream
from dsf.http.deadline import made_for
from dsf.messages import MESSAGE_LIMIT, Stage
from dsf.settings import Settings
from dsf.sources import FetchContext, Payload, source_of
from dsf.sources.base import RequestRecord, concatenated, joined, type_of
from dsf.sources.memory import SourceMemory
from dsf.sources.room import Room
from dsf.text import cleaned, masked, place

_TOO_LATE = "no time is left before the next cycle begins"


@dataclass(slots=True)
class Cycle:
    """One cycle. In memory only: after a crash the next tick starts a new one."""

    scorer: str
    run_id: str
    summary: ScorerSummary
    #: By time.monotonic(): when the next cycle may begin.
    deadline: float
    #: The end of the sources' time range, in unix seconds; None: now. A backtest asks for the past.
    until: float | None = None
    #: Its name for an expression; empty: that of the agent.
    cluster: str = ""
    #: Stage -> seconds, all tries in total.
    timings: dict[str, float] = field(default_factory=dict)
    #: `series`, `bytes_in` (from the source), `bytes_out` (to the scoring API), `results`, `retries`.
    counts: dict[str, int] = field(default_factory=dict)
    #: Number of series of each query, for an expression.
    queries: tuple[int, ...] = ()
    #: For the responses of its sources.
    room: Room = field(default_factory=Room)
    #: The scoring API's response, and its time (unix seconds).
    response: ScoringResponse | None = None
    scored_at: float = 0.0


class _Server(NamedTuple):
    """A server as one scorer requests it: another scorer may have credentials with a limit of its own."""

    scorer: str
    stage: Literal["fetch", "score"]
    url: str
    source: str | None = None


class _Wait(NamedTuple):
    """The response of a server that asked to wait. `until` is by time.monotonic()."""

    until: float
    reason: str
    message: str


class Observer:
    """Receives events of the stages, in several threads if there are several sources. This base class ignores them."""

    def asked(self, stage: Stage, question: RequestRecord) -> None:
        """A source or the scoring API was queried, successfully or not."""

    def authenticated(self, stage: Stage, access: Access, source: str | None) -> None:
        """The access used by the stage's requests, to this source if there are several."""

    def warned(self, cycle: Cycle, text: str) -> None:
        """A source gave this warning with a good response."""

    def timed(self, score_name: str, stage: str, seconds: float) -> None:
        """Duration of one stage, or of one try."""


class Stages:
    """Fetch and score. Thread-safe; the stages of one cycle are called one after another."""

    def __init__(
        self,
        settings: Settings,
        secrets: SecretSource,
        memory: SourceMemory | None = None,
        observer: Observer | None = None,
        find_results: FindResults = no_results,
    ) -> None:
        """`memory` is the sources' state between cycles. `find_results` gives the results of a scorer on this cluster,
        which expressions combine."""
        self._settings = settings
        self._authenticator = Authenticator(secrets)
        self._memory = memory
        self._observer = observer or Observer()
        self._find_results = find_results
        #: Servers that asked to wait.
        self._waits: dict[_Server, _Wait] = {}

    def fetch(self, cycle: Cycle) -> Payload:
        """Query the source, or all sources in parallel; returns the scoring request. Raises CycleError."""
        sources = cycle.summary.each_source
        with self._stage(cycle, "fetch") as deadline:
            if sources[0].source_name is None:
                payload = self._ask(cycle, sources[0], deadline, self._settings.max_source_bytes)
            else:
                # The first is sent twice, and the total may not exceed the limit of one source.
                max_bytes = self._settings.max_source_bytes // (len(sources) + 1)
                payloads = at_once(
                    {
                        source.source_name or "": partial(self._ask, cycle, source, deadline, max_bytes)
                        for source in sources
                    }
                )
                payload = joined(payloads) if cycle.summary.expression is None else concatenated([*payloads.values()])
        cycle.queries = payload.queries
        cycle.counts |= {"series": payload.series, "bytes_in": payload.received}
        return payload

    def _ask(self, cycle: Cycle, summary: ScorerSummary, deadline: float, max_bytes: int) -> Payload:
        """Query the source of `summary`."""
        memory = self._memory
        try:
            # Before credentials are got for a type that is not installed.
            source = source_of(type_of(summary))
        except HttpError as error:
            raise CycleError("fetch", error.reason, cleaned(str(error), MESSAGE_LIMIT)) from None
        with self._asking(cycle, summary, "fetch", deadline) as access:
            context = FetchContext(
                deadline,
                max_bytes,
                time.time() if cycle.until is None else cycle.until,
                access,
                memory,
                lambda: memory is None or cycle.scorer in memory.summaries(),
                partial(self._fetched, cycle),
                summary.source_name,
                cycle.room,
            )
            return source(summary, context)

    def _fetched(self, cycle: Cycle, question: RequestRecord) -> None:
        self._observer.asked("fetch", question)
        for text in question.warnings:
            self._observer.warned(cycle, text)

    def score(self, cycle: Cycle, request: bytes | Stream) -> None:
        """Send the scoring request, or evaluate the expression; store the response in `cycle`. Raises CycleError."""
        summary = cycle.summary
        if summary.expression is not None:
            self._evaluate(cycle, request)
            return
        url = summary.scoring_endpoint
        question = RequestRecord("", url)
        with (
            self._stage(cycle, "score") as deadline,
            self._asking(cycle, summary, "score", deadline) as access,
        ):
            with question.asked_for(lambda question: self._observer.asked("score", question)):
                answer = http.post(url, request, access=access, deadline=deadline, max_bytes=MAX_RESPONSE_BYTES)
                question.answered(len(answer), (answer,))
            cycle.response = self._parse(summary, answer, access)
        cycle.scored_at = time.time()
        cycle.counts |= {"bytes_out": len(request), "results": len(cycle.response.results)}

    def _evaluate(self, cycle: Cycle, request: bytes | Stream) -> None:
        """Evaluate the expression of a scorer without a scoring API. Raises CycleError."""
        with self._stage(cycle, "score") as deadline:

            def check() -> None:
                if time.monotonic() >= deadline:
                    raise CycleError("score", "timeout", "the expression takes too long for all series of the cycle")

            cluster = cycle.cluster or self._settings.cluster
            pieces = (request,) if isinstance(request, bytes) else request
            cycle.response = evaluate(cycle.summary, cluster, pieces, cycle.queries, self._find_results, check)
        cycle.scored_at = time.time()
        cycle.counts |= {"results": len(cycle.response.results)}

    @contextlib.contextmanager
    def _stage(self, cycle: Cycle, stage: Literal["fetch", "score"]) -> Iterator[float]:
        """Yields the stage's deadline and measures its time."""
        started = time.monotonic()
        if started >= cycle.deadline:
            raise CycleError(stage, "deadline", _TOO_LATE)
        try:
            yield min(cycle.deadline, started + cycle.summary.timeout_seconds)
        finally:
            seconds = time.monotonic() - started
            cycle.timings[stage] = cycle.timings.get(stage, 0.0) + seconds
            self._observer.timed(cycle.summary.score_name, stage, seconds)

    @contextlib.contextmanager
    def _asking(
        self, cycle: Cycle, summary: ScorerSummary, stage: Literal["fetch", "score"], deadline: float
    ) -> Iterator[Access]:
        """Yields the access; adds the stage to errors and masks secrets."""
        access = PLAIN
        server = (
            _Server(cycle.scorer, stage, summary.source_endpoint, summary.source_name)
            if stage == "fetch"
            else _Server(cycle.scorer, stage, summary.scoring_endpoint)
        )
        self._check_wait(server)
        try:
            with made_for(cycle):
                access = self._authenticator.access(summary, stage, deadline)
                self._observer.authenticated(stage, access, summary.source_name if stage == "fetch" else None)
                yield access
        except HttpError as error:
            # Each layer masks the secrets that it knows; all errors pass here.
            text = cleaned(masked(str(error), *access.secrets), MESSAGE_LIMIT)
            if error.reason == "timeout" and time.monotonic() >= cycle.deadline:
                raise CycleError(stage, "deadline", f"{text}; {_TOO_LATE}") from None
            failure = CycleError(stage, error.reason, text, retryable=error.retryable, retry_after=error.retry_after)
            self._store_wait(server, failure)
            raise failure from None

    def _store_wait(self, server: _Server, failure: CycleError) -> None:
        """Store the server's Retry-After for the cycles to come."""
        now = time.monotonic()
        for other, stored_wait in list(self._waits.items()):
            if stored_wait.until <= now:
                self._waits.pop(other, None)
        if failure.retry_after:
            # The server's text comes last, as it may be cut.
            text = f"waiting {failure.retry_after:.0f} s, as its Retry-After says: {failure.message}"
            text = cleaned(text, MESSAGE_LIMIT)
            self._waits[server] = _Wait(now + failure.retry_after, failure.reason, text)

    def _check_wait(self, server: _Server) -> None:
        """Raises CycleError, with the server's refusal, until the time has passed that it asked to wait."""
        wait = self._waits.get(server)
        if wait is not None and (seconds := wait.until - time.monotonic()) > 0.0:
            raise CycleError(server.stage, wait.reason, wait.message, retryable=True, retry_after=seconds)

    def _parse(self, summary: ScorerSummary, answer: bytes, access: Access) -> ScoringResponse:
        try:
            return parse_response(answer)
        except ScoringResponseError as error:
            text = cleaned(str(error), MESSAGE_LIMIT)
            # Secrets are searched for in these bytes; fewer are shown.
            head = answer[: 16 * 1024].decode(errors="replace")
            if masked(head, *access.secrets) != head:
                # The response's excerpt may end within the token, which masking would miss.
                text = "the answer is not a scoring response; it is not shown because it repeats a secret"
            raise CycleError("score", error.reason, f"{place('POST', summary.scoring_endpoint)}: {text}") from None


def evaluate(
    summary: ScorerSummary,
    cluster: str,
    request: Iterable[bytes | memoryview],
    queries: Sequence[int],
    find_results: FindResults = no_results,
    check: Callable[[], None] = lambda: None,
) -> ScoringResponse:
    """Return the results of a scorer's expression for the series of a request. Raises CycleError.

    `queries` has the number of series of each query, `check` is called for each series.
    """
    try:
        expression = summary.formula
    except ExpressionError as error:
        raise CycleError("score", "bad_expression", cleaned(str(error), MESSAGE_LIMIT)) from None
    if expression is None:
        raise RuntimeError("the scorer has no expression")
    fixed = {"cluster": cluster, "clusterLabels": summary.cluster_labels or {}}
    has_series = {source.source_type for source in summary.each_source} - {SourceType.None_} and not summary.scores
    evaluation = Evaluation(expression, fixed, check, ("series", "series") if has_series else ("item", "items"))
    if summary.scores:
        score_inputs(evaluation, summary, find_results)
    elif not has_series:
        evaluation.run([{}])
    else:
        score_series(evaluation, expression, request, queries)
    return evaluation.response


class FilePayload:
    """A large payload. One thread at a time can read it, again and again."""

    def __init__(self, folder: Path | None, pieces: Sequence[bytes | memoryview]) -> None:
        """Raises OSError, such as that of a full disk."""
        self._size = sum(map(len, pieces))
        if folder is not None:
            # A cleaner of old files may have removed it.
            folder.mkdir(parents=True, exist_ok=True)
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 (`close` closes it)
        try:
            for piece in pieces:
                self._file.write(piece)
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        self._file.seek(0)
        buffer = bytearray(256 * 1024)
        view = memoryview(buffer)
        while count := self._file.readinto(buffer):
            yield view[:count]

    def close(self) -> None:
        """Free its disk space."""
        self._file.close()


def keep(folder: Path | None, pieces: Sequence[bytes | memoryview]) -> bytes | FilePayload:
    """Keep this payload. A large one goes into `folder`, by default the system's for temporary files.

    Raises OSError.
    """
    # With one in each thread, that is some MB in the whole agent.
    return b"".join(pieces) if sum(map(len, pieces)) <= 256 * 1024 else FilePayload(folder, pieces)


def prepare(folder: Path | None) -> None:
    """Make the folder. Raises SettingsError if no file can be written there."""
    try:
        FilePayload(folder, [b"x"]).close()
    except OSError as error:
        raise SettingsError(f"DSF_AGENT_SPOOL_DIR: cannot use {folder or error.filename}: {error.strerror}") from None


def at_once(asks: Mapping[str, Callable[[], Payload]]) -> dict[str, Payload]:
    """Return each source's payload by name. All have ended on return.

    Raises CycleError naming each failed source.
    """
    # With what is known of the cycle, such as its trace.
    futures = {name: _threads().submit(contextvars.copy_context().run, ask) for name, ask in asks.items()}
    wait(futures.values())
    source_errors: list[tuple[str, CycleError]] = []
    payloads: dict[str, Payload] = {}
    for name, future in futures.items():
        try:
            payloads[name] = future.result()
        except CycleError as error:
            source_errors.append((name, error))
    if source_errors:
        _fail(source_errors)
    return payloads


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Idle threads are reused, others added on demand. They persist: connections are thread-local, and a handshake per
    cycle costs more than the cycle."""
    # Far more than an agent's concurrent requests: no source waits for another scorer's.
    return ThreadPoolExecutor(1024, thread_name_prefix="dsf-source")


def _fail(source_errors: list[tuple[str, CycleError]]) -> NoReturn:
    """The reason is the first one's; a retry helps only if it may help all of them."""
    error = source_errors[0][1]
    text = "; ".join(f"source {name!r}: {error.message}" for name, error in source_errors)
    waits = [error.retry_after for _, error in source_errors if error.retry_after is not None]
    raise CycleError(
        error.stage,
        error.reason,
        cleaned(text, MESSAGE_LIMIT),
        retryable=all(error.retryable for _, error in source_errors),
        retry_after=max(waits, default=None),
    ) from None
