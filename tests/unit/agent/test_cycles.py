"""Start and end of a cycle without Redis; its stages are Celery tasks that run in the test."""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery

from dsf.agent.cycles import AgentCycle, CycleRunner
from dsf.agent.metrics import AgentMetrics
from dsf.api.scoringresponse import ScoringResponse, ScoringResult
from dsf.api.summary import ScorerSummary
from dsf.errors import CycleError
from dsf.messages import Result, make_run_id, run_time
from tests.support.fixtures import SettingsFactory
from tests.unit.agent.test_metrics import Clock, Config, page, scorer

HUB_NOW = 1_800_000_000.5


class CyclesHarness:
    """Runs cycles whose source and scoring API are functions of a test."""

    def __init__(self, settings: Any, app: Celery, **summary: Any) -> None:
        self.clock = Clock()
        config: Any = Config(scorer("a", **summary))
        self.metrics = AgentMetrics("c", config, self.clock)
        self.stages, self.outbox = Mock(), Mock()
        self.stages.fetch.side_effect = lambda _: Mock(pieces=[b"{}"], size=2, series=1, received=2)
        self.stages.score.side_effect = self._score
        self.cycles = CycleRunner(settings, config, self.stages, self.outbox, self.metrics, hub_time=lambda: HUB_NOW)
        self.tasks = tuple(self._task(app, name) for name in ("fetch", "score", "publish"))

    def _score(self, cycle: Any, _: object) -> None:
        cycle.response = ScoringResponse([ScoringResult({}, 1.0)], Counter())
        cycle.counts["results"] = 1

    def _task(self, app: Celery, name: str) -> Any:
        @app.task(bind=True, shared=False, name=f"dsf.{name}", throws=(CycleError,), max_retries=None)
        def stage(task: Any, cycle: AgentCycle) -> Any:
            return getattr(self.cycles, name)(task, cycle)

        return stage

    def run(self, run_id: str | None = None, deadline: float | None = None) -> str:
        return self.cycles.run("a", run_id, deadline, self.tasks)

    @property
    def sent(self) -> list[Result]:
        return [call.args[0] for call in self.outbox.send.call_args_list]


@pytest.fixture
def make(settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CyclesHarness]]:
    monkeypatch.setattr("dsf.agent.cycles.FIRST_PAUSE_SECONDS", 0.01)
    with Celery("cycles", set_as_current=False) as app:
        yield lambda **summary: CyclesHarness(settings_factory(role="agent", cluster="c"), app, **summary)


def test_manual_call_uses_the_time_of_the_hub(make: Callable[..., CyclesHarness]) -> None:
    bed = make()
    assert bed.run() == "ok"
    (result,) = bed.sent
    assert (run_time(result.run), result.outcome) == (HUB_NOW, "ok")


def test_expired_tick_is_skipped_by_the_clock_of_the_hub(make: Callable[..., CyclesHarness]) -> None:
    bed = make()
    assert bed.run(make_run_id(HUB_NOW - 30), HUB_NOW - 0.1) == "skipped: expired"
    assert [(result.outcome, result.reason) for result in bed.sent] == [("skipped", "expired")]
    bed.stages.fetch.assert_not_called()


