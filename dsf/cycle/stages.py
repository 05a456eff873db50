"""The stages fetch and score.

Each has the summary's time-out, and never more than what is left until the next cycle. Whatever goes wrong is a
CycleError with the stage, a reason fit for a metric label, and words for a person; it never holds a token.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from dsf import http
from dsf.api.scoring import ScoringResponse, parse_response
from dsf.api.summary import ScorerSummary
from dsf.cycle.cycle import Cycle
from dsf.cycle.tokens import SecretError, TokenSource
from dsf.errors import CycleError, HttpError, ScoringResponseError
from dsf.http.client import Stream
from dsf.http.deadline import made_for
from dsf.http.failures import place
from dsf.messages import MESSAGE_LIMIT, Stage
from dsf.settings import Settings
from dsf.sources import SOURCES, Context, Payload
from dsf.sources.base import Question
from dsf.sources.held import Held
from dsf.text import cleaned, masked

#: Bytes of a bad answer that are looked at for the token; fewer are shown.
_LOOKED_AT = 16 * 1024
_TOO_LATE = "no time is left before the next cycle begins"


class Observer:
    """Told of what the stages do. This one does not listen."""

    def asked(self, stage: Stage, question: Question) -> None:
        """A source or the scoring API was asked and has answered, or not."""

    def timed(self, score_name: str, stage: str, seconds: float) -> None:
        """One stage, or one try of it, took this long."""


class Stages:
    """Fetch and score. Thread-safe; the stages of one cycle are called one after another."""

    def __init__(
        self, settings: Settings, tokens: TokenSource, held: Held | None = None, observer: Observer | None = None
    ) -> None:
        """`held` is what sources keep between cycles."""
        self._settings = settings
        self._tokens = tokens
        self._held = held
        self._observer = observer or Observer()

    def fetch(self, cycle: Cycle) -> Payload:
        """Ask the source; what it says is the scoring request. Raises CycleError."""
        summary, held = cycle.summary, self._held
        source = SOURCES.get(summary.source_type)
        if source is None:
            known = ", ".join(SOURCES)
            raise CycleError(
                "fetch", "unsupported_source", f"source type {summary.source_type!r} is not one of {known}"
            )
        token = self._token(
            "fetch", summary.source_endpoint_auth_name, summary.source_endpoint_auth_key, summary.source_endpoint
        )
        with self._stage(cycle, "fetch", token) as deadline:
            context = Context(
                deadline,
                self._settings.max_source_bytes,
                time.time(),
                token,
                held,
                lambda: held is None or held.knows(cycle.scorer),
                lambda question: self._observer.asked("fetch", question),
            )
            payload = source(summary, context)
        cycle.counts |= {"series": payload.series, "bytes_in": payload.received}
        return payload

    def score(self, cycle: Cycle, request: bytes | Stream) -> None:
        """Send the scoring request and keep the answer in `cycle`. Raises CycleError."""
        summary = cycle.summary
        url = summary.scoring_endpoint
        token = self._token("score", summary.scoring_endpoint_auth_name, summary.scoring_endpoint_auth_key, url)
        question = Question("", url)
        with self._stage(cycle, "score", token) as deadline:
            with question.asked_for(lambda question: self._observer.asked("score", question)):
                answer = http.post(
                    url, request, token=token, deadline=deadline, max_bytes=self._settings.max_scoring_bytes
                )
                question.answered(len(answer), (answer,))
            cycle.response = self._parse(summary, answer, token)
        cycle.scored_at = time.time()
        cycle.counts |= {"bytes_out": len(request), "results": len(cycle.response.results)}

    @contextlib.contextmanager
    def _stage(self, cycle: Cycle, stage: Stage, token: str | None) -> Iterator[float]:
        """Gives the stage its deadline, takes its time, and says of which stage an error is, without its token."""
        started = time.monotonic()
        if started >= cycle.deadline:
            raise CycleError(stage, "deadline", _TOO_LATE)
        deadline = min(cycle.deadline, started + cycle.summary.timeout_seconds)
        try:
            with made_for(cycle):
                yield deadline
        except HttpError as error:
            # Each layer masks what it knows of; all errors come through here.
            text = cleaned(masked(str(error), token), MESSAGE_LIMIT)
            if error.reason == "timeout" and time.monotonic() >= cycle.deadline:
                raise CycleError(stage, "deadline", f"{text}; {_TOO_LATE}") from None
            raise CycleError(
                stage, error.reason, text, retryable=error.retryable, retry_after=error.retry_after
            ) from None
        finally:
            seconds = time.monotonic() - started
            cycle.timings[stage] = cycle.timings.get(stage, 0.0) + seconds
            self._observer.timed(cycle.summary.score_name, stage, seconds)

    def _token(self, stage: Stage, name: str, key: str, url: str) -> str | None:
        try:
            return self._tokens.token(name, key, url)
        except SecretError as error:
            raise CycleError(stage, error.reason, str(error)) from None

    def _parse(self, summary: ScorerSummary, answer: bytes, token: str | None) -> ScoringResponse:
        try:
            return parse_response(answer, max_results=self._settings.max_results)
        except ScoringResponseError as error:
            text = cleaned(str(error), MESSAGE_LIMIT)
            head = answer[:_LOOKED_AT].decode(errors="replace")
            if masked(head, token) != head:
                # What is shown of the answer may end within the token, so that it cannot be masked there.
                text = "the answer is not a scoring response; it is not shown because it repeats the token"
            raise CycleError("score", error.reason, f"{place('POST', summary.scoring_endpoint)}: {text}") from None
