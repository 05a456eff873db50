"""Hubs and results workers between a slow etcd, clocks that are off, and others who write the same objects."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from dsf.api.types import CREDENTIALS_WORK_NAME, KEY_IDS_ANNOTATION, MANIFESTWORK_NAME
from dsf.errors import BackendError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DYNAMIC_SCORERS, LEASES, MANAGED_CLUSTERS, MANIFEST_WORKS
from dsf.redisacl.keyids import KeyIds
from dsf.redisacl.rules import cluster_user
from tests.integration.hub.kube.hubworld import HubWorld, has_logged
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import ScriptedServer


@contextlib.contextmanager
def _in_the_background(act: Any) -> Iterator[list[int]]:
    """Call `act` again and again while the context is open; how often."""
    stop, number = threading.Event(), [0]

    def run() -> None:
        while not stop.is_set():
            with contextlib.suppress(BackendError):
                act(number[0])
            number[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield number
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _away(plane: ControlPlane, lengths: list[float]) -> Iterator[None]:
    """Suspend etcd while the context is open, and record the duration."""
    began = time.monotonic()
    with plane.paused("etcd"):
        yield
    lengths.append(time.monotonic() - began)


def _slow_etcd(plane: ControlPlane, lengths: list[float]) -> contextlib.AbstractContextManager[list[int]]:
    """Delay etcd's responses to the API server by a second, and record the real duration."""

    def act(_: int) -> None:
        with _away(plane, lengths):
            time.sleep(1.0)
        time.sleep(0.1)

    return _in_the_background(act)


def _lease(world: HubWorld) -> dict[str, Any]:
    spec: dict[str, Any] = world.session.get(LEASES.path(world.namespace, "dynamic-scoring-hub"))["spec"]
    return spec


def _get_key_ids(world: HubWorld, cluster: str) -> str:
    work = world.object(MANIFEST_WORKS, cluster, CREDENTIALS_WORK_NAME) or {"metadata": {}}
    return str((work["metadata"].get("annotations") or {}).get(KEY_IDS_ANNOTATION))


def test_slow_etcd_delays_updates_without_errors(world: HubWorld, api: ScriptedServer) -> None:
    clusters = world.setup(api.url, *["slow"] * 5)
    leader = world.hub()
    world.until(lambda: len(world.pairs()) == 5, 20)
    standby, results = world.hub(), world.results()
    world.until(lambda: has_logged(standby.log, "waits for its turn"), 20)
    assert [world.send(cluster, 1) for cluster in clusters] == ["ok"] * 5
    world.until(lambda: world.scores() == {cluster: [1] for cluster in clusters}, 20)
    before, lengths = _lease(world), list[float]()

    with _slow_etcd(world.plane, lengths) as pauses:
        world.mask((clusters[0], "cpu"))
        assert [world.send(cluster, 2) for cluster in clusters[1:]] == ["ok"] * 4
        world.until(lambda: pauses[0] >= 5, 20)
    # The long pause begins soon after a renewal, because the short ones may have used most of a lease.
    renewed = _lease(world)["renewTime"]
    world.until(lambda: _lease(world)["renewTime"] != renewed, 10)
    with _away(world.plane, lengths):
        assert [world.send(cluster, 3) for cluster in clusters[1:]] == ["ok"] * 4
        # Half of the time after which a leader gives up.
        time.sleep(5.0)
    world.until(lambda: world.scores() == {cluster: [3] for cluster in clusters[1:]}, 5)
    world.until(lambda: world.delivered_scorers(clusters[0]) == [], 5)
    world.until(lambda: world.status()["clusters"]["desired"] == 4, 5)
    after = _lease(world)
    # If this process got no CPU, etcd was suspended for longer than a leader may be, and the other hub leads.
    if max(lengths) < 7.0:
        assert (after["holderIdentity"], after["leaseTransitions"]) == (
            before["holderIdentity"],
            before["leaseTransitions"],
        )
        assert leader.is_running
    assert all(process.is_running for process in (standby, results))
    assert not any("Traceback" in process.log.read_text() for process in (leader, standby, results))


def test_clock_differences_do_not_change_scores(world: HubWorld, api: ScriptedServer) -> None:
    """More of the hub's: tests/integration/hub/test_running.py, and of whoever leads: test_leader.py."""
    [cluster] = world.setup(api.url, "one")
    hub = world.hub(clock=20.0)
    # 40 s apart from the hub.
    results = world.results(clock=-20.0)
    world.until(lambda: world.delivered_scorers(cluster) == ["cpu-scorer"], 20)
    world.deliver(cluster)
    [pair] = world.until(lambda: world.pairs() == [f"{cluster}/cpu-scorer"] and world.pairs(), 5)
    assert world.schedule.read_due_times([pair])[pair] < time.time() + 1, "its first cycle is due now"
    pushed = datetime.now(UTC)
    world.push(cluster, 42)
    world.until(lambda: world.score(cluster) == [42], 20)
    path = ADDON_PLACEMENT_SCORES.path(cluster, "cpu")
    valid_until = datetime.fromisoformat(world.session.get(path)["status"]["validUntil"])
    # By 20 s less, since the worker does not accept results from the future.
    assert (valid_until - pushed).total_seconds() > 275
    assert (valid_until - datetime.now(UTC)).total_seconds() <= 300
    world.session.merge(path + "/status", {"status": {"scores": []}})
    world.session.merge(path + "/status", {"status": {"scores": [{"name": "mine", "value": 1}]}})
    world.until(lambda: world.score(cluster) == [42], 5)
    world.mask((cluster, "cpu"))
    world.until(lambda: world.score(cluster) is None, 3)
    assert not any("Traceback" in process.log.read_text() for process in (hub, results))


