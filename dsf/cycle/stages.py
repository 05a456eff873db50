"""The stages fetch and score of one cycle.

Each stage has the summary's time-out, limited by the time until the next cycle. Any failure is a CycleError with the
stage, a reason usable as metric label, and a message. The message never contains a secret.

The scoring request between the stages is kept in memory. A large one is kept in a file without a name, because the
system frees such a file even if the process is killed.
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
from typing import Final, Literal, NamedTuple

from dsf import http
from dsf.api.scoringresponse import MAX_RESPONSE_BYTES, ScoringResponse, parse_response
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType
from dsf.auth.authenticator import Authenticator
from dsf.auth.secrets import SecretSource
from dsf.cycle.composite import FindResults, find_no_results, score_inputs
from dsf.cycle.evaluation import Evaluation, score_series
from dsf.errors import CycleError, ExpressionError, HttpError, ScoringResponseError, SettingsError
from dsf.http.access import PLAIN, Access
from dsf.http.client import Stream
from dsf.http.deadline import assign_exchange_owner
from dsf.messages import MESSAGE_LIMIT, Stage
from dsf.settings import Settings
from dsf.sources import FetchContext, Payload, find_source
from dsf.sources.base import RequestRecord, concatenate_payloads, get_source_type, join_payloads
from dsf.sources.memory import SourceMemory
from dsf.sources.responsestorage import ResponseStorage
from dsf.text import clean, describe_request, mask_secrets

_DEADLINE_MESSAGE: Final = "no time is left before the next cycle begins"
#: Maximum bytes of a scoring request that is kept in memory. An agent has one in each thread.
_MAX_MEMORY_BYTES: Final = 256 * 1024
#: Bytes of each read of a scoring request in a file.
_READ_BYTES: Final = 256 * 1024
#: Bytes at the beginning of a refused response that are searched for secrets. The message shows fewer bytes.
_SEARCHED_BYTES: Final = 16 * 1024
#: Maximum threads that query the sources of scorers with several sources. The number is far above the concurrent
#: requests of an agent, so that no source waits for another scorer's source.
_MAX_SOURCE_THREADS: Final = 1024


@dataclass(slots=True)
class Cycle:
    """The state of one cycle. It is only in memory, because the next tick after a crash starts a new cycle."""

    scorer: str
    run_id: str
    summary: ScorerSummary
    #: Time at which the next cycle may begin, by time.monotonic().
    deadline: float
    #: End of the sources' time range in unix seconds, or None for now. A backtest queries the past.
    range_end: float | None = None
    #: Name of the cluster for an expression. The agent's cluster is used if it is empty.
    cluster: str = ""
    #: Stage -> total seconds of all tries.
    timings: dict[str, float] = field(default_factory=dict)
    #: `series`, `bytes_in` (from the source), `bytes_out` (to the scoring API), `results`, `retries`.
    counts: dict[str, int] = field(default_factory=dict)
    #: Number of series of each query, for an expression.
    queries: tuple[int, ...] = ()
    #: Memory budget for the responses of the sources.
    storage: ResponseStorage = field(default_factory=ResponseStorage)
    #: Response of the scoring API, and its time in unix seconds.
    response: ScoringResponse | None = None
    scored_at: float = 0.0


class _Server(NamedTuple):
    """A server as used by one scorer. Scorers are separate, because a server may limit the rate of each credential."""

    scorer: str
    stage: Literal["fetch", "score"]
    url: str
    source: str | None = None


class _RetryAfter(NamedTuple):
    """A server's Retry-After and its error. `end` is by time.monotonic()."""

    end: float
    reason: str
    message: str


class Observer:
    """Receives events of the stages, in several threads if there are several sources. This base class ignores them."""

    def on_query(self, stage: Stage, record: RequestRecord) -> None:
        """Called after a query of a source or of the scoring API, whether it succeeded or not."""

    def on_authenticated(self, stage: Stage, access: Access, source: str | None) -> None:
        """Called with the access of the stage's requests. `source` is the name of the source if there are several."""

    def on_warning(self, cycle: Cycle, text: str) -> None:
        """Called for each warning in a source's successful response."""

    def on_timed(self, score_name: str, stage: str, seconds: float) -> None:
        """Called with the duration of one try of a stage."""


