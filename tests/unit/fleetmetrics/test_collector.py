"""The series of a scrape: those of its shard, within the limit."""

from __future__ import annotations

from typing import Literal
from unittest.mock import Mock

import pytest
import redis

from dsf.fleetmetrics.collector import PER_PAIR, FleetCollector, SeriesBudget, SeriesDemand


def test_each_cluster_is_in_one_shard() -> None:
    client = Mock(spec=redis.Redis)
    shards = [FleetCollector(client, shard=(number, 3)) for number in range(3)]
    clusters = [f"cluster-{number}" for number in range(60)]
    owners = [[number for number, shard in enumerate(shards) if shard._is_in_shard(name)] for name in clusters]
    assert {len(shard_numbers) for shard_numbers in owners} == {1}
    assert {shard_numbers[0] for shard_numbers in owners} == {0, 1, 2}
    assert all(map(FleetCollector(client)._is_in_shard, clusters))


def make_demand(
    scorer: str, pairs: int, items: int = 0, *, namespace: str = "hub", exposition: Literal["", "items", "pair"] = ""
) -> SeriesDemand:
    return SeriesDemand(scorer, namespace, exposition, pairs, items)


def test_omitted_series_return_once_there_is_room() -> None:
    budget = SeriesBudget(PER_PAIR * 100, "hub")
    # Numbers of pairs, and whether they have series; omitted series return once ten percent are free.
    assert [
        (pairs, budget.choose_levels([make_demand("a", pairs)])["a"] != "none")
        for pairs in (100, 101, 100, 91, 90, 100)
    ] == [*((100, True), (101, False), (100, False), (91, False), (90, True), (100, True))]


def test_items_have_no_series_where_pairs_have_none() -> None:
    budget = SeriesBudget(PER_PAIR * 10, "hub")
    levels = [
        budget.choose_levels([make_demand("a", *pairs_and_items)])["a"]
        for pairs_and_items in ((5, PER_PAIR * 5), (5, PER_PAIR * 5 + 1), (11, 0), (0, 0))
    ]
    assert levels == ["items", "pair", "none", "items"]


@pytest.mark.parametrize("exposition", ["", "items"])
@pytest.mark.parametrize(("pairs", "items", "level"), [(10, 1_000_000, "pair"), (100_000, 0, "none")])
def test_namespace_with_many_series_leaves_those_of_others(
    exposition: Literal["", "items"], pairs: int, items: int, level: str
) -> None:
    greedy_demand = make_demand("greedy", pairs, items, namespace="team-a", exposition=exposition)
    other_demands = [make_demand("own", 100, 500), make_demand("tenant", 20, 100, namespace="team-b")]
    levels = SeriesBudget(PER_PAIR * 200, "hub").choose_levels([greedy_demand, *other_demands])
    assert levels == {"greedy": level, "own": "items", "tenant": "items"}


def test_own_namespace_comes_first_and_others_have_equal_shares() -> None:
    budget = SeriesBudget(PER_PAIR * 100, "hub")
    demands = [make_demand("own", 60), *(make_demand(name, 30, namespace=name) for name in ("a", "b"))]
    assert budget.choose_levels(demands) == {"own": "items", "a": "none", "b": "items"}
    demands[1] = make_demand("a", 10, namespace="a")
    assert budget.choose_levels(demands) == {"own": "items", "a": "items", "b": "items"}


def test_exposition_counts_for_the_own_namespace_and_within_the_share_of_others() -> None:
    budget = SeriesBudget(PER_PAIR * 100, "hub")
    demands = [
        make_demand("own", 1000, exposition="items"),
        make_demand("few", 10, 100_000, namespace="team-a", exposition="pair"),
        make_demand("fits", 10, namespace="team-a", exposition="items"),
    ]
    assert budget.choose_levels(demands) == {"own": "items", "few": "pair", "fits": "items"}
    assert budget.count_wanted_series(demands) == PER_PAIR * 20
