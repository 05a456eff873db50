"""Hub and agents of neighbouring versions: recorded messages and stored values are accepted, and versions too far
apart are named.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsf import keys
from dsf.cli.statusreport import read_report
from dsf.keys import SCHEMA_VERSION
from dsf.results.ingest import Ingest
from dsf.store.agents import AgentRecord, Agents
from dsf.store.schedule import ScheduleStore
from tests.cases.skew import NAMES, recorded
from tests.integration.results.bed import ResultsHarness, handle

CLUSTER, SCORER = "worker01", "sample"
#: When the messages were recorded (unix seconds).
RECORDED = 1_800_000_000.0


@pytest.fixture
def store(bed: ResultsHarness) -> Any:
    """Put recorded values where another version would have, and return a new results worker."""
    bed.client.flushall()

    def put(case: dict[str, Any]) -> Ingest:
        pair = keys.pair(CLUSTER, SCORER)
        for key, field, name in (
            (keys.CLUSTERS, CLUSTER, "cluster"),
            (keys.SCORERS, SCORER, "scorer"),
            (keys.ENTRIES, pair, "entry"),
            (keys.OVERRIDES, pair, "override"),
        ):
            bed.client.hset(key, field, json.dumps(case[name]))
        return Ingest(bed.client, bed.settings, clock=lambda: RECORDED)

    return put


@pytest.mark.parametrize("name", NAMES)
def test_messages_of_a_neighbouring_version_are_understood(bed: ResultsHarness, store: Any, name: str) -> None:
    case = recorded(name)
    assert case["schema"] == SCHEMA_VERSION + NAMES.index(name) - 1, "record them anew for the new version"
    assert handle(store(case), case["result"]) == "ok"
    score = bed.pairs.read_state(CLUSTER, SCORER).score
    assert score is not None
    assert score.items == [("n1", 12)]
    [entry] = ScheduleStore(bed.client).read_entries()
    assert (entry.pair, entry.interval, entry.suspended) == (f"{CLUSTER}/{SCORER}", 30, False)
    override = ScheduleStore(bed.client).read_overrides()[entry.pair]
    assert (override.interval, override.paused) == (60, None)
    assert bed.registry.read_scorer(SCORER).score_name == "sample-score"
    assert bed.registry.read_cluster(CLUSTER).key_ids == (1,)
    agent = Agents(bed.client).read_agents()[CLUSTER]
    assert (agent.schema_version, agent.problem) == (case["schema"], "")
    assert read_report(bed.client, bed.settings, None).problems == []


@pytest.mark.parametrize(
    ("name", "version_text"),
    [("too_old", "its agent (0.0.1) speaks version -1"), ("too_new", "its agent (9.0.0) speaks version 3")],
)
def test_agent_of_an_unsupported_version_is_named(
    bed: ResultsHarness, store: Any, name: str, version_text: str
) -> None:
    ingest, frame = store(recorded("current")), recorded("refused")[name]
    assert handle(ingest, frame) == "malformed"
    assert bed.client.hget(keys.REJECTED, "malformed") == "1"
    assert bed.pairs.read_state(CLUSTER, SCORER).score is None
    # `dsf status` reports the agent and ends with 1.
    report = read_report(bed.client, bed.settings, None)
    assert not report.ok
    [problem] = report.problems
    assert problem.message.startswith(f"cluster {CLUSTER}: {version_text} of the messages, the hub 0 to 2")
    assert ("upgrade it" in problem.message) is (name == "too_old")
    # The agent is upgraded or downgraded.
    assert handle(ingest, recorded("current")["result"]) == "ok"
    assert read_report(bed.client, bed.settings, None).problems == []


def test_version_without_a_valid_signature_is_ignored(bed: ResultsHarness, store: Any) -> None:
    ingest = store(recorded("current"))
    frame = recorded("refused")["too_old"]
    assert handle(ingest, frame.replace(frame.split()[1], "00" * 32)) == "malformed"
    # A version outside of the signed data counts only for the message of the refusal.
    changed = recorded("current")["result"].replace("DSF1", "DSF-5")
    assert handle(ingest, changed) == "malformed"
    assert Agents(bed.client).read_agents().get(CLUSTER, AgentRecord()).version in ("", "0.1.0")
    # A key that was withdrawn neither.
    bed.client.hset(keys.CLUSTERS, CLUSTER, json.dumps({**recorded("current")["cluster"], "key_ids": [2]}))
    bed.client.hdel(keys.AGENTS, CLUSTER)
    other = Ingest(bed.client, bed.settings, clock=lambda: RECORDED)
    assert handle(other, frame) == "bad_signature"
    assert Agents(bed.client).read_agents() == {}
