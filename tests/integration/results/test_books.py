"""The counters of pairs match the outcomes of all runs, after events in any order and with repetitions."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dsf import keys, messages
from dsf.store.pairs import OUTCOMES
from tests.integration.results.bed import ResultsHarness, handle

PAIRS = [("c1", "s1"), ("c1", "s2"), ("c2", "s1")]
#: Cluster, scorer and run id.
RunKey = tuple[str, str, str]


class Simulation:
    """Applies random events to a hub, and records the expected outcome of each run, which is "open" until it ends."""

    def __init__(self, harness: ResultsHarness, seed: int) -> None:
        self.harness = harness
        self.random = random.Random(seed)
        self.outcomes: dict[RunKey, str] = {}
        self.runs_without_result: list[RunKey] = []
        self.sent_frames: list[bytes] = []
        for cluster, scorer in PAIRS:
            harness.add(cluster, scorer)

    def count_outcomes(self, pair: tuple[str, str]) -> Counter[str]:
        return Counter(outcome for run_key, outcome in self.outcomes.items() if run_key[:2] == pair)

    def dispatch_run(self) -> None:
        pair = self.random.choice(PAIRS)
        run_key = (*pair, self.harness.open(*pair, deadline=self.random.choice([5, 60])))
        self.outcomes[run_key] = "open"
        self.runs_without_result.append(run_key)

    def skip_run_on_hub(self) -> None:
        """Count a skipped run as beat does if the queue is full."""
        pair = self.random.choice(PAIRS)
        with self.harness.client.pipeline() as pipe:
            pipe.hincrby(keys.pair_key(*pair), "n:scheduled", 1)
            pipe.hincrby(keys.pair_key(*pair), "n:skipped:queue_full", 1)
            pipe.execute()
        self.outcomes[(*pair, f"hub-{len(self.outcomes)}")] = "skipped"

    def ingest_result(self) -> None:
        if not self.runs_without_result:
            return
        # Choose any run, so that results overtake each other.
        index = self.random.randrange(len(self.runs_without_result))
        cluster, scorer, run_id = run_key = self.runs_without_result.pop(index)
        outcome = self.random.choice(["ok", "ok", "ok", "empty", "partial", "error", "skipped"])
        frame = self.harness.frame(run_id, cluster, scorer, outcome=outcome, reason="some_reason")
        self.sent_frames.append(frame)
        response = handle(self.harness.ingest, frame)
        if self.outcomes[run_key] == "lost":
            assert response == "late"
        else:
            assert response == outcome
            self.outcomes[run_key] = outcome

    def ingest_result_from_future(self) -> None:
        """Ingest a result of an agent whose clock is 1000 seconds ahead."""
        if not self.runs_without_result:
            return
        cluster, scorer, run_id = run_key = self.runs_without_result.pop()
        frame = self.harness.frame(run_id, cluster, scorer, at=self.harness.now + 1000)
        response = handle(self.harness.ingest, frame)
        if self.outcomes[run_key] == "lost":
            assert response == "stale"
        else:
            assert response == "error"
            self.outcomes[run_key] = "error"

    def ingest_result_again(self) -> None:
        if self.sent_frames:
            frame = self.random.choice(self.sent_frames[-20:])
            assert handle(self.harness.ingest, frame) in ("replayed", "stale")

    def ingest_result_of_undispatched_run(self) -> None:
        """Ingest the result of a run that a user has started on an agent."""
        pair = self.random.choice(PAIRS)
        # The agent makes the run id, which is newer than all earlier run ids.
        self.harness.now += 0.01
        run_key = (*pair, messages.make_run_id(self.harness.now))
        assert handle(self.harness.ingest, self.harness.frame(run_key[2], *pair)) == "ok"
        self.outcomes[run_key] = "ok"

    def sweep_lost_runs(self) -> None:
        for member in self.harness.sweep():
            cluster, scorer, run_id = member.split("/")
            assert self.outcomes[cluster, scorer, run_id] == "open"
            self.outcomes[cluster, scorer, run_id] = "lost"

    def advance_clock(self) -> None:
        self.harness.now += self.random.choice([0.02, 1, 7, 40])

    def apply_random_event(self) -> None:
        weights_by_event = {
            self.dispatch_run: 6,
            self.ingest_result: 6,
            self.advance_clock: 4,
            self.ingest_result_again: 2,
            self.skip_run_on_hub: 1,
            self.ingest_result_of_undispatched_run: 1,
            self.sweep_lost_runs: 1,
            self.ingest_result_from_future: 1,
        }
        (apply_event,) = self.random.choices(list(weights_by_event), weights=list(weights_by_event.values()))
        apply_event()
        self.harness.now += 0.002

    def check_counters(self) -> None:
        """Compare the counters of each pair, and the number of open runs, with the expected outcomes."""
        for pair in PAIRS:
            state, counts = self.harness.state(*pair), self.count_outcomes(pair)
            assert {name: state.count(name) for name in OUTCOMES} == {name: counts[name] for name in OUTCOMES}
            assert state.scheduled == sum(counts.values())
            assert state.open == counts["open"]
            assert sum(state.read_error_counts().values()) == state.count("error")
        assert self.harness.client.zcard(keys.OPEN_RUNS) == Counter(self.outcomes.values())["open"]


@pytest.mark.parametrize("seed", range(12))
def test_counters_match_outcomes_after_any_sequence_of_events(bed: ResultsHarness, seed: int) -> None:
    simulation = Simulation(bed, seed)
    for _ in range(5):
        for _ in range(50):
            simulation.apply_random_event()
        simulation.check_counters()
    # After the deadlines of all runs, every run has a result or is lost.
    bed.now += 1000
    simulation.sweep_lost_runs()
    simulation.check_counters()
    assert all(bed.state(*pair).open == 0 for pair in PAIRS)