class Stages:
    """Runs the stages fetch and score of any number of cycles. Thread-safe.

    The stages of one cycle are called one after another.
    """

    def __init__(
        self,
        settings: Settings,
        secrets: SecretSource,
        memory: SourceMemory | None = None,
        observer: Observer | None = None,
        find_results: FindResults = find_no_results,
    ) -> None:
        """`memory` is the sources' state between cycles. `find_results` returns the results of a scorer on this
        cluster, which expressions combine."""
        self._settings = settings
        self._authenticator = Authenticator(secrets)
        self._memory = memory
        self._observer = observer or Observer()
        self._find_results = find_results
        #: Servers whose Retry-After has not passed.
        self._retry_afters: dict[_Server, _RetryAfter] = {}

    def fetch(self, cycle: Cycle) -> Payload:
        """Query the source, or all sources in parallel, and return the scoring request. Raises CycleError."""
        sources = cycle.summary.each_source
        with self._run_stage(cycle, "fetch") as deadline:
            if sources[0].source_name is None:
                payload = self._query_source(cycle, sources[0], deadline, self._settings.max_source_bytes)
            else:
                # All sources together share the limit of one source. The scoring request has the first source's series
                # twice, so the divisor counts this source twice.
                max_bytes = self._settings.max_source_bytes // (len(sources) + 1)
                payloads = fetch_all(
                    {
                        source.source_name or "": partial(self._query_source, cycle, source, deadline, max_bytes)
                        for source in sources
                    }
                )
                payload = (
                    join_payloads(payloads)
                    if cycle.summary.expression is None
                    else concatenate_payloads([*payloads.values()])
                )
        cycle.queries = payload.queries
        cycle.counts |= {"series": payload.series, "bytes_in": payload.received}
        return payload

    def _query_source(self, cycle: Cycle, summary: ScorerSummary, deadline: float, max_bytes: int) -> Payload:
        """Query the source of `summary` and return its series, at most `max_bytes`. Raises CycleError."""
        memory = self._memory
        try:
            # The source is looked up before the credentials are read, because its type may not be installed.
            source = find_source(get_source_type(summary))
        except HttpError as error:
            raise CycleError("fetch", error.reason, clean(str(error), MESSAGE_LIMIT)) from None
        with self._with_access(cycle, summary, "fetch", deadline) as access:
            context = FetchContext(
                deadline,
                max_bytes,
                time.time() if cycle.range_end is None else cycle.range_end,
                access,
                memory,
                lambda: memory is None or cycle.scorer in memory.summaries(),
                partial(self._report_query, cycle),
                summary.source_name,
                cycle.storage,
            )
            return source(summary, context)

    def _report_query(self, cycle: Cycle, record: RequestRecord) -> None:
        """Notify the observer of a query of a source, and of the warnings in the response."""
        self._observer.on_query("fetch", record)
        for text in record.warnings:
            self._observer.on_warning(cycle, text)

    def score(self, cycle: Cycle, request: bytes | Stream) -> None:
        """Send the scoring request, or evaluate the expression. Store the response in `cycle`. Raises CycleError."""
        summary = cycle.summary
        if summary.expression is not None:
            self._evaluate(cycle, request)
            return
        url = summary.scoring_endpoint
        record = RequestRecord("", url)
        with (
            self._run_stage(cycle, "score") as deadline,
            self._with_access(cycle, summary, "score", deadline) as access,
        ):
            with record.measure_request(partial(self._observer.on_query, "score")):
                body = http.post(url, request, access=access, deadline=deadline, max_bytes=MAX_RESPONSE_BYTES)
                record.record_response(len(body), (body,))
            cycle.response = self._parse(summary, body, access)
        cycle.scored_at = time.time()
        cycle.counts |= {"bytes_out": len(request), "results": len(cycle.response.results)}

    def _evaluate(self, cycle: Cycle, request: bytes | Stream) -> None:
        """Evaluate the expression of a scorer without a scoring API. Raises CycleError."""
        with self._run_stage(cycle, "score") as deadline:

            def check_deadline() -> None:
                if time.monotonic() >= deadline:
                    raise CycleError("score", "timeout", "the expression takes too long for all series of the cycle")

            cluster = cycle.cluster or self._settings.cluster
            pieces = (request,) if isinstance(request, bytes) else request
            cycle.response = evaluate(cycle.summary, cluster, pieces, cycle.queries, self._find_results, check_deadline)
        cycle.scored_at = time.time()
        cycle.counts |= {"results": len(cycle.response.results)}

    @contextlib.contextmanager
    def _run_stage(self, cycle: Cycle, stage: Literal["fetch", "score"]) -> Iterator[float]:
        """Yield the stage's deadline by time.monotonic(), and measure the duration.

        Raises CycleError if the deadline of the cycle has passed.
        """
        started_at = time.monotonic()
        if started_at >= cycle.deadline:
            raise CycleError(stage, "deadline", _DEADLINE_MESSAGE)
        try:
            yield min(cycle.deadline, started_at + cycle.summary.timeout_seconds)
        finally:
            seconds = time.monotonic() - started_at
            cycle.timings[stage] = cycle.timings.get(stage, 0.0) + seconds
            self._observer.on_timed(cycle.summary.score_name, stage, seconds)

    @contextlib.contextmanager
    def _with_access(
        self, cycle: Cycle, summary: ScorerSummary, stage: Literal["fetch", "score"], deadline: float
    ) -> Iterator[Access]:
        """Yield the access to the stage's server. Raise its HttpErrors as CycleErrors of the stage, without secrets."""
        access = PLAIN
        server = (
            _Server(cycle.scorer, stage, summary.source_endpoint, summary.source_name)
            if stage == "fetch"
            else _Server(cycle.scorer, stage, summary.scoring_endpoint)
        )
        self._raise_until_retry_after(server)
        try:
            with assign_exchange_owner(cycle):
                access = self._authenticator.make_access(summary, stage, deadline)
                self._observer.on_authenticated(stage, access, summary.source_name if stage == "fetch" else None)
                yield access
        except HttpError as error:
            # All errors of a request pass here. The layers below mask only the secrets that they know.
            text = clean(mask_secrets(str(error), *access.secrets), MESSAGE_LIMIT)
            if error.reason == "timeout" and time.monotonic() >= cycle.deadline:
                raise CycleError(stage, "deadline", f"{text}; {_DEADLINE_MESSAGE}") from None
            failure = CycleError(stage, error.reason, text, retryable=error.retryable, retry_after=error.retry_after)
            self._store_retry_after(server, failure)
            raise failure from None

    def _store_retry_after(self, server: _Server, failure: CycleError) -> None:
        """Store the server's Retry-After for the next cycles, and remove those that have passed."""
        now = time.monotonic()
        for waiting_server, retry_after in list(self._retry_afters.items()):
            if retry_after.end <= now:
                self._retry_afters.pop(waiting_server, None)
        if failure.retry_after:
            # The server's text comes last because `clean` may truncate the message.
            text = f"waiting {failure.retry_after:.0f} s, as its Retry-After says: {failure.message}"
            text = clean(text, MESSAGE_LIMIT)
            self._retry_afters[server] = _RetryAfter(now + failure.retry_after, failure.reason, text)

    def _raise_until_retry_after(self, server: _Server) -> None:
        """Raise CycleError with the server's error until its Retry-After has passed."""
        retry_after = self._retry_afters.get(server)
        if retry_after is not None and (seconds := retry_after.end - time.monotonic()) > 0.0:
            raise CycleError(server.stage, retry_after.reason, retry_after.message, retryable=True, retry_after=seconds)

    def _parse(self, summary: ScorerSummary, body: bytes, access: Access) -> ScoringResponse:
        """Return the parsed response of the scoring API. Raises CycleError if it is not valid."""
        try:
            return parse_response(body)
        except ScoringResponseError as error:
            text = clean(str(error), MESSAGE_LIMIT)
            head = body[:_SEARCHED_BYTES].decode(errors="replace")
            if mask_secrets(head, *access.secrets) != head:
                # The error's excerpt of the response may end within the token. Masking would miss that part.
                text = "the response is not a scoring response; it is not shown because it repeats a secret"
            raise CycleError(
                "score", error.reason, f"{describe_request('POST', summary.scoring_endpoint)}: {text}"
            ) from None


