"""Metric families of pairs."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from dsf.fleetmetrics.families import PairFamilies
from dsf.store.pairs import PairScore, PairState

NOW = 1_700_000_000.0


class Once:
    """A collector of given families."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return self.families


def expose(*pairs: PairState, names: Mapping[str, str] | None = None) -> CollectorRegistry:
    families = PairFamilies({"sample-scorer": "sample"} if names is None else names, NOW)
    for pair in pairs:
        families.add(pair)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once(list(families.collect())))
    return registry


def state(
    cluster: str = "worker01", scorer: str = "sample-scorer", last_success: float | None = None, **fields: object
) -> PairState:
    books = {name.replace("__", ":"): str(value) for name, value in fields.items()}
    return PairState(cluster, scorer, books, last_success=last_success)


def score(*results: tuple[dict[str, str], float], valid_until: float = NOW + 60) -> str:
    return PairScore(
        run="1700000000000-00000000", score_name="sample", at=NOW - 1, valid_until=valid_until, results=list(results)
    ).model_dump_json()


def labels(**values: str) -> dict[str, str]:
    names = ("node", "device", "namespace", "app", "pod", "container", "meta")
    label_values = {f"ds_{name}": values.get(name, "") for name in names}
    return {"ds_cluster": "worker01", "ds_score_name": "sample", **label_values}


def test_score_is_the_float_as_the_scoring_api_gave_it() -> None:
    registry = expose(state(score=score(({"pod": "a"}, 101.75))))
    assert registry.get_sample_value("dynamic_score", labels(pod="a")) == 101.75


def test_later_of_two_results_with_equal_labels_wins() -> None:
    registry = expose(state(score=score(({"pod": "a", "other": "1"}, 1), ({"pod": "a", "other": "2"}, 2))))
    assert registry.get_sample_value("dynamic_score", labels(pod="a")) == 2


def test_labels_that_become_equal_by_cutting_are_exposed_once() -> None:
    registry = expose(state(score=score(({"pod": "ä" * 200 + "1"}, 1), ({"pod": "ä" * 200 + "2"}, 2))))
    assert registry.get_sample_value("dynamic_score", labels(pod="ä" * 128)) == 2


def test_expired_score_has_no_value_but_its_expiry_time() -> None:
    registry = expose(state(score=score(({"pod": "a"}, 1), valid_until=NOW)))
    assert registry.get_sample_value("dynamic_score", labels(pod="a")) is None
    where = {"ds_cluster": "worker01", "ds_score_name": "sample"}
    assert registry.get_sample_value("dynamic_scoring_valid_until_timestamp_seconds", where) == NOW


def test_requests_count_successes_and_failures_and_not_skips() -> None:
    registry = expose(state(n__ok=3, n__empty=2, n__partial=1, n__error=4, n__lost=5, n__skipped__overlap=6))
    where = {"score_name": "sample", "ds_cluster": "worker01"}
    assert registry.get_sample_value("dynamic_scoring_requests_total", {**where, "status": "success"}) == 6
    assert registry.get_sample_value("dynamic_scoring_requests_total", {**where, "status": "failure"}) == 9


def test_scheduled_cycles_equal_the_sum_of_outcomes() -> None:
    registry = expose(state(n__scheduled=21, n__ok=3, n__empty=2, n__partial=1, n__error=4, n__lost=5,
                             n__skipped__overlap=4, n__skipped__paused=2))  # fmt: skip
    where = {"ds_cluster": "worker01", "ds_score_name": "sample"}
    scheduled = registry.get_sample_value("dynamic_scoring_scheduled_total", where)
    outcomes = {
        outcome: registry.get_sample_value("dynamic_scoring_cycles_total", {**where, "outcome": outcome})
        for outcome in ("ok", "empty", "partial", "error", "skipped", "lost")
    }
    assert outcomes == {"ok": 3, "empty": 2, "partial": 1, "error": 4, "skipped": 6, "lost": 5}
    assert scheduled == 21 == sum(value or 0 for value in outcomes.values())


def test_failures_are_of_a_cluster_and_lost_is_one_without_a_stage() -> None:
    registry = expose(
        state("worker01", n__error=1, n__error__fetch__timeout=1),
        state("worker02", n__error=2, n__error__fetch__timeout=2, n__lost=1),
    )
    name = "dynamic_scoring_failures_total"
    where = {"ds_score_name": "sample", "stage": "fetch", "reason": "timeout"}
    # A sum over clusters would fall when a cluster is removed, which looks like a restart with many failures.
    counts = [registry.get_sample_value(name, {**where, "ds_cluster": cluster}) for cluster in ("worker01", "worker02")]
    assert counts == [1, 2]
    lost = {"ds_score_name": "sample", "stage": "", "reason": "lost", "ds_cluster": "worker02"}
    assert (registry.get_sample_value(name, where), registry.get_sample_value(name, lost)) == (None, 1)


def test_stage_times_are_sum_and_count_per_cluster() -> None:
    registry = expose(state(t__score__sum=1.5, t__score__count=3))
    where = {"ds_score_name": "sample", "stage": "score", "ds_cluster": "worker01"}
    assert registry.get_sample_value("dynamic_scoring_stage_seconds_sum", where) == 1.5
    assert registry.get_sample_value("dynamic_scoring_stage_seconds_count", where) == 3


def test_two_scorers_with_one_score_name_make_no_duplicate() -> None:
    registry = expose(
        state(scorer="one", n__scheduled=1, last_success=5.0),
        state(scorer="two", n__scheduled=2, last_success=9.0),
        names={"one": "same", "two": "same"},
    )
    where = {"ds_cluster": "worker01", "ds_score_name": "same"}
    assert registry.get_sample_value("dynamic_scoring_scheduled_total", where) == 3
    assert registry.get_sample_value("dynamic_scoring_last_success_timestamp_seconds", where) == 9.0


def test_unreadable_score_omits_only_itself() -> None:
    registry = expose(state(score="{", n__scheduled=1))
    where = {"ds_cluster": "worker01", "ds_score_name": "sample"}
    assert registry.get_sample_value("dynamic_scoring_scheduled_total", where) == 1


def test_refused_and_clamped_values_are_counted_per_score() -> None:
    registry = expose(state(n__refused__nan=2, n__clamped=3), state("worker02", n__refused__nan=1, n__clamped=1))
    for cluster, refused_count, clamped_count in (("worker01", 2, 3), ("worker02", 1, 1)):
        where = {"ds_score_name": "sample", "ds_cluster": cluster}
        of_reason = {**where, "reason": "nan"}
        assert registry.get_sample_value("dynamic_scoring_results_refused_total", of_reason) == refused_count
        assert registry.get_sample_value("dynamic_scoring_scores_clamped_total", where) == clamped_count
