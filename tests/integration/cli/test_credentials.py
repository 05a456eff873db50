"""dsf credentials: output and requests of users. The hub's part is tested with a hub."""

from __future__ import annotations

import json

from dsf import keys
from dsf.store.agents import AgentKeys
from dsf.store.registry import ClusterRecord, Registry
from tests.integration.cli.conftest import Dsf, loaded
from tests.integration.exporter.fleet import Fleet


def test_credentials_are_listed(dsf: Dsf, fleet: Fleet) -> None:
    Registry(fleet.redis).put_cluster(ClusterRecord(name="worker02", key_ids=(3, 2)))
    fleet.redis.hset(keys.KEYS_USED, mapping={"worker01": 1, "worker02": 2})
    result = dsf("credentials", "list")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["worker01", "1", "-", "1", "in", "use"] in lines
    assert ["worker02", "3", "2", "2", "rotating"] in lines
    [row] = loaded(dsf("credentials", "list", "--cluster", "worker02", "-o", "json"))["clusters"]
    assert row == {
        "cluster": "worker02",
        "currentId": 3,
        "previousIds": [2],
        "usedId": 2,
        "state": "rotating",
        "requested": "",
        "requestedBy": "",
    }


def test_credentials_list_without_clusters_is_empty(dsf: Dsf) -> None:
    assert "No cluster is accepted" in dsf("credentials", "list").stdout


def test_credentials_rotation_is_requested(dsf: Dsf, fleet: Fleet) -> None:
    rows = loaded(dsf("credentials", "rotate", "-c", "worker01", "-o", "json"))["clusters"]
    assert [(row["cluster"], row["state"], row["requested"]) for row in rows] == [("worker01", "asked for", "rotate")]
    assert rows[0]["requestedBy"]
    loaded(dsf("credentials", "revoke", "--all", "-o", "json"))
    requests = AgentKeys(fleet.redis).read_requests()
    assert {name: (request.action, request.key_id) for name, request in requests.items()} == {
        "worker01": ("revoke", 1),
        "worker02": ("revoke", 1),
    }
    # The hub is woken.
    assert fleet.redis.llen(keys.HUB_WAKE) > 0


def test_completed_key_request_is_removed_unless_a_newer_request_replaced_it(fleet: Fleet) -> None:
    agent_keys = AgentKeys(fleet.redis)
    first = agent_keys.request_credentials("worker01", "rotate")
    second = agent_keys.request_credentials("worker01", "revoke")
    agent_keys.remove_request("worker01", first)
    assert agent_keys.read_requests() == {"worker01": second}
    agent_keys.remove_request("worker01", second)
    agent_keys.remove_request("worker01", second)
    assert agent_keys.read_requests() == {}
    fleet.redis.hset(keys.KEY_REQUESTS, "worker01", json.dumps({"action": "explode"}))
    assert agent_keys.read_requests() == {}


def test_credentials_refuses_wrong_usage(dsf: Dsf, fleet: Fleet) -> None:
    assert dsf("credentials", "rotate").exit_code == 2
    assert dsf("credentials", "rotate", "--all", "--cluster", "worker01").exit_code == 2
    result = dsf("credentials", "rotate", "--cluster", "worker01", "--wait", "0.6")
    assert result.exit_code == 1
    assert "the old credentials of worker01 are still valid after 0.6 s; is the controller running" in result.stderr
    del fleet
