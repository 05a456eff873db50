"""The limit of Redis memory for the scores of one namespace."""

from __future__ import annotations

from dsf import keys
from tests.integration.results.bed import ResultsHarness

KIB = 1024


def ingest_results(bed: ResultsHarness, scorer: str, results: int, **spec: object) -> str:
    series = [({"node": f"node-{number:040d}"}, 1.0) for number in range(results)]
    return bed.cycle(scorer=scorer, results=series, **spec)


def bytes_by_namespace(bed: ResultsHarness) -> dict[str, int]:
    sizes = {str(name): int(size) for name, size in bed.client.hgetall(keys.SCORE_BYTES).items()}
    return {name: size for name, size in sizes.items() if "/" not in name}


def test_scores_of_a_greedy_namespace_leave_room_for_others(bed: ResultsHarness) -> None:
    for number in range(10):
        bed.add(scorer=f"greedy{number}", namespace="greedy", score_room=200 * KIB)
    bed.add(scorer="own", namespace="hub", score_room=200 * KIB)
    outcomes = [ingest_results(bed, f"greedy{number}", 200) for number in range(10)]
    assert outcomes.count("ok") in range(1, 10)
    assert bytes_by_namespace(bed)["greedy"] <= 100 * KIB
    assert ingest_results(bed, "own", 200) == "ok"
    refused_scorer = next(f"greedy{number}" for number, outcome in enumerate(outcomes) if outcome == "error")
    failure = bed.state(scorer=refused_scorer).current_failure
    assert failure is not None
    assert (failure.stage, failure.reason) == ("publish", "too_large")
    assert failure.message.startswith(
        "the scores of namespace greedy have their share of Redis, 200 KiB, and one cluster at most half of it, "
    )
    state = bed.state(scorer=refused_scorer)
    assert (state.scheduled, state.count("error"), state.open) == (1, 1, 0)
    # Later scores of the namespace replace earlier ones, and small ones always fit.
    accepted = f"greedy{outcomes.index('ok')}"
    assert ingest_results(bed, accepted, 200) == "ok"
    assert ingest_results(bed, refused_scorer, 1) == "ok"


def test_scores_of_a_greedy_cluster_leave_room_for_others(bed: ResultsHarness) -> None:
    """With a stolen credential, an attacker can send the largest scores for all scorers of a cluster."""
    for number in range(10):
        for cluster in ("c1", "c2"):
            bed.add(cluster, f"scorer{number}", namespace="team", score_room=100 * KIB)
    assert "error" in [ingest_results(bed, f"scorer{number}", 200) for number in range(10)]
    assert ingest_results(bed, "scorer0", 200, cluster="c2") == "ok"


def test_room_of_a_removed_scorer_is_free_again(bed: ResultsHarness) -> None:
    bed.add(scorer="large", namespace="greedy", score_room=60 * KIB)
    bed.add(scorer="next", namespace="greedy", score_room=60 * KIB)
    assert ingest_results(bed, "large", 150) == "ok"
    assert ingest_results(bed, "next", 150) == "error"
    bed.schedule.remove(["c1/large"])
    assert not bed.client.exists(keys.SCORE_BYTES)
    assert ingest_results(bed, "next", 150) == "ok"


def test_room_counts_the_newest_score_of_each_pair(bed: ResultsHarness) -> None:
    bed.add(scorer="s", namespace="team")
    for results in (100, 300, 1, 0, 50):
        ingest_results(bed, "s", results)
        size = len(bed.client.hget(keys.pair_key("c1", "s"), "score") or "")
        assert bytes_by_namespace(bed) == {"team": size}
    # The name now belongs to another namespace.
    bed.add(scorer="s", namespace="other")
    ingest_results(bed, "s", 20)
    assert bytes_by_namespace(bed) == {"other": len(bed.client.hget(keys.pair_key("c1", "s"), "score") or "")}
