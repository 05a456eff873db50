"""The wire message of a tick."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from dsf.messages import new_run_id
from dsf.ticks import RUN_SLACK, TickFactory, chain_signatures, iso, run_deadline

EXPIRES = 1_795_000_030.25
RUN = new_run_id(1_795_000_000.25)


def test_a_tick_carries_names_and_nothing_else() -> None:
    message = json.loads(TickFactory().message("worker01", "sample-scorer", RUN, EXPIRES))
    args, kwargs, embedded = json.loads(message["body"])
    assert (args, kwargs) == (["sample-scorer", RUN], {})
    assert [step["task"] for step in embedded["chain"]] == ["dsf.publish", "dsf.score"]
    for step in embedded["chain"]:
        assert step["args"] == ["sample-scorer", RUN]
        assert step["immutable"] is True
        assert step["options"]["queue"] == "spoke.worker01"
        assert step["options"]["expires"] == "2026-11-18T11:07:10.250+00:00"
    headers = message["headers"]
    assert headers["task"] == "dsf.fetch"
    assert headers["expires"] == iso(EXPIRES) == "2026-11-18T11:07:10.250+00:00"
    assert headers["argsrepr"] == f"('sample-scorer', '{RUN}')"
    assert headers["id"] == headers["root_id"] == message["properties"]["correlation_id"]
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": "spoke.worker01"}


def test_a_tick_is_small() -> None:
    assert len(TickFactory().message("worker01", "sample-scorer", RUN, EXPIRES)) < 1536


def test_every_tick_has_ids_of_its_own() -> None:
    factory = TickFactory()
    first, second = (json.loads(factory.message("c1", "s", RUN, EXPIRES)) for _ in range(2))
    assert first["headers"]["id"] != second["headers"]["id"]
    assert first["properties"]["delivery_tag"] != second["properties"]["delivery_tag"]


def test_the_message_follows_the_given_application() -> None:
    app = Celery("other", set_as_current=False)
    first, second = (json.loads(TickFactory(one).message("c1", "s", RUN, EXPIRES)) for one in (app, None))
    assert first.keys() == second.keys()
    assert first["headers"].keys() == second["headers"].keys()


@pytest.mark.parametrize(("cluster", "scorer"), [('c"1', "s"), ("c1", "<run>"), ("", "s"), ("c1", "S")])
def test_names_that_are_none_are_refused(cluster: str, scorer: str) -> None:
    with pytest.raises(ValueError, match="not the names"):
        TickFactory().message(cluster, scorer, RUN, EXPIRES)


def test_the_rest_of_a_chain_for_an_invocation_by_hand() -> None:
    steps = chain_signatures("worker01", "s", RUN, EXPIRES)
    assert [step["task"] for step in steps] == ["dsf.publish", "dsf.score"]
    assert steps == chain_signatures("worker01", "s", RUN, iso(EXPIRES))


def test_a_stage_that_begins_at_the_last_moment_still_counts() -> None:
    # Two time-outs of 30 s, the default of spec.execution.timeoutSeconds.
    assert run_deadline(EXPIRES) == EXPIRES + RUN_SLACK
    assert RUN_SLACK >= 60
