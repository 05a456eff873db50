"""Redis fails and its replica takes over: nothing is lost, and all clients follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.errors import SettingsError
from dsf.redisacl.clusterusers import ReplicatedClusterUsers
from dsf.redisacl.rules import cluster_user
from dsf.redislink.link import Link
from dsf.store.client import connect
from dsf.store.entries import Entry
from dsf.store.pairs import Pairs
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from tests.integration.agent.conftest import RESULTS, SERIES
from tests.integration.agent.harness import summary
from tests.integration.security.fleet import MASTER
from tests.integration.security.processes import CLUSTER, processes
from tests.integration.security.sentinel import SentinelRedis
from tests.support.fixtures import SettingsFactory
from tests.support.httpserver import ScriptedServer, answer, matrix
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for

#: Which keys of each cluster are valid.
KEY_IDS = {CLUSTER: [1], "away": [1]}


def test_failover_loses_nothing_and_every_process_follows(
    ca: TestCa, tmp_path: Path, settings_factory: SettingsFactory
) -> None:
    with (
        SentinelRedis(ca) as pair,
        ScriptedServer(matrix(SERIES)) as source,
        ScriptedServer(answer(RESULTS)) as scorer,
        contextlib.ExitStack() as stack,
    ):
        passwords = pair.first.passwords
        password = tmp_path / "password"
        password.write_text(passwords["hub"])
        settings = settings_factory(
            **pair.settings(), role="hub", redis_username="dsf-hub", redis_password_file=password
        )
        client = stack.enter_context(contextlib.closing(connect(settings)))
        users = stack.enter_context(contextlib.closing(ReplicatedClusterUsers(client, settings, MASTER)))
        assert users.sync(KEY_IDS).created == ["away", CLUSTER]
        _plan(client)
        # A user's change: no ticks are sent to this cluster.
        ScheduleStore(pair.first.client()).set_override("away/sample", paused=True, note="kept")
        pair.first.client().lpush(keys.spoke_queue("away"), *[f"tick {number}" for number in range(50)])
        roles = ("beat", "results", "web", "flower", "agent")
        summaries = [summary("sample", source.url, scorer.url)]
        running = stack.enter_context(processes(tmp_path, roles, passwords, summaries, **pair.settings()))
        before = pair.first.client()
        wait_for(lambda: Pairs(before).read_state(CLUSTER, "sample").count("ok") >= 2, 40, "scores before the failover")
        wait_for(pair.in_step, 10, "the replica to have everything")
        # As the hub does every few minutes.
        assert not users.sync(KEY_IDS)
        # The replica has the users already, so that no client waits for the hub.
        assert cluster_user(CLUSTER) in pair.second.client().acl_users()
        scheduled = Pairs(before).read_state(CLUSTER, "sample").scheduled
        pair.first.kill()

        after = pair.second.client()
        pair.look(closely=True)
        wait_for(_calmly(lambda: after.info("replication")["role"] == "master"), 30, "the replica to take over")
        assert after.llen(keys.spoke_queue("away")) == 50
        wait_for(_calmly(ScheduleStore(client).read_overrides), 20, "our own client to follow")
        assert ScheduleStore(client).read_overrides()["away/sample"].note == "kept"
        assert {entry.pair for entry in ScheduleStore(client).read_entries()} == {"c1/sample", "away/sample"}
        state = Pairs(after).read_state(CLUSTER, "sample")
        assert state.scheduled >= scheduled
        ok = state.count("ok")
        wait_for(
            _calmly(lambda: Pairs(after).read_state(CLUSTER, "sample").count("ok") >= ok + 3),
            40,
            "scores after the failover",
        )
        assert [role for role, child in running.items() if not child.is_running] == []
        expected = {"dsf-beat", "dsf-results", "dsf-flower", "spoke-c1"}
        followed = _calmly(lambda: expected <= {connection["user"] for connection in after.client_list()})
        wait_for(followed, 30, "everybody on the new server")
        assert after.acl_log() == []
        assert not users.sync(KEY_IDS)

        # The old one returns as a replica and gets the changes, including users.
        pair.look(closely=False)
        pair.first.start_as_replica(pair.second.port)
        old = pair.first.client()
        wait_for(_calmly(lambda: old.info("replication")["role"] == "slave"), 30, "the old one to follow")
        is_seen = _calmly(lambda: Link(settings).list_replicas() == [("localhost", pair.first.port)])
        wait_for(is_seen, 30, "the Sentinels to see it")
        wait_for(_calmly(lambda: old.info("replication")["master_link_status"] == "up"), 20, "it to be in step")
        users.sync({CLUSTER: [1], "new": [1]})
        assert sorted(n for n in map(str, old.acl_users()) if n.startswith("spoke-")) == [
            "spoke-c1",
            "spoke-new",
        ]


def _calmly(condition: Callable[[], Any]) -> Any:
    """Return the condition, false while servers change places and cut connections."""

    def ask() -> Any:
        try:
            return condition()
        except redis.ConnectionError:
            return None

    return ask


def _plan(client: redis.Redis) -> None:
    registry, schedule = Registry(client), ScheduleStore(client)
    registry.put_scorer(
        ScorerRecord(name="sample", score_name="sample-score", interval=1, validity=300, dimension_formats=("${node}",))
    )
    for cluster in (CLUSTER, "away"):
        registry.put_cluster(ClusterRecord(name=cluster))
        schedule.upsert([Entry(cluster=cluster, scorer="sample", score_name="sample-score", interval=1)])


@pytest.mark.parametrize(
    ("values", "expected_message"),
    [
        ({"redis_url": "sentinel://localhost:1"}, "DSF_REDIS_SENTINEL_MASTER: not set"),
        ({"redis_url": "sentinel://a:1;redis://b:2"}, "DSF_REDIS_URL: not a scheme for Redis, or several"),
    ],
)
def test_missing_sentinel_setting_is_named(
    settings_factory: SettingsFactory, values: dict[str, object], expected_message: str
) -> None:
    with pytest.raises(SettingsError, match=expected_message):
        connect(settings_factory(**values))
