"""From manifests to a running scorer, and the effects of each change."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import pytest

from dsf import keys
from dsf.api import nameclaims
from dsf.api.types import SENTINEL_PASSWORD_KEY
from dsf.cli.statusreport import read_report
from dsf.errors import SettingsError
from dsf.fleet.queries import FleetQueries
from dsf.messages import SigningKey, derive_key
from dsf.process.hubclock import HubClock
from dsf.store.server import Owner
from tests.integration.hub.world import HubHarness, scoring_api
from tests.support.httpserver import ScriptedServer


def test_manifest_produces_a_config_map_an_entry_and_a_status(running: HubHarness) -> None:
    world = running
    assert world.delivered_scorers("a") == world.delivered_scorers("b") == ["cpu-scorer"]
    [summary] = world.summaries("a") or []
    assert list(summary)[:3] == ["name", "scoreName", "sourceType"]
    assert summary["scoreName"] == "cpu"
    assert summary["sourceEndpoint"] == "http://prometheus.test:9090/api/v1/query_range"

    work = world.read("clusters/a/manifestwork-dynamic-scoring-config-manifestwork.yaml")
    assert work["metadata"]["namespace"] == "a"
    assert work["spec"]["workload"]["manifests"][0] == world.read("clusters/a/dynamic-scoring-config.yaml")
    assert work["spec"]["workload"]["manifests"][0]["metadata"]["namespace"] == "dynamic-scoring"
    assert work["status"]["conditions"][0]["type"] == "Applied"

    entry = world.entries()["a/cpu-scorer"]
    assert (entry.score_name, entry.interval, entry.suspended) == ("cpu", 30, False)
    assert world.schedule.read_due_times(["a/cpu-scorer"])["a/cpu-scorer"] <= time.time() + 0.1
    record = world.record("cpu-scorer")
    assert record is not None
    assert (record.score_name, record.validity, record.health) == ("cpu", 300, "Active")
    cluster = world.cluster_record("a")
    assert cluster is not None
    assert cluster.uid == world.read("managedclusters/a.yaml")["metadata"]["uid"] != ""

    world.until(lambda: world.condition("cpu-scorer", "Distributed")[0] == "True")
    assert world.condition("cpu-scorer", "Healthy")[:2] == ("True", "HealthCheckPassed")
    assert world.condition("cpu-scorer", "ConfigSynced")[:2] == ("True", "Synced")
    assert world.condition("cpu-scorer", "Scoring")[:2] == ("Unknown", "NoCyclesYet")
    status = world.status("cpu-scorer")
    assert status["healthStatus"] == "Active"
    assert status["lastSyncedConfig"]["scoring"]["params"] == {"name": "cpu", "interval": 30}
    assert status["observedGeneration"] == 1
    world.until(lambda: world.config_condition("dynamic-scoring-config", "Distributed")[0] == "True")

    def counted() -> tuple[int, int, int]:
        status = world.read("dynamicscoringconfigs/dynamic-scoring-config.yaml")["status"]
        return status["clusters"], status["scorers"], status["masked"]

    world.until(lambda: counted() == (2, 1, 0))
    assert world.problems() == []


@pytest.mark.parametrize("off", [-20.0, 20.0])
def test_first_cycle_is_due_at_once_whatever_the_clock_of_the_hubs_machine_shows(
    world: HubHarness, api: ScriptedServer, monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    machine = functools.partial(HubClock, own_clock=lambda: time.time() + off)
    monkeypatch.setattr("dsf.hub.hub.HubClock", machine)
    world.config()
    world.cluster("a")
    world.scorer("cpu-scorer", api)
    began = time.time()
    world.start()
    world.until(lambda: world.pairs() == ["a/cpu-scorer"])
    assert began - 1 <= world.schedule.read_due_times(["a/cpu-scorer"])["a/cpu-scorer"] <= time.time() + 1


def _second(world: HubHarness, tmp_path: Path) -> HubHarness:
    """Return a hub of another folder on the same Redis."""
    folder = tmp_path / "other"
    folder.mkdir()
    settings = world.settings.model_copy(update={"manifests": folder})
    second = HubHarness(folder, world.client, settings)
    second.config()
    return second


def test_second_hub_on_the_same_redis_stops_with_the_first_ones_name(running: HubHarness, tmp_path: Path) -> None:
    running.schedule.set_override("a/cpu-scorer", interval=3)
    second = _second(running, tmp_path)
    with pytest.raises(SettingsError, match=f"is in use by the hub of {running.folder} on "):
        second.start()
    second.stop()
    assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]
    assert running.schedule.read_overrides()["a/cpu-scorer"].interval == 3
    # The first hub has stopped, so its data has no owner.
    running.stop()
    second.start()
    second.stop()


def test_hub_stops_when_its_database_becomes_anothers(
    running: HubHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsf.hub.rediswatch._SERVER_CHECK_SECONDS", 0.0)
    monkeypatch.setattr("dsf.hub.rediswatch._CHECK_SECONDS", 0.05)
    running.stop()
    running.start()
    running.client.set(keys.OWNER, Owner(id="another", name="the hub of /b on y").model_dump_json())
    running.until(lambda: [str(error) for error in running.unusable])
    assert "is in use by the hub of /b on y" in str(running.unusable[0])


@pytest.mark.parametrize(
    ("info", "expected_message"),
    [({"redis_version": "6.2.14"}, "Redis 6.2.14, and version 7.0"), ({"redis_mode": "cluster"}, "a Redis Cluster")],
)
def test_hub_does_not_start_on_an_unusable_redis(
    world: HubHarness, monkeypatch: pytest.MonkeyPatch, info: dict[str, object], expected_message: str
) -> None:
    monkeypatch.setattr("redis.Redis.info", lambda *_: {"redis_version": "7.4.0", **info})
    world.config()
    with pytest.raises(SettingsError, match=expected_message):
        world.start()


def test_eviction_policy_of_redis_is_reported_until_it_is_corrected(
    running: HubHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsf.hub.rediswatch._SERVER_CHECK_SECONDS", 0.0)
    monkeypatch.setattr("dsf.hub.rediswatch._CHECK_SECONDS", 0.05)
    running.restart()
    running.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        running.until(lambda: FleetQueries(running.client).summary().problems)
        report = read_report(running.client, running.settings, None)
        assert not report.ok
        assert "maxmemory-policy of Redis is allkeys-lru" in " ".join(problem.message for problem in report.problems)
    finally:
        running.client.config_set("maxmemory-policy", "noeviction")
    running.until(lambda: not FleetQueries(running.client).summary().problems)


def test_credentials_are_the_ones_the_hub_verifies_with(running: HubHarness) -> None:
    secret_file = running.out / ".hub" / "signing-secret"
    key_file = running.out / "clusters/a/agent-credentials/signing-key"
    assert secret_file.stat().st_mode & 0o777 == 0o600
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert secret_file.parent.stat().st_mode & 0o077 == 0
    secret = bytes.fromhex(secret_file.read_text().strip())
    assert SigningKey.parse(key_file.read_text()) == derive_key(secret, "a", 1)
    before = secret_file.read_text()
    running.restart()
    assert secret_file.read_text() == before


def test_new_scorers_and_clusters_take_effect_at_once_and_removed_ones_leave_nothing(running: HubHarness) -> None:
    running.resync = 600
    running.restart()
    with scoring_api("mem") as other:
        running.scorer("mem-scorer", other)
        running.until(lambda: "a/mem-scorer" in running.pairs())
    running.remove("scorers/mem-scorer.yaml")
    running.until(lambda: running.delivered_scorers("a") == ["cpu-scorer"])
    running.cluster("c")
    running.until(lambda: "c/cpu-scorer" in running.pairs())
    assert running.delivered_scorers("c") == ["cpu-scorer"]
    running.remove("clusters/c.yaml")
    running.until(lambda: "c/cpu-scorer" not in running.pairs())
    running.until(lambda: running.cluster_record("c") is None)
    running.until(lambda: not (running.out / "clusters/c").exists())
    running.until(lambda: not (running.out / "managedclusters/c.yaml").exists())
    assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]


def test_unmasked_scorers_return_with_their_overrides(running: HubHarness) -> None:
    running.schedule.set_override("b/cpu-scorer", interval=3)
    running.config(("b", "*"))
    running.until(lambda: running.pairs() == ["a/cpu-scorer"])
    running.until(lambda: running.delivered_scorers("b") == [])
    running.until(lambda: running.status("cpu-scorer")["clusters"]["desired"] == 1)
    running.config(("*", "cpu"))
    running.until(lambda: running.pairs() == [])
    running.until(lambda: running.condition("cpu-scorer", "Distributed")[1] == "Masked")
    running.config()
    running.until(lambda: running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"])
    running.until(lambda: running.delivered_scorers("b") == ["cpu-scorer"])
    assert running.schedule.read_overrides()["b/cpu-scorer"].interval == 3
    running.remove("scorers/cpu-scorer.yaml")
    running.until(lambda: running.pairs() == [])
    running.until(lambda: running.schedule.read_overrides() == {})


def test_edited_interval_changes_the_entry_only(running: HubHarness, api: ScriptedServer) -> None:
    uid = running.read("dynamicscorers/cpu-scorer.yaml")["metadata"]["uid"]
    scoring = {"params": {"name": "cpu", "interval": 7}}
    source = {"params": {"query": "up", "range": 60, "step": 5}}
    running.scorer("cpu-scorer", api, mode="None", scoring=scoring, source=source)
    running.until(lambda: running.entries()["a/cpu-scorer"].interval == 7)
    assert (running.summaries("a") or [{}])[0]["scoringInterval"] == 7
    # Written scores depend on the validity, so the writer evaluates them again.
    running.until(lambda: running.status("cpu-scorer")["observedGeneration"] == 2)
    metadata = running.read("dynamicscorers/cpu-scorer.yaml")["metadata"]
    assert (metadata["uid"], metadata["generation"]) == (uid, 2)
    assert running.condition("cpu-scorer", "ConfigSynced")[:2] == ("True", "SpecOnly")
    # The config synced in mode Full is stored, but not in force.
    assert running.status("cpu-scorer")["lastSyncedConfig"]["scoring"]["params"]["interval"] == 30


def test_holder_keeps_its_score_name(running: HubHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    with scoring_api("cpu", 5) as other:
        # Sorts before the holder: it is not the name that decides. The claim must be older than a rename may be.
        monkeypatch.setattr(nameclaims, "RENAME_SECONDS", -3600)
        running.scorer("an-older", other)
        running.until(lambda: running.condition("an-older", "ConfigSynced")[1] == "ScoreNameConflict")
        assert running.condition("an-older", "ConfigSynced")[2].startswith(
            "score name 'cpu' belongs to open-cluster-management/cpu-scorer, which holds it since "
        )
        assert running.condition("an-older", "Distributed")[1] == "ScoreNameConflict"
        assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]
        running.until(lambda: ("an-older", "ScoreNameConflict", "Warning") in running.events())
        # Replaced by deleting and re-creating it, also while the hub restarts.
        manifest = (running.folder / "scorers/cpu-scorer.yaml").read_text()
        running.remove("scorers/cpu-scorer.yaml")
        running.until(lambda: running.pairs() == [])
        running.until(lambda: "is kept until" in running.condition("an-older", "ConfigSynced")[2])
        running.restart()
        (running.folder / "scorers/cpu-scorer.yaml").write_text(manifest)
        running.until(lambda: running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"])
        monkeypatch.setattr(nameclaims, "RESERVATION_SECONDS", 1)
        running.remove("scorers/cpu-scorer.yaml")
        running.until(lambda: running.pairs() == ["a/an-older", "b/an-older"])
        running.until(lambda: running.condition("an-older", "Distributed")[0] == "True")


def test_suspended_and_paused_scorers_are_reported(running: HubHarness, api: ScriptedServer) -> None:
    running.scorer("cpu-scorer", api, execution={"suspend": True})
    running.until(lambda: running.entries()["a/cpu-scorer"].suspended)
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "Suspended")
    assert running.delivered_scorers("a") == ["cpu-scorer"]

    def pause(pause_end: float) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(pause_end))
        annotation = {"dynamic-scoring.open-cluster-management.io/paused-until": stamp}
        running.scorer("cpu-scorer", api, metadata={"annotations": annotation})

    later = time.time() + 3600
    pause(later)
    running.until(lambda: running.entries()["a/cpu-scorer"].suspended_until == int(later))
    pause_end = time.time() + 2
    pause(pause_end)
    running.until(lambda: not running.entries()["a/cpu-scorer"].suspended)
    running.until(lambda: (record := running.record("cpu-scorer")) is not None and not record.suspended)
    assert time.time() >= int(pause_end)


def test_successful_cycle_clears_the_failure_in_the_status(running: HubHarness) -> None:
    now = time.time()
    running.succeed("a", "cpu-scorer", now)
    running.fail("b", "cpu-scorer", "bad_query", "parse error at char 5", now)
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "SomeClustersFail", timeout=0.9)
    assert running.condition("cpu-scorer", "Scoring")[2] == (
        "1 of 2 clusters fail; newest: b, fetch, bad_query: parse error at char 5"
    )
    status = running.status("cpu-scorer")
    assert status["clusters"] == {"desired": 2, "succeeding": 1, "empty": 0, "failing": 1}
    assert [(item["cluster"], item["stage"], item["reason"]) for item in status["failures"]] == [
        ("b", "fetch", "bad_query")
    ]
    running.until(lambda: ("cpu-scorer", "SomeClustersFail", "Warning") in running.events())
    running.succeed("b", "cpu-scorer", now)
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[:2] == ("True", "CyclesSucceed"))
    assert running.status("cpu-scorer")["failures"] == []


def test_unchanged_objects_are_not_written(running: HubHarness) -> None:

    def is_distributed() -> bool:
        """To both clusters; a delivery to one alone is reported first."""
        scorer = running.status("cpu-scorer")
        config = (running.read("dynamicscoringconfigs/dynamic-scoring-config.yaml") or {}).get("status") or {}
        return (scorer["clusters"]["desired"], config.get("clusters"), config.get("scorers")) == (2, 2, 1)

    running.until(is_distributed)
    running.until(lambda: running.condition("cpu-scorer", "Distributed")[0] == "True")
    running.until(lambda: running.config_condition("dynamic-scoring-config", "Distributed")[0] == "True")
    # An event is written after the status that it describes.
    for name in ("cpu-scorer", "dynamic-scoring-config"):
        running.until(lambda name=name: (name, "Distributed", "Normal") in running.events())

    def stamps() -> dict[str, int]:
        return {str(path): path.stat().st_ino for path in running.out.rglob("*.yaml")}

    before = stamps()
    health_checks = 5 * 0.2
    time.sleep(2 * running.resync + health_checks)  # the time itself is what is tested
    assert stamps() == before


def test_additional_configuration_is_marked_as_ignored(running: HubHarness) -> None:
    masks = [{"clusterName": "*", "scoreName": "*"}]
    other = {"apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1", "kind": "DynamicScoringConfig"}
    name, namespace = {"name": "mine"}, {"name": "dynamic-scoring-config", "namespace": "elsewhere"}
    running.write("name.yaml", {**other, "metadata": name, "spec": {"masks": masks}})
    running.write("namespace.yaml", {**other, "metadata": namespace, "spec": {"masks": masks}})
    running.until(lambda: running.config_condition("mine", "Ignored")[:2] == ("True", "OtherName"))
    running.until(
        lambda: (
            running.config_condition("elsewhere_dynamic-scoring-config", "Ignored")[:2] == ("True", "OtherNamespace")
        )
    )
    assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]


def test_agent_sentinel_password_follows_its_file(world: HubHarness, tmp_path: Path) -> None:
    file = tmp_path / "sentinel-password"
    file.write_text("first\n")
    world.settings = world.settings.model_copy(update={"agent_sentinel_password_file": file})
    world.cluster("a")
    delivered = world.out / "clusters/a/agent-credentials" / SENTINEL_PASSWORD_KEY
    world.start()
    world.until(lambda: delivered.exists() and delivered.read_text() == "first\n")
    file.write_text("second\n")
    world.until(lambda: delivered.read_text() == "second\n")
    # It comes back when it is changed where it was delivered.
    delivered.write_text("other\n")
    world.until(lambda: delivered.read_text() == "second\n")