def test_composite_is_tried_again_as_soon_as_its_inputs_are_there(
    make: Callable[..., CyclesHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsf.agent.cycles.FIRST_PAUSE_SECONDS", 8.0)
    bed = make(scores=[{"scorer": "b", "as": "b"}, {"scorer": "d", "as": "d", "default": 1}], interval=60)
    pauses: list[float] = []

    def store_input(seconds: float) -> bool:
        pauses.append(seconds)
        bed.cycles._results.put(ScorerSummary.model_validate({"name": "b", "scoreName": "b"}), [({}, 1.0)], 60.0)
        return False

    def fail_once(cycle: Any, payload: object) -> None:
        bed.stages.score.side_effect = bed._score
        raise CycleError("score", "missing_input", "'b' is missing", retryable=True)

    bed.stages.score.side_effect = fail_once
    monkeypatch.setattr(bed.cycles._stopping, "wait", store_input)
    assert bed.run() == "ok"
    # One check, in place of the pause of 4 to 8 s.
    (pause,) = pauses
    assert pause < 1


def test_cycle_without_enough_time_is_skipped(make: Callable[..., CyclesHarness]) -> None:
    """Starting it would occupy a thread without a result."""
    bed = make()

    def outcome_after(last: float, remaining_seconds: float) -> str:
        """Return the outcome of a cycle with the remaining seconds after a cycle that took `last` seconds."""
        bed.cycles._running.store_duration("a", last)
        return bed.run(make_run_id(HUB_NOW + remaining_seconds - 10), HUB_NOW + remaining_seconds)

    assert outcome_after(0.0, 0.5) == "ok"
    assert outcome_after(3.0, 2.5) == "skipped: expired"
    assert "until no time was left for a cycle" in bed.sent[-1].message
    assert bed.stages.fetch.call_count == 1
    assert outcome_after(3.0, 4.0) == "ok"
    # Half of the interval is enough for a start.
    assert (outcome_after(9.0, 5.5), outcome_after(9.0, 4.5)) == ("ok", "skipped: expired")
    # The last cycle may have been slow once: after five skipped cycles one runs, and again after five if it fails.
    bed.cycles.end_removed([])
    bed.stages.fetch.side_effect = CycleError("fetch", "timeout", "too slow")
    bed.cycles._running.store_duration("a", 3.0)
    outcomes = []
    for number in range(13):
        # Expired ticks are not counted.
        assert bed.run(make_run_id(HUB_NOW - 30 - number), HUB_NOW - 1) == "skipped: expired"
        try:
            outcomes.append(bed.run(make_run_id(HUB_NOW - 7.5 + number / 1000), HUB_NOW + 2.5))
        except CycleError:
            outcomes.append("failed")
    assert outcomes == [*["skipped: expired"] * 5, "failed", *["skipped: expired"] * 5, "failed", "skipped: expired"]


def test_cycle_duration_is_the_sum_of_its_stages(make: Callable[..., CyclesHarness]) -> None:
    bed = make()
    fetch = bed.stages.fetch.side_effect

    def slow(cycle: Any) -> Any:
        cycle.timings["fetch"] = 3.0
        return fetch(cycle)

    bed.stages.fetch.side_effect = slow
    assert bed.run(make_run_id(HUB_NOW), HUB_NOW + 10) == "ok"
    assert bed.run(make_run_id(HUB_NOW - 7.5), HUB_NOW + 2.5) == "skipped: expired"


def test_unreadable_configuration_is_reported(make: Callable[..., CyclesHarness]) -> None:
    bed = make()
    bed.cycles._config.now.clear()  # type: ignore[attr-defined]
    bed.cycles._config.problem = "not JSON"  # type: ignore[misc]
    with pytest.raises(CycleError, match="the agent cannot read the configuration of this cluster: not JSON"):
        bed.run(make_run_id(HUB_NOW), HUB_NOW + 0.1)


def test_failed_stage_frees_its_response(make: Callable[..., CyclesHarness]) -> None:
    bed = make(max_retries=1)
    answers: list[weakref.ref[object]] = []

    class Answer:
        """The response that a stage has read before it fails."""

    def fetch(_: object) -> None:
        received = Answer()
        answers.append(weakref.ref(received))
        try:
            raise ValueError
        except ValueError:
            raise CycleError("fetch", "http_503", "busy", retryable=True) from None

    bed.stages.fetch.side_effect = fetch
    gc.disable()
    try:
        with pytest.raises(CycleError) as caught:
            bed.run(make_run_id(HUB_NOW), HUB_NOW + 60)
        assert caught.value.__traceback__
        assert [answer() for answer in answers] == [None, None]
    finally:
        gc.enable()


def test_successful_cycle_frees_its_payload_and_its_response(make: Callable[..., CyclesHarness]) -> None:
    """The garbage collector runs too rarely to free them: an agent grew by 60 MB."""
    bed = make()
    cycles: list[AgentCycle] = []
    score = bed.stages.score.side_effect

    def record(cycle: AgentCycle, payload: object) -> None:
        assert payload == b"{}"
        cycles.append(cycle)
        score(cycle, payload)

    bed.stages.score.side_effect = record
    assert bed.run(make_run_id(HUB_NOW), HUB_NOW + 60) == "ok"
    (cycle,) = cycles
    assert (cycle.payload, cycle.response) == (b"", None)


def test_memory_is_reserved_until_a_failed_stage_frees_its_response(make: Callable[..., CyclesHarness]) -> None:
    bed = make()
    reserved_bytes: list[int] = []

    class Answer:
        """The response that a stage has read before it fails."""

    def fetch(cycle: AgentCycle) -> None:
        received = Answer()
        cycle.storage.reserve(100)
        weakref.finalize(received, lambda: reserved_bytes.append(bed.cycles._budget.reserved))
        raise CycleError("fetch", "bad_answer", "no metrics")

    bed.stages.fetch.side_effect = fetch
    with pytest.raises(CycleError):
        bed.run(make_run_id(HUB_NOW), HUB_NOW + 60)
    assert reserved_bytes == [100]
    assert bed.cycles._budget.reserved == 0


def test_errors_that_refer_to_each_other_end_the_cycle(make: Callable[..., CyclesHarness]) -> None:
    bed, other = make(), ValueError("of a plug-in")

    def fetch(_: object) -> None:
        error = CycleError("fetch", "http_503", "busy")
        error.__context__, other.__context__ = other, error
        raise error

    bed.stages.fetch.side_effect = fetch
    with pytest.raises(CycleError, match="busy"):
        bed.run(make_run_id(HUB_NOW))
    assert [result.reason for result in bed.sent] == ["http_503"]


def test_duplicate_tick_runs_one_cycle(make: Callable[..., CyclesHarness]) -> None:
    bed, run = make(), make_run_id(HUB_NOW)
    assert [bed.run(run, HUB_NOW + 30) for _ in range(2)] == ["ok", "duplicate"]
    assert len(bed.sent) == 1


@pytest.mark.parametrize("error", [SystemExit(1), ValueError("x")])
def test_cycle_is_reported_after_any_error_of_a_stage(make: Callable[..., CyclesHarness], error: BaseException) -> None:
    bed = make()
    bed.stages.fetch.side_effect = error
    with pytest.raises(CycleError, match="internal_error"):
        bed.run(make_run_id(HUB_NOW))
    assert [(result.outcome, result.stage, result.reason) for result in bed.sent] == [
        ("error", "fetch", "internal_error")
    ]
    # The next cycle may start.
    bed.stages.fetch.side_effect = lambda _: Mock(pieces=[b"{}"], size=2, series=1, received=2)
    assert bed.run(make_run_id(HUB_NOW + 1)) == "ok"


def test_stage_is_retried_within_retries_and_deadline(
    make: Callable[..., CyclesHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsf.agent.cycles._MIN_TRY_SECONDS", 30.0)
    bed = make(max_retries=2)
    busy = CycleError("fetch", "http_503", "busy", retryable=True)
    bed.stages.fetch.side_effect = [busy, busy, Mock(pieces=[b"{}"], size=2, series=1, received=2)]
    assert bed.run(make_run_id(HUB_NOW), HUB_NOW + 60) == "ok"
    assert bed.sent[0].counts["retries"] == 2
    # Retries end at maxRetries and at the deadline, which Retry-After may exceed.
    later = CycleError("fetch", "http_503", "busy", retryable=True, retry_after=1000)
    for number, (error, remaining_seconds, tries) in enumerate(
        [(busy, 60.0, 3), (busy, 30.0, 1), (later, 600.0, 1)], 1
    ):
        bed.stages.fetch.reset_mock()
        bed.stages.fetch.side_effect = error
        with pytest.raises(CycleError, match="busy"):
            bed.run(make_run_id(HUB_NOW + number), HUB_NOW + remaining_seconds)
        assert bed.stages.fetch.call_count == tries


@pytest.mark.parametrize(("values", "validity"), [({}, 1800), ({"validity_seconds": 20}, 20)])
def test_own_series_last_as_long_as_the_hubs_score_at_the_interval_of_the_tick(
    make: Callable[..., CyclesHarness], values: dict[str, int], validity: int
) -> None:
    bed = make(**values)
    # An override raises 10 s to 10 minutes: the next tick is due at the deadline of this one.
    assert bed.run(make_run_id(HUB_NOW), HUB_NOW + 600) == "ok"
    bed.clock.time += validity - 1
    assert len(page(bed.metrics)) == 1
    bed.clock.time += 1
    assert page(bed.metrics) == []


def test_time_of_the_agent_and_of_the_result(make: Callable[..., CyclesHarness]) -> None:
    bed, before = make(), time.time()
    bed.stages.fetch.side_effect = CycleError("fetch", "bad_query", "no")
    with pytest.raises(CycleError):
        bed.run()
    assert before <= bed.sent[0].at <= time.time()


def test_retry_waits_for_the_retry_after_of_the_server(make: Callable[..., CyclesHarness]) -> None:
    bed, moments = make(max_retries=1), list[float]()

    def fetch(_: object) -> Mock:
        moments.append(time.monotonic())
        if len(moments) == 1:
            raise CycleError("fetch", "http_error", "slow down", retryable=True, retry_after=0.4)
        return Mock(pieces=[b"{}"], size=2, series=1, received=2)

    bed.stages.fetch.side_effect = fetch
    assert bed.run(make_run_id(HUB_NOW), HUB_NOW + 60) == "ok"
    assert moments[1] - moments[0] >= 0.4
