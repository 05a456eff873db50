"""Turns of namespaces at the score writer."""

from __future__ import annotations

from collections import Counter

from dsf.scores.queue import PairQueue

NOW = 1_800_000_000.0


def queue() -> PairQueue:
    """Return a queue in which `greedy0` belongs to the namespace `greedy`, `own0` to `hub`, and so on."""
    names = {"own": "hub"}
    return PairQueue(lambda scorer: names.get(scorer.rstrip("0123456789"), scorer.rstrip("0123456789")), "hub")


def test_frequently_changing_scores_leave_turns_for_others() -> None:
    pairs = queue()
    turns_by_scorer: Counter[str] = Counter()
    pairs.add(("z", "own0"), NOW)
    pairs.add(("z", "other0"), 0.0)
    for turn in range(20):
        for number in range(1000):
            pairs.add(("c", f"greedy{number}"), 0.0)
        batch = pairs.take(NOW, 8)
        assert len(batch) == 8
        turns_by_scorer.update(scorer for _, scorer in batch)
        if turn == 0:
            assert {("z", "own0"), ("z", "other0")} <= set(batch)
    # Within the greedy namespace, the longest waiting pairs are first.
    assert max(turns_by_scorer.values()) == 1


def test_every_second_turn_is_the_hubs_own() -> None:
    pairs = queue()
    for name in ("own", "a", "b"):
        for number in range(10):
            pairs.add(("c", f"{name}{number}"), 0.0)
    counts = Counter(scorer.rstrip("0123456789") for _, scorer in pairs.take(NOW, 12))
    assert counts == {"own": 6, "a": 3, "b": 3}
    assert len(pairs.take(NOW, 100)) == 18
    assert pairs.take(NOW, 100) == []


def test_namespace_that_is_alone_has_all_turns() -> None:
    for name in ("own", "a"):
        pairs = queue()
        for number in range(5):
            pairs.add(("c", f"{name}{number}"), 0.0)
        assert pairs.take(NOW, 10) == [("c", f"{name}{number}") for number in range(5)]


def test_pair_is_checked_once_at_its_earliest_time() -> None:
    pairs = queue()
    pairs.add(("c", "a0"), NOW + 20)
    pairs.add(("c", "a0"), NOW + 10)
    pairs.add(("c", "a0"), NOW + 30)
    assert (len(pairs), pairs.get_next_due(), pairs.take(NOW, 9)) == (1, NOW + 10, [])
    assert pairs.list_overdue(NOW + 10) == [("c", "a0")]
    pairs.add(("c", "a0"), 0.0)
    pairs.add(("c", "a0"), NOW + 5)
    assert (len(pairs), pairs.get_next_due()) == (1, 0.0)
    assert pairs.take(NOW, 9) == [("c", "a0")]
    assert (pairs.take(NOW + 100, 9), pairs.get_next_due()) == ([], None)
    pairs.add(("c", "a0"), 0.0)
    pairs.add(("c", "b0"), NOW)
    pairs.remove(("c", "a0"))
    pairs.remove(("c", "b0"))
    assert (len(pairs), pairs.take(NOW, 9)) == (0, [])
