"""The wire message of a tick."""

from __future__ import annotations

import json

import pytest

from dsf.messages import new_run_id
from dsf.ticks import RUN_SLACK, TickFactory, iso, run_deadline

EXPIRES = 1_795_000_030.25
RUN = new_run_id(1_795_000_000.25)


def test_a_tick_carries_names_and_nothing_else() -> None:
    message = json.loads(TickFactory().message("worker01", "sample-scorer", RUN, EXPIRES))
    args, kwargs, embedded = json.loads(message["body"])
    assert (args, kwargs) == (["sample-scorer", RUN], {})
    assert not any(embedded.values())
    headers = message["headers"]
    assert headers["task"] == "dsf.fetch"
    assert headers["expires"] == iso(EXPIRES) == "2026-11-18T11:07:10.250+00:00"
    assert headers["argsrepr"] == f"('sample-scorer', '{RUN}')"
    assert headers["id"] == headers["root_id"] == message["properties"]["correlation_id"]
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": "spoke.worker01"}


def test_a_tick_is_small() -> None:
    assert len(TickFactory().message("worker01", "sample-scorer", RUN, EXPIRES)) < 900


def test_every_tick_has_ids_of_its_own() -> None:
    factory = TickFactory()
    first, second = (json.loads(factory.message("c1", "s", RUN, EXPIRES)) for _ in range(2))
    assert first["headers"]["id"] != second["headers"]["id"]
    assert first["properties"]["delivery_tag"] != second["properties"]["delivery_tag"]


@pytest.mark.parametrize(("cluster", "scorer"), [('c"1', "s"), ("c1", "<run>"), ("", "s"), ("c1", "S")])
def test_names_that_are_none_are_refused(cluster: str, scorer: str) -> None:
    with pytest.raises(ValueError, match="not the names"):
        TickFactory().message(cluster, scorer, RUN, EXPIRES)


def test_a_stage_that_begins_at_the_last_moment_still_counts() -> None:
    # Two time-outs of 30 s, the default of spec.execution.timeoutSeconds.
    assert run_deadline(EXPIRES) == EXPIRES + RUN_SLACK
    assert RUN_SLACK >= 60