def evaluate(
    summary: ScorerSummary,
    cluster: str,
    request: Iterable[bytes | memoryview],
    queries: Sequence[int],
    find_results: FindResults = find_no_results,
    check: Callable[[], None] = lambda: None,
) -> ScoringResponse:
    """Return the results of a scorer's expression for the series of a request. Raises CycleError.

    `queries` has the number of series of each query. `check` is called regularly during the evaluation and may raise
    CycleError.
    """
    try:
        expression = summary.formula
    except ExpressionError as error:
        raise CycleError("score", "bad_expression", clean(str(error), MESSAGE_LIMIT)) from None
    if expression is None:
        raise RuntimeError("the scorer has no expression")
    shared_variables = {"cluster": cluster, "clusterLabels": summary.cluster_labels or {}}
    has_series = {source.source_type for source in summary.each_source} - {SourceType.None_} and not summary.scores
    nouns = ("series", "series") if has_series else ("item", "items")
    evaluation = Evaluation(expression, shared_variables, check, nouns)
    if summary.scores:
        score_inputs(evaluation, summary, find_results)
    elif not has_series:
        evaluation.run([{}])
    else:
        score_series(evaluation, expression, request, queries)
    return evaluation.response


class FilePayload:
    """A large payload in a file. It can be read any number of times, by one thread at a time."""

    def __init__(self, folder: Path | None, pieces: Sequence[bytes | memoryview]) -> None:
        """Write the pieces into a file. Raises OSError, for example if the disk is full."""
        self._size = sum(map(len, pieces))
        if folder is not None:
            # A program that removes old files may have removed the folder.
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
        buffer = bytearray(_READ_BYTES)
        view = memoryview(buffer)
        while count := self._file.readinto(buffer):
            yield view[:count]

    def close(self) -> None:
        """Close the file, which frees its disk space."""
        self._file.close()


