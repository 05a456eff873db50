"""The books balance to the last run, in any order of events and with any repetition."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from dsf import keys, messages
from dsf.store.pairs import OUTCOMES
from tests.integration.results.bed import ResultsHarness, handle

PAIRS = [("c1", "s1"), ("c1", "s2"), ("c2", "s1")]
Run = tuple[str, str, str]


class Simulation:
    """Random events on a hub, and the simplest possible books beside it: each run has one outcome, or is open."""

    def __init__(self, bed: ResultsHarness, seed: int) -> None:
        self.bed = bed
        self.dice = random.Random(seed)
        self.outcome: dict[Run, str] = {}
        self.unheard: list[Run] = []
        self.sent: list[dict[str, Any]] = []
        for cluster, scorer in PAIRS:
            bed.add(cluster, scorer)

    def counts(self, pair: tuple[str, str]) -> Counter[str]:
        return Counter(outcome for run, outcome in self.outcome.items() if run[:2] == pair)

    def dispatch(self) -> None:
        pair = self.dice.choice(PAIRS)
        run = (*pair, self.bed.open(*pair, deadline=self.dice.choice([5, 60])))
        self.outcome[run] = "open"
        self.unheard.append(run)

    def skip_on_the_hub(self) -> None:
        pair = self.dice.choice(PAIRS)
        with self.bed.client.pipeline() as pipe:
            pipe.hincrby(keys.pair_key(*pair), "n:scheduled", 1)
            pipe.hincrby(keys.pair_key(*pair), "n:skipped:queue_full", 1)
            pipe.execute()
        self.outcome[(*pair, f"hub-{len(self.outcome)}")] = "skipped"

    def result(self) -> None:
        if not self.unheard:
            return
        # Any of them, so that results overtake each other.
        cluster, scorer, run = run_key = self.unheard.pop(self.dice.randrange(len(self.unheard)))
        outcome = self.dice.choice(["ok", "ok", "ok", "empty", "partial", "error", "skipped"])
        frame = self.bed.frame(run, cluster, scorer, outcome=outcome, reason="some_reason")
        self.sent.append(frame)
        response = handle(self.bed.ingest, frame)
        if self.outcome[run_key] == "lost":
            assert response == "late"
        else:
            assert response == outcome
            self.outcome[run_key] = outcome

    def skewed(self) -> None:
        if not self.unheard:
            return
        cluster, scorer, run = run_key = self.unheard.pop()
        response = handle(self.bed.ingest, self.bed.frame(run, cluster, scorer, at=self.bed.now + 1000))
        if self.outcome[run_key] == "lost":
            assert response == "stale"
        else:
            assert response == "error"
            self.outcome[run_key] = "error"

    def duplicate(self) -> None:
        if self.sent:
            frame = self.dice.choice(self.sent[-20:])
            assert handle(self.bed.ingest, frame) in ("replayed", "stale")

    def by_hand(self) -> None:
        pair = self.dice.choice(PAIRS)
        # Newer than anything before, as the agent's own run ids are.
        self.bed.now += 0.01
        run = (*pair, messages.make_run_id(self.bed.now))
        assert handle(self.bed.ingest, self.bed.frame(run[2], *pair)) == "ok"
        self.outcome[run] = "ok"

    def sweep(self) -> None:
        for member in self.bed.sweep():
            cluster, scorer, run = member.split("/")
            assert self.outcome[cluster, scorer, run] == "open"
            self.outcome[cluster, scorer, run] = "lost"

    def wait(self) -> None:
        self.bed.now += self.dice.choice([0.02, 1, 7, 40])

    def step(self) -> None:
        events = [self.dispatch, self.result, self.wait, self.duplicate]
        events += [self.skip_on_the_hub, self.by_hand, self.sweep, self.skewed]
        (event,) = self.dice.choices(events, weights=[6, 6, 4, 2, 1, 1, 1, 1])
        event()
        self.bed.now += 0.002

    def check(self) -> None:
        for pair in PAIRS:
            state, counts = self.bed.state(*pair), self.counts(pair)
            assert {name: state.count(name) for name in OUTCOMES} == {name: counts[name] for name in OUTCOMES}
            assert state.scheduled == sum(counts.values())
            assert state.open == counts["open"]
            assert sum(state.read_error_counts().values()) == state.count("error")
        assert self.bed.client.zcard(keys.OPEN_RUNS) == Counter(self.outcome.values())["open"]


@pytest.mark.parametrize("seed", range(12))
def test_books_balance_after_any_sequence_of_results(bed: ResultsHarness, seed: int) -> None:
    simulation = Simulation(bed, seed)
    for _ in range(5):
        for _ in range(50):
            simulation.step()
        simulation.check()
    # In the end every cycle has a result or is lost.
    bed.now += 1000
    simulation.sweep()
    simulation.check()
    assert all(bed.state(*pair).open == 0 for pair in PAIRS)
