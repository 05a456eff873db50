"""The series of a scrape: those of its shard, within the limit."""

from __future__ import annotations

from unittest.mock import Mock

import redis

from dsf.fleetmetrics.collector import PER_PAIR, FleetCollector, SeriesBudget


def test_each_cluster_is_in_one_shard() -> None:
    client = Mock(spec=redis.Redis)
    shards = [FleetCollector(client, shard=(number, 3)) for number in range(3)]
    clusters = [f"cluster-{number}" for number in range(60)]
    owners = [[number for number, shard in enumerate(shards) if shard._is_mine(name)] for name in clusters]
    assert {len(shard_numbers) for shard_numbers in owners} == {1}
    assert {shard_numbers[0] for shard_numbers in owners} == {0, 1, 2}
    assert all(map(FleetCollector(client)._is_mine, clusters))


def test_omitted_series_return_once_there_is_room() -> None:
    budget = SeriesBudget(PER_PAIR * 100)
    # Numbers of pairs, and whether they have series; omitted series return once ten percent are free.
    assert [(pairs, budget.level(pairs, 0) != "none") for pairs in (100, 101, 100, 91, 90, 100)] == [
        *((100, True), (101, False), (100, False), (91, False), (90, True), (100, True))
    ]


def test_items_have_no_series_where_pairs_have_none() -> None:
    budget = SeriesBudget(PER_PAIR * 10)
    levels = [
        budget.level(*pairs_and_items)
        for pairs_and_items in ((5, PER_PAIR * 5), (5, PER_PAIR * 5 + 1), (11, 0), (0, 0))
    ]
    assert levels == ["items", "pair", "none", "items"]