def store_payload(folder: Path | None, pieces: Sequence[bytes | memoryview]) -> bytes | FilePayload:
    """Return the payload in one piece. A large one is stored in a file in `folder` or in the system's temp folder.

    Raises OSError if the file cannot be written.
    """
    if sum(map(len, pieces)) <= _MAX_MEMORY_BYTES:
        return b"".join(pieces)
    return FilePayload(folder, pieces)


def prepare_folder(folder: Path | None) -> None:
    """Create the folder for payloads. Raises SettingsError if no file can be written there."""
    try:
        FilePayload(folder, [b"x"]).close()
    except OSError as error:
        raise SettingsError(f"DSF_AGENT_SPOOL_DIR: cannot use {folder or error.filename}: {error.strerror}") from None


def fetch_all(fetch_functions: Mapping[str, Callable[[], Payload]]) -> dict[str, Payload]:
    """Call the functions in parallel, and return each source's payload by the name of the source.

    Waits for all of them, also after an error. Raises CycleError naming each failed source.
    """
    # The context of the calling thread has the trace of the cycle.
    futures = {
        name: _get_source_threads().submit(contextvars.copy_context().run, fetch)
        for name, fetch in fetch_functions.items()
    }
    wait(futures.values())
    source_errors: list[tuple[str, CycleError]] = []
    payloads: dict[str, Payload] = {}
    for name, future in futures.items():
        try:
            payloads[name] = future.result()
        except CycleError as error:
            source_errors.append((name, error))
    if source_errors:
        raise _merge_errors(source_errors)
    return payloads


@functools.cache
def _get_source_threads() -> ThreadPoolExecutor:
    """Return the pool of threads that query sources in parallel. It adds threads on demand and reuses idle ones.

    The threads persist because connections are thread-local, and a handshake per cycle costs more than the cycle.
    """
    return ThreadPoolExecutor(_MAX_SOURCE_THREADS, thread_name_prefix="dsf-source")


def _merge_errors(source_errors: list[tuple[str, CycleError]]) -> CycleError:
    """Return one error that names each failed source. Its reason is that of the first source.

    It is retryable only if all errors are, because a retry queries all sources.
    """
    error = source_errors[0][1]
    text = "; ".join(f"source {name!r}: {error.message}" for name, error in source_errors)
    retry_delays = [error.retry_after for _, error in source_errors if error.retry_after is not None]
    return CycleError(
        error.stage,
        error.reason,
        clean(text, MESSAGE_LIMIT),
        retryable=all(error.retryable for _, error in source_errors),
        retry_after=max(retry_delays, default=None),
    )
