"""Bytes of Redis that the scores of one namespace may take."""

from __future__ import annotations

from dsf import keys
from tests.integration.results.bed import Bed

KIB = 1024


def scored(bed: Bed, scorer: str, results: int, **more: object) -> str:
    series = [({"node": f"node-{number:040d}"}, 1.0) for number in range(results)]
    return bed.cycle(scorer=scorer, results=series, **more)


def used(bed: Bed) -> dict[str, int]:
    return {str(name): int(size) for name, size in bed.client.hgetall(keys.SCORE_BYTES).items() if int(size)}


def test_scores_of_a_greedy_namespace_leave_room_for_others(bed: Bed) -> None:
    for number in range(10):
        bed.add(scorer=f"greedy{number}", namespace="greedy", score_room=100 * KIB)
    bed.add(scorer="own", namespace="hub", score_room=100 * KIB)
    outcomes = [scored(bed, f"greedy{number}", 200) for number in range(10)]
    assert outcomes.count("ok") in range(1, 10)
    assert used(bed)["greedy"] <= 100 * KIB
    assert scored(bed, "own", 200) == "ok"
    refused = next(f"greedy{number}" for number, outcome in enumerate(outcomes) if outcome == "error")
    trouble = bed.state(scorer=refused).trouble
    assert trouble is not None
    assert (trouble.stage, trouble.reason) == ("publish", "too_large")
    assert trouble.message.startswith(
        "the scores of namespace greedy have their share of Redis, 100 KiB, and this one would exceed it: return fewer"
    )
    state = bed.state(scorer=refused)
    assert (state.scheduled, state.count("error"), state.open) == (1, 1, 0)
    # Its own later scores replace earlier ones, and small ones always have room.
    accepted = f"greedy{outcomes.index('ok')}"
    assert scored(bed, accepted, 200) == "ok"
    assert scored(bed, refused, 1) == "ok"


def test_room_of_a_removed_scorer_is_free_again(bed: Bed) -> None:
    bed.add(scorer="large", namespace="greedy", score_room=30 * KIB)
    bed.add(scorer="next", namespace="greedy", score_room=30 * KIB)
    assert scored(bed, "large", 150) == "ok"
    assert scored(bed, "next", 150) == "error"
    bed.schedule.remove(["c1/large"])
    assert used(bed) == {}
    assert scored(bed, "next", 150) == "ok"


def test_room_counts_the_newest_score_of_each_pair(bed: Bed) -> None:
    bed.add(scorer="s", namespace="team")
    for results in (100, 300, 1, 0, 50):
        scored(bed, "s", results)
        size = len(bed.client.hget(keys.pair_key("c1", "s"), "score") or "")
        assert used(bed) == {"team": size}
    # The name is another namespace's now.
    bed.add(scorer="s", namespace="other")
    scored(bed, "s", 20)
    assert used(bed) == {"other": len(bed.client.hget(keys.pair_key("c1", "s"), "score") or "")}