def test_conflicting_writers_are_overwritten(world: HubWorld, api: ScriptedServer) -> None:
    storm, masked = world.setup(api.url, "storm", "masked")
    hub, results = world.hub(hub_resync=1), world.results()
    world.until(lambda: len(world.pairs()) == 2, 20)
    for name in (storm, masked):
        world.deliver(name)
        assert world.send(name, 1) == "ok"
    world.until(lambda: world.scores() == {storm: [1], masked: [1]}, 20)
    work = MANIFEST_WORKS.path(storm, MANIFESTWORK_NAME)
    original_spec = world.session.get(work)["spec"]
    scorer = DYNAMIC_SCORERS.path(world.namespace, "cpu-scorer")

    def edit(number: int) -> None:
        """As another controller would that believes these objects to be its own."""
        status = {"healthStatus": "Inactive", "scoreName": f"n{number}", "conditions": [], "failures": None}
        world.session.merge(scorer + "/status", {"status": status}, field_manager="other")
        world.session.merge(scorer, {"metadata": {"annotations": {"storm": str(number)}}}, field_manager="other")
        world.session.merge(work, {"spec": {"workload": {"manifests": []}}}, field_manager="other")
        score = {"scores": [{"name": "a", "value": -1}, {"name": "b", "value": number % 100}]}
        world.session.merge(
            ADDON_PLACEMENT_SCORES.path(storm, "cpu", "status"), {"status": score}, field_manager="other"
        )

    with _in_the_background(edit) as edits:
        world.until(lambda: edits[0] > 10, 20)
        # Changes by people take effect meanwhile, and no other cluster waits for the end of the storm.
        world.mask((masked, "cpu"))
        world.until(lambda: masked not in world.scores(), 5)
        world.until(lambda: world.delivered_scorers(masked) == [], 5)
        assert world.send(storm, 2) == "ok"
        world.until(lambda: edits[0] > 30, 20)
    world.until(lambda: world.score(storm) == [2], 5)
    world.until(lambda: world.session.get(work)["spec"] == original_spec, 5)
    world.until(lambda: world.status().get("healthStatus") == "Active", 5)
    expected_conditions = {"Healthy": "True", "ConfigSynced": "True", "Scoring": "True"}
    world.until(lambda: {kind: world.condition(kind)[0] for kind in expected_conditions} == expected_conditions, 5)
    assert world.status()["scoreName"] == "cpu"
    assert not any("Traceback" in process.log.read_text() for process in (hub, results))


def test_result_of_a_cluster_deleted_meanwhile_leaves_nothing(world: HubWorld, api: ScriptedServer) -> None:
    deleted_cluster, other = world.setup(api.url, "gone", "other")
    world.hub()
    results = world.results()
    world.until(lambda: len(world.pairs()) == 2, 20)
    for cluster in (deleted_cluster, other):
        world.push(cluster, 1)
    world.until(lambda: world.scores() == {deleted_cluster: [1], other: [1]}, 20)
    # Both results are in transit while the cluster is removed.
    results.signal(signal.SIGSTOP)
    for cluster in (deleted_cluster, other):
        world.push(cluster, 2)
    world.session.delete(MANAGED_CLUSTERS.path(name=deleted_cluster))
    world.until(lambda: world.pairs() == [f"{other}/cpu-scorer"], 5)
    results.signal(signal.SIGCONT)
    world.until(lambda: world.scores() == {other: [2]}, 10)
    world.push(deleted_cluster, 3)
    world.push(other, 3)
    world.until(lambda: world.scores() == {other: [3]}, 10)

    # The registry's record may wait for the cluster's return; no result may.
    assert list(world.client.scan_iter(f"*{deleted_cluster}/cpu-scorer*")) == []


def test_hostile_key_ids_of_a_cluster_affect_no_other_cluster(world: HubWorld, api: ScriptedServer) -> None:
    """A new hub reads them, and gives the users of all clusters to a Redis that has lost them."""
    cluster, hostile = world.setup(api.url, "served", "hostile")
    hub = world.hub(redis_manage_users=True)
    path = MANIFEST_WORKS.path(hostile, CREDENTIALS_WORK_NAME)
    world.until(lambda: world.object(MANIFEST_WORKS, hostile, CREDENTIALS_WORK_NAME), 20)
    world.until(lambda: world.client.acl_getuser(cluster_user(cluster)), 20)
    hub.kill()
    forged = '{"current": 1e400, "previous": null, "since": 0}'
    world.session.merge(path, {"metadata": {"annotations": {KEY_IDS_ANNOTATION: forged}}})
    world.hub(redis_manage_users=True, hub_resync=1)
    world.until(lambda: KeyIds.parse(_get_key_ids(world, hostile)) is not None, 20)
    world.client.acl_deluser(cluster_user(cluster))
    world.until(lambda: world.client.acl_getuser(cluster_user(cluster)), 20)
