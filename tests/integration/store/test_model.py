"""The read model equals a full recount, whatever happened."""

from __future__ import annotations

import pytest

from dsf import keys
from dsf.store.model import VERSION, is_whole, recount
from tests.integration.results.bed import Bed
from tests.integration.store.mix import CLUSTERS, SCORERS, Mix


@pytest.mark.parametrize("seed", range(12))
def test_any_mix_is_counted_as_a_recount_would(bed: Bed, seed: int) -> None:
    mix = Mix(bed, seed)
    for _ in range(6):
        for _ in range(40):
            mix.step()
        mix.keep()
        mix.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_rebuilt_model_is_the_same(bed: Bed, seed: int) -> None:
    mix = Mix(bed, 100 + seed)
    for _ in range(120):
        mix.step()
    mix.keep()
    recount(bed.client)
    assert not is_whole(bed.client)
    mix.keep()
    assert is_whole(bed.client)
    mix.check()


def test_what_an_earlier_version_left_is_counted_at_the_first_start(bed: Bed) -> None:
    mix = Mix(bed, 7)
    for _ in range(120):
        mix.step()
    # It knew no model, and no number for a score.
    for name in bed.client.keys(keys.MODEL_PREFIX + "*"):
        bed.client.delete(name)
    for cluster in CLUSTERS:
        for scorer in SCORERS:
            bed.client.hdel(keys.pair_key(cluster, scorer), "value", "skip_for")
    mix.keep()
    assert bed.client.get(keys.MODEL_VERSION) == VERSION
    mix.check()


def test_nothing_is_left_of_pairs_that_went(bed: Bed) -> None:
    mix = Mix(bed, 5)
    for _ in range(150):
        mix.step()
    bed.schedule.remove([keys.pair(cluster, scorer) for cluster in CLUSTERS for scorer in SCORERS], bed.now)
    mix.keep()
    left = {str(name) for name in bed.client.keys(keys.MODEL_PREFIX + "*")}
    assert left - {keys.MODEL_KEEPER} == {keys.MODEL_VERSION, keys.MODEL_SEQUENCE, keys.MODEL_CHANGED, keys.MODEL_GONE}
    assert mix.model.fleet().pairs == 0


def test_changes_name_what_changed_and_what_went(bed: Bed) -> None:
    mix = Mix(bed, 1)
    mix.keep()
    before = mix.model.fleet().sequence
    assert mix.model.changes(before).pairs == []
    bed.cycle("c1", "s1")
    bed.cycle("c2", "s1", outcome="error")
    found = mix.model.changes(before)
    assert found.pairs == [("c1", "s1"), ("c2", "s1")]
    # The same again is no change.
    bed.cycle("c1", "s1")
    assert mix.model.changes(found.sequence).pairs == []
    bed.cycle("c1", "s1", results=[({"node": "a"}, 7.0)])
    bed.schedule.remove(["c2/s1"], bed.now)
    mix.keep()
    assert mix.model.changes(found.sequence).pairs == [("c1", "s1"), ("c2", "s1")]
    first = mix.model.changes(before, limit=1)
    assert first.more
    assert len(first.pairs) == 1


def test_a_score_that_expires_is_expired_before_the_sweeper_comes(bed: Bed) -> None:
    mix = Mix(bed, 2)
    bed.cycle("c1", "s1")
    mix.keep()
    assert mix.model.scorer("s1").states.ok == 1
    bed.now += 61
    assert (mix.model.scorer("s1").states.ok, mix.model.scorer("s1").states.expired) == (0, 1)
    before = mix.model.fleet().sequence
    mix.keep()
    assert mix.model.scorer("s1").states.expired == 1
    assert ("c1", "s1") in mix.model.changes(before).pairs
