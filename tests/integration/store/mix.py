"""Everything that can happen to pairs, at random; and the rows in memory beside a recount of all pairs."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import redis

from dsf import keys
from dsf.beat.dispatch import Dispatcher
from dsf.fleet.queries import FleetQueries
from dsf.fleet.selection import PairFilter
from dsf.fleet.snapshot import iter_rows
from dsf.fleet.verdict import Verdict, compute_verdict
from dsf.store.entries import Entry, apply_overrides, make_scorer_target
from dsf.store.registry import ClusterRecord, ScorerRecord
from tests.integration.results.bed import ResultsHarness

CLUSTERS = ["c1", "c2", "c3", "c4"]
SCORERS = ["s1", "s2", "s3"]

#: Values that rows and recount must agree on: state, stage and reason of each pair.
Known = dict[tuple[str, str], tuple[Verdict, str, str]]


class Mix:
    """A hub with a clock that the test moves, and beat's dispatcher."""

    def __init__(self, bed: ResultsHarness, seed: int) -> None:
        self.bed = bed
        self.client: redis.Redis = bed.client
        self.dice = random.Random(seed)
        self.model = FleetQueries(self.client, lambda: self.bed.now)
        self.dispatcher = Dispatcher(self.client, batch=50, queue_limit=2, spread_rate=1000, clock=lambda: self.bed.now)
        for cluster in CLUSTERS:
            for scorer in SCORERS:
                self.add(cluster, scorer)

    # --- events ------------------------------------------------------------------------------------------------------

    def add(self, cluster: str, scorer: str, **values: Any) -> None:
        name = f"score of {scorer}"
        self.bed.registry.put_cluster(ClusterRecord(name=cluster))
        self.bed.registry.put_scorer(ScorerRecord(name=scorer, score_name=name, interval=30, validity=60))
        entry = Entry(cluster=cluster, scorer=scorer, score_name=name, interval=30, **values)
        self.bed.schedule.upsert([entry], self.bed.now)

    def beat(self) -> None:
        self.dispatcher.run()

    def result(self) -> None:
        """Ingest results of up to four open runs."""
        members = sorted(str(member) for member in self.client.zrange(keys.OPEN_RUNS, 0, -1))
        for member in self.dice.sample(members, min(len(members), 4)):
            pair, _, run = member.rpartition("/")
            cluster, scorer = keys.split_pair(pair)
            self.client.ltrim(keys.spoke_queue(cluster), 0, 0)
            outcome = self.dice.choice(["ok", "ok", "ok", "empty", "error", "error", "skipped"])
            reason = self.dice.choice(["bad_query", "timeout"]) if outcome == "error" else "expired"
            self.bed.send(
                run, cluster, scorer, outcome=outcome, reason=reason, stage=self.dice.choice(["fetch", "score"])
            )

    def by_hand(self) -> None:
        cluster, scorer = self.random_pair()
        if self.client.hexists(keys.ENTRIES, keys.pair(cluster, scorer)):
            self.bed.cycle(cluster, scorer, results=[({"node": "a"}, self.dice.uniform(-200, 200))])

    def wait(self) -> None:
        self.bed.now += self.dice.choice([1, 5, 31, 70])

    def sweep(self) -> None:
        self.bed.sweep()

    def pause(self) -> None:
        cluster, scorer = self.random_pair()
        target = self.dice.choice([keys.pair(cluster, scorer), make_scorer_target(scorer)])
        pause_end = self.dice.choice([None, self.bed.now + 20])
        self.bed.schedule.set_override(target, paused=True, paused_until=pause_end, now=self.bed.now)

    def resume(self) -> None:
        for target in sorted(self.bed.schedule.read_overrides()):
            self.bed.schedule.reset(target, self.bed.now)

    def remove(self) -> None:
        cluster, scorer = self.random_pair()
        removed_pairs = self.dice.choice([[(cluster, scorer)], [(other_cluster, scorer) for other_cluster in CLUSTERS]])
        self.bed.schedule.remove([keys.pair(*pair) for pair in removed_pairs])

    def come_back(self) -> None:
        for cluster in CLUSTERS:
            for scorer in SCORERS:
                self.add(cluster, scorer, suspended=self.dice.random() < 0.1, runnable=self.dice.random() > 0.1)

    def leave(self) -> None:
        """A cluster and all its pairs."""
        cluster = self.dice.choice(CLUSTERS)
        self.bed.schedule.remove([keys.pair(cluster, scorer) for scorer in SCORERS])

    def look(self) -> None:
        """Update a reader with the changes so far."""
        self.model.rows()

    def forget(self) -> None:
        self.bed.runs.forget(self.bed.runs.find_leftovers())

    def random_pair(self) -> tuple[str, str]:
        return self.dice.choice(CLUSTERS), self.dice.choice(SCORERS)

    def step(self) -> None:
        weights: dict[Callable[[], None], int] = {
            self.beat: 8, self.result: 8, self.wait: 5, self.sweep: 2, self.by_hand: 2, self.look: 2, self.forget: 1,
            self.pause: 1, self.resume: 1, self.remove: 1, self.leave: 1, self.come_back: 1,
        }  # fmt: skip
        [event] = self.dice.choices(list(weights), list(weights.values()))
        event()
        self.bed.now += 0.01

    # --- the two ways to know ----------------------------------------------------------------------------------------

    def recount(self) -> Known:
        """By reading every pair."""
        overrides = self.bed.schedule.read_overrides()
        recounted: Known = {}
        for entry in self.bed.schedule.read_entries():
            state = self.bed.state(entry.cluster, entry.scorer)
            effective_entry = apply_overrides(entry.model_copy(update={"runnable": True}), overrides, self.bed.now)
            judged = compute_verdict(state, self.bed.now, is_paused=effective_entry.paused)
            stage = reason = ""
            if judged is Verdict.FAILING and state.current_failure is not None:
                stage, reason = state.current_failure.stage, state.current_failure.reason
            elif judged in (Verdict.SKIPPED, Verdict.EXPIRED, Verdict.NEVER_SUCCEEDED) and state.skips is not None:
                reason = state.skips.reason
            elif judged in (Verdict.OK, Verdict.EMPTY) and state.remark is not None:
                reason = state.remark.reason
            recounted[entry.cluster, entry.scorer] = (judged, stage, reason)
        return recounted

    def check(self) -> None:
        """Check that the rows in memory agree with a read of every pair, by any query, and with a new reader."""
        assert every_row(self.model) == every_row(FleetQueries(self.client))
        expected_states = self.recount()
        by_scorer: defaultdict[str, Counter[str]] = defaultdict(Counter)
        groups: defaultdict[str, Counter[tuple[str, str, str]]] = defaultdict(Counter)
        for (_, scorer), (state, stage, reason) in expected_states.items():
            by_scorer[scorer][state] += 1
            if reason:
                groups[scorer][state, stage, reason] += 1
        fleet = self.model.summary()
        assert fleet.pairs == len(expected_states)
        for scorer_row in fleet.scorers:
            assert counts(scorer_row.states) == by_scorer[scorer_row.name]
            assert {(g.state, g.stage, g.reason): g.clusters for g in scorer_row.reasons} == groups[scorer_row.name]
        ages = [state for pair in expected_states if (state := self.bed.state(*pair)).last_success is not None]
        assert sum(scorer_row.ages.count for scorer_row in fleet.scorers) == len(ages)
        self._check_pages(expected_states)
        self._check_clusters(expected_states)
        self._check_values(expected_states)

    def _check_pages(self, expected_states: Known) -> None:
        rows, cursor = [], None
        while True:
            page = self.model.pairs(limit=3, cursor=cursor)
            rows += page.pairs
            assert page.total == len(expected_states)
            if (cursor := page.cursor) is None:
                break
        assert {(row.cluster, row.scorer): row.state for row in rows} == {
            pair: state_and_reason[0] for pair, state_and_reason in expected_states.items()
        }
        assert len(rows) == len(expected_states)
        order = list(Verdict)
        assert [order.index(row.state) for row in rows] == sorted(order.index(row.state) for row in rows)
        repeated_rows = self.model.pairs(PairFilter(clusters=CLUSTERS))
        assert repeated_rows.pairs == rows
        for state, stage, reason in set(expected_states.values()):
            expected_pairs = {
                pair for pair, state_and_reason in expected_states.items() if state_and_reason == (state, stage, reason)
            }
            if reason:
                filtered_page = self.model.pairs(PairFilter(stage=stage, reason=reason, states=[state]))
                assert {(row.cluster, row.scorer) for row in filtered_page.pairs} == expected_pairs
            filtered_page = self.model.pairs(PairFilter(states=[state]))
            assert filtered_page.total == sum(
                state_and_reason[0] is state for state_and_reason in expected_states.values()
            )

    def _check_clusters(self, expected_states: Known) -> None:
        page = self.model.clusters(limit=200)
        assert {
            (cluster_row.name, scorer): state
            for cluster_row in page.clusters
            for scorer, state in cluster_row.scorers.items()
        } == {pair: state_and_reason[0] for pair, state_and_reason in expected_states.items()}
        failing = [cluster_row.states.failing for cluster_row in page.clusters]
        assert failing == sorted(failing, reverse=True)

    def _check_values(self, expected_states: Known) -> None:
        ok_pairs = {pair for pair, state_and_reason in expected_states.items() if state_and_reason[0] is Verdict.OK}
        expected = {pair: value for pair in ok_pairs if (value := self.bed.state(*pair).value) is not None}
        top_values = {
            (top_row.cluster, scorer): top_row.value
            for scorer in self.bed.registry.read_scorers()
            for top_row in self.model.scorer(scorer).top
        }
        assert top_values == expected


def every_row(model: FleetQueries) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return all data of each pair."""
    rows_by_pair = {}
    for row in iter_rows(model.rows()):
        reason = row.find_failure(Verdict.FAILING if row.is_failing else Verdict.OK)
        parts = (row.last_success, row.valid_until, row.items, row.value, row.is_failing, row.is_skipped, reason)
        rows_by_pair[row.cluster, row.scorer] = parts
    return rows_by_pair


def counts(states: Any) -> Counter[str]:
    """Return the counts that are not 0."""
    return Counter({name: number for name, number in states.model_dump(by_alias=False).items() if number})
