"""The rows in memory equal a full recount after any sequence of changes."""

from __future__ import annotations

import pytest

from dsf import keys
from dsf.fleet.queries import FleetQueries
from tests.integration.results.bed import ResultsHarness
from tests.integration.store.mix import CLUSTERS, SCORERS, Mix

PAIRS = [keys.pair(cluster, scorer) for cluster in CLUSTERS for scorer in SCORERS]


@pytest.mark.parametrize("seed", range(12))
def test_model_counts_match_a_recount_after_any_mix(bed: ResultsHarness, seed: int) -> None:
    mix = Mix(bed, seed)
    for _ in range(6):
        for _ in range(40):
            mix.step()
        mix.check()


def test_model_in_memory_counts_like_a_server(bed_in_memory: ResultsHarness) -> None:
    test_model_counts_match_a_recount_after_any_mix(bed_in_memory, 0)


def test_removed_pairs_leave_no_keys_behind(bed_in_memory: ResultsHarness) -> None:
    mix = Mix(bed_in_memory, 5)
    for _ in range(150):
        mix.step()
    before = mix.model.summary().sequence
    mix.bed.schedule.remove(PAIRS)
    assert mix.model.summary().pairs == 0
    removed_pairs = {keys.pair(*pair) for pair in mix.model.updates(before).pairs}
    assert removed_pairs
    # The second sweep removes the record of their removal.
    mix.bed.runs.forget(mix.bed.runs.find_leftovers())
    remaining_keys = {key for key in (keys.ROWS, keys.SKIPS, keys.UNWRITTEN, keys.CHANGED) if mix.client.exists(key)}
    assert remaining_keys == set()
    assert mix.model.summary().pairs == 0


def test_reader_drops_a_pair_that_was_forgotten_in_its_absence(bed_in_memory: ResultsHarness) -> None:
    mix = Mix(bed_in_memory, 3)
    assert mix.model.summary().pairs == len(PAIRS)
    mix.bed.schedule.remove(["c1/s1"])
    while mix.client.zscore(keys.CHANGED, "c1/s1") is not None:
        mix.bed.runs.forget(mix.bed.runs.find_leftovers())
    mix.check()
    assert mix.model.summary().pairs == len(PAIRS) - 1


def test_reader_survives_an_emptied_redis(bed_in_memory: ResultsHarness) -> None:
    mix = Mix(bed_in_memory, 4)
    bed_in_memory.cycle("c1", "s1")
    assert mix.model.scorer("s1").states.ok == 1
    mix.client.flushall()
    assert mix.model.summary().pairs == 0
    second_mix = Mix(bed_in_memory, 4)
    bed_in_memory.cycle("c2", "s1", outcome="error")
    second_mix.model = mix.model
    second_mix.check()
    assert mix.model.scorer("s1").states.failing == 1


def test_reader_detects_an_emptied_redis_that_has_caught_up(bed_in_memory: ResultsHarness) -> None:
    """Make more changes than the log holds, while nobody reads it."""
    mix = Mix(bed_in_memory, 4)
    bed_in_memory.cycle("c1", "s1")
    assert mix.model.scorer("s1").states.ok == 1
    mix.client.flushall()
    second_mix = Mix(bed_in_memory, 4)
    for _ in range(20):
        bed_in_memory.cycle("c2", "s1")
    second_mix.model = mix.model
    second_mix.check()
    assert mix.model.scorer("s1").states.never == len(CLUSTERS) - 1


def test_reader_reloads_an_older_copy_of_redis(bed_in_memory: ResultsHarness) -> None:
    """A replica that took over lacks the newest changes."""
    mix = Mix(bed_in_memory, 6)
    before = mix.client.dump(keys.ROWS), mix.client.get(keys.SEQUENCE)
    bed_in_memory.cycle("c1", "s1")
    assert mix.model.scorer("s1").states.ok == 1
    assert before[0] is None
    mix.client.delete(keys.ROWS)
    mix.client.set(keys.SEQUENCE, str(before[1]))
    assert mix.model.scorer("s1").states.ok == 0


def test_unreadable_row_counts_as_a_pair_that_never_ran(bed_in_memory: ResultsHarness) -> None:
    mix = Mix(bed_in_memory, 1)
    for text in ("", "{", "[]", "7"):
        mix.client.hset(keys.ROWS, "c1/s1", text)
        assert FleetQueries(mix.client).scorer("s1").states.never == len(CLUSTERS)
    bed_in_memory.cycle("c1", "s1")
    assert mix.model.scorer("s1").states.ok == 1


def test_updates_name_changed_and_removed_pairs(bed_in_memory: ResultsHarness) -> None:
    bed = bed_in_memory
    mix = Mix(bed, 1)
    before = mix.model.summary().sequence
    assert mix.model.updates(before).pairs == []
    bed.cycle("c1", "s1")
    bed.cycle("c2", "s1", outcome="error")
    updates = mix.model.updates(before)
    assert updates.pairs == [("c1", "s1"), ("c2", "s1")]
    bed.cycle("c1", "s1", results=[({"node": "a"}, 7.0)])
    bed.schedule.remove(["c2/s1"])
    assert mix.model.updates(updates.sequence).pairs == [("c1", "s1"), ("c2", "s1")]
    first = mix.model.updates(before, limit=1)
    assert first.has_more
    assert len(first.pairs) == 1


def test_pause_is_notified_and_ends_by_itself(bed_in_memory: ResultsHarness) -> None:
    bed = bed_in_memory
    mix = Mix(bed, 1)
    before = mix.model.summary().sequence
    bed.schedule.set_override("*/s1", paused=True, paused_until=bed.now + 20, now=bed.now)
    assert sorted(mix.model.updates(before).pairs) == [(cluster, "s1") for cluster in CLUSTERS]
    assert mix.model.scorer("s1").states.paused == len(CLUSTERS)
    bed.now += 21
    assert mix.model.scorer("s1").states.paused == 0


def test_pages_have_each_pair_once_while_cycles_go_on(bed_in_memory: ResultsHarness) -> None:
    mix = Mix(bed_in_memory, 1)
    for pair in PAIRS:
        bed_in_memory.cycle(*keys.split_pair(pair))
    listed_pairs, cursor = [], None
    while len(listed_pairs) <= len(PAIRS):
        page = mix.model.pairs(limit=3, cursor=cursor)
        listed_pairs += [keys.pair(row.cluster, row.scorer) for row in page.pairs]
        if (cursor := page.cursor) is None:
            break
        for row in page.pairs:
            bed_in_memory.cycle(row.cluster, row.scorer)
    assert sorted(listed_pairs) == sorted(PAIRS)


def test_score_expires_by_the_clock_alone(bed_in_memory: ResultsHarness) -> None:
    mix = Mix(bed_in_memory, 2)
    bed_in_memory.cycle("c1", "s1")
    assert mix.model.scorer("s1").states.ok == 1
    bed_in_memory.now += 61
    assert (mix.model.scorer("s1").states.ok, mix.model.scorer("s1").states.expired) == (0, 1)
