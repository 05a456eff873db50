"""Each process can do all of its work with its own user, including rare actions, without a refused command."""

from __future__ import annotations

import itertools
import time

import pytest
import redis

from dsf import keys, messages
from dsf.api.acts import ActRequest, parse_selector
from dsf.backtest import runstore
from dsf.backtest.runstore import KeptRun
from dsf.beat_schedule import BeatLock
from dsf.errors import SettingsError, UnknownClusterError, UnknownScorerError
from dsf.fleet import rescore as rescoring
from dsf.fleet.actions import Actions
from dsf.fleet.changes import Action, Actor, UserAction, read_changes, record_change
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.collector import FleetCollector
from dsf.hub.notifications import ChangeNotifier
from dsf.optimizer.hubredis import HubRedis
from dsf.optimizer.plans import PlanComparison, read_plans, remove_comparison, store_comparison
from dsf.redisacl.clusterusers import ClusterUsers
from dsf.redisacl.rules import hub_user
from dsf.results.ingest import Ingest
from dsf.results.intake import Mailboxes
from dsf.scores.writer import ScoreWriter
from dsf.settings import Settings
from dsf.store.agents import AgentKeys, count_waiting_results
from dsf.store.entries import Entry
from dsf.store.history import HistoryEntry
from dsf.store.notices import ClusterNotice, Notices, ScorerNotice
from dsf.store.pairs import Pairs, Unwritten
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.runs import Runs
from dsf.store.schedule import ScheduleStore
from dsf.store.ticks import send_now
from dsf.store.writes import ScoreWriterStore
from tests.integration.beat.support import Bench
from tests.integration.results.bed import BedOwners, MemoryBackend, handle
from tests.integration.security.fleet import MASTER
from tests.support.secureredis import SecureRedis


def as_role(server: SecureRedis, role: str) -> redis.Redis:
    return server.client(hub_user(role), server.passwords[role])


@pytest.mark.parametrize("role", ["controller", "operator", "web"])
def test_roles_that_act_for_users_may_perform_every_act(secure_redis: SecureRedis, role: str) -> None:
    hub = as_role(secure_redis, "controller")
    Registry(hub).put_scorer(ScorerRecord(name="s1", score_name="s1", interval=10, validity=300))
    Registry(hub).put_cluster(ClusterRecord(name="c1", key_ids=(1, 2)))
    ScheduleStore(hub).upsert([Entry(cluster="c1", scorer="s1", score_name="s1", interval=10)])
    notices = Notices(hub)
    notices.write_scorer(ScorerNotice(name="s1"))
    notices.write_cluster(ClusterNotice(name="c1", labels={"region": "eu"}))
    client = as_role(secure_redis, role)
    actions = Actions(client, Settings(), Actor(name="ann", claimed=True, way="annotation"))
    for request in (
        ActRequest("pause", ("c1",)),
        ActRequest("resume", selector=parse_selector("region=eu")),
        ActRequest("interval", interval=7),
        ActRequest("interval", ("c1",), interval=8),
        ActRequest("reset"),
    ):
        actions.execute("s1", request)
    runs = actions.rescore("s1")
    report = rescoring.make_report(client, "s1", rescoring.read_outcomes(client, "s1", runs))
    assert "does its agent run?" in report.runs[0].message
    row = HistoryEntry(run=runs[0].run_id, at=time.time(), outcome="ok").dump()
    secure_redis.client().lpush(keys.history_key("c1", "s1"), row)
    report = rescoring.make_report(client, "s1", rescoring.read_outcomes(client, "s1", runs))
    assert [score.cluster for score in report.scores] == ["c1"]
    assert actions.sync("s1")
    assert Notices(client).read_config_read("s1") is None
    assert [change.action.value for change in read_changes(as_role(secure_redis, "operator")).changes] == [
        *("sync", "rescore", "reset", "interval", "interval", "resume", "pause")
    ]


def test_role_users_may_run_every_command_of_their_process(secure_redis: SecureRedis) -> None:
    settings = Settings(signing_secret=MASTER.hex())  # type: ignore[arg-type]
    hub, beat, results = (as_role(secure_redis, role) for role in ("hub", "beat", "results"))
    operator, exporter = as_role(secure_redis, "operator"), as_role(secure_redis, "web")
    now = time.time()

    # hub: registry, schedule, users
    registry, schedule = Registry(hub), ScheduleStore(hub)
    for name in ("s1", "s2", "limited"):
        registry.put_scorer(ScorerRecord(name=name, score_name=name, interval=10, validity=300))
    for cluster in ("c1", "c2", "gone"):
        registry.put_cluster(ClusterRecord(name=cluster, key_ids=(1, 2)))
    rows = [(c, s) for c in ("c1", "c2", "gone") for s in ("s1", "s2", "limited")]
    schedule.upsert(
        Entry(cluster=c, scorer=s, score_name=s, interval=10, rate_limit="1/m" if s == "limited" else None)
        for c, s in rows
    )
    notices = Notices(hub)
    notices.write_scorer(ScorerNotice(name="s1"))
    notices.write_cluster(ClusterNotice(name="gone"))
    notices.remove_others(("s1",), ("c1", "c2"))
    users = ClusterUsers(hub, MASTER)
    users.sync({"c1": [1], "c2": [1]})
    users.sync({"c1": [2]})

    # operator: everything that `dsf` offers
    store = ScheduleStore(operator)
    store.set_override("*/s1", interval=5, by="me")
    store.set_override("c1/s1", paused=True)
    store.resume("c1/s1")
    store.reset("*/s1")
    record_change(operator, Actor(name="me", claimed=True, way="cli"), UserAction(action=Action.PAUSE, scorer="s1"))
    assert [change.by for change in read_changes(operator).changes] == ["me"]
    plan = PlanComparison(
        namespace="n", at=now, plan_id="x", applied=False, status="Optimal", score_now=0, score_proposed=0, gap=0.0
    )
    for client in (operator, as_role(secure_redis, "optimizer")):
        assert store_comparison(client, plan)
        assert len(read_plans(operator)) == 1
        remove_comparison(client, "n")
    for client in (operator, as_role(secure_redis, "web")):
        for number in range(runstore.MAX_RUNS + 1):
            at = now + number
            run = KeptRun(id=runstore.make_run_id(at), at=at, by="me", way="cli", clusters=["c1"])
            assert runstore.store_run(client, ["s1"], run) == ["s1"]
        assert len(runstore.read_runs(client, "s1")) == runstore.MAX_RUNS
    FleetQueries(operator).scorers()
    FleetQueries(operator).scores("c1", "s1")
    FleetQueries(operator).history("c1", "s1")
    FleetQueries(operator).schedule()
    run = send_now(operator, "c1", "s1", 60, queue_limit=100)
    operator.llen(keys.spoke_queue("c1"))
    count_waiting_results(operator, ["c1"])
    operator.zrange(keys.DUE, 0, -1, withscores=True)

    # beat: its lock, every kind of row, waiting
    lock = BeatLock(beat, 10)
    assert lock.ensure()
    bench = Bench(beat, queue_limit=3, now=now)
    secure_redis.client().hdel(keys.ENTRIES, "gone/s2")
    bench.run(45)
    beat.blpop([keys.BEAT_WAKE], timeout=0.01)
    lock.release()

    # results worker: a mailbox, every outcome, the sweeper
    mail = Mailboxes(results, 1000)
    secure_redis.client().set(keys.mail_slot("c1", 0), "x" * 300)
    secure_redis.client().set(keys.mail_slot("c1", 1), "too short")
    waiting = mail.read(everywhere=True)
    assert len(waiting.slots) == 1
    mail.empty([slot.encode() for slot in waiting.slots], waiting.texts)  # type: ignore[attr-defined]
    ingest = Ingest(results, settings)

    def send(run_id: str, scorer: str = "s1", **values: object) -> str:
        result = messages.Result(cluster="c1", scorer=scorer, run=run_id, at=time.time(), **values)  # type: ignore[arg-type]
        return handle(ingest, messages.sign(result, messages.derive_key(MASTER, "c1", 2)))

    valid_results = [({"node": "n"}, 1.0)]
    # Run ids of the same millisecond have no defined order.
    by_hand = (messages.make_run_id(time.time() + n / 100) for n in itertools.count())
    assert send(run, outcome="ok", results=valid_results, timings={"fetch": 0.5}) == "ok"
    assert send(run, outcome="ok", results=valid_results) == "replayed"
    assert send(next(by_hand), outcome="error", stage="fetch", reason="timeout", message="x") == "error"
    assert send(next(by_hand), outcome="skipped", reason="overlap") == "skipped"
    assert send(next(by_hand), outcome="skipped", reason="expired") == "skipped"
    assert send(next(by_hand), outcome="ok", results=valid_results) == "ok"
    assert send(next(by_hand), "none", outcome="ok") == "stale"
    assert handle(ingest, {"v": 1}) == "malformed"
    runs = Runs(results)
    lost, _ = runs.sweep(now=time.time() + 10_000, lost_after=0)
    assert lost
    # Readers may see it for a while.
    assert runs.find_leftovers() == {"gone/s2"}
    secure_redis.client().hdel(keys.ENTRIES, "gone/s1")
    assert runs.forget(runs.find_leftovers()) == ["gone/s1"]
    # hub: news, states, the score writer, what goes
    assert AgentKeys(hub).read_used_keys() == {"c1": 2}
    assert hub.spop(keys.HUB_CHANGED, 10)
    hub.blpop([keys.HUB_WAKE], timeout=0.01)
    list(Pairs(hub).read_rows([("c1", "s1"), ("c2", "s1")]))
    backend = MemoryBackend()
    writer = ScoreWriter(hub, settings, backend, lambda: BedOwners(secure_redis.client()))
    deadline = time.monotonic() + 10
    while writer.step() == 0.0:
        assert time.monotonic() < deadline
    assert backend.objects
    writes = ScoreWriterStore(hub)
    writes.wait_for_change(0.01)
    cause = Unwritten(reason="ScoresNotWritten", message="no right", since=time.time())
    writes.record_unwritten({("c1", "s1"): cause})
    writes.record_unwritten({("c1", "s1"): None})
    assert writes.list_unwritten_pairs() == []
    ChangeNotifier(hub, MemoryBackend(), lambda _: None, lambda *_: None).notify()
    assert hub.get(keys.CHANGES_NOTIFIED)
    schedule.read_overrides_of("s1", ["c1"])
    schedule.remove(["gone/s1", "gone/limited"])
    schedule.forget("s1")
    registry.remove_cluster("gone")
    registry.remove_scorer("s2")
    hub.hdel(keys.KEYS_USED, "c1")
    users.remove("c1")

    # exporter
    assert len(list(FleetCollector(exporter).collect())) > 5
    FleetQueries(exporter).history("c1", "s1")
    FleetQueries(exporter).schedule()
    assert len(read_changes(exporter, limit=5).changes) == 1
    exporter.ping()

    refusals = secure_redis.client().acl_log()
    assert refusals == []


def test_optimiser_rescores_as_its_own_user(secure_redis: SecureRedis) -> None:
    """With the settings of its pod: over TLS, the password in a file."""
    admin = secure_redis.client()
    registry, schedule = Registry(admin), ScheduleStore(admin)
    registry.put_scorer(ScorerRecord(name="s1", score_name="s1", interval=10, validity=300))
    for cluster in ("c1", "c2", "elsewhere"):
        registry.put_cluster(ClusterRecord(name=cluster))
    schedule.upsert(Entry(cluster=c, scorer="s1", score_name="s1", interval=10) for c in ("c1", "c2"))
    # A run may take as long as the interval that holds, which is not that of the entry.
    schedule.set_override("*/s1", interval=600)
    # A server that was started a moment ago knows no script yet.
    admin.script_flush()
    password = secure_redis.dir / "password"
    password.write_text(secure_redis.passwords["optimizer"])
    settings = Settings(
        redis_url=secure_redis.url(),  # type: ignore[arg-type]
        redis_username=hub_user("optimizer"),
        redis_password_file=password,
        redis_ca_file=secure_redis.ca.cert,
        queue_limit=2,
    )
    hub_redis = HubRedis.of(settings)
    assert hub_redis is not None
    caller = Actor(name="system:serviceaccount:a:b", claimed=False, way="mcp")

    runs = hub_redis.rescore(caller, "s1", None)
    assert [(run.cluster, run.message) for run in runs] == [("c1", ""), ("c2", "")]
    for run in runs:
        assert admin.llen(keys.spoke_queue(run.cluster)) == 1
        assert Pairs(admin).read_state(run.cluster, "s1").scheduled == 1
        deadline = admin.zscore(keys.OPEN_RUNS, keys.run_member(run.cluster, "s1", run.run_id))
        assert deadline is not None
        assert 600 < deadline - time.time() < 700
    (change,) = read_changes(admin).changes
    assert (change.action, change.who, change.way) == ("rescore", "system:serviceaccount:a:b", "mcp")
    assert (change.cluster_count, change.clusters) == (2, [])
    hub_redis.rescore(caller, "s1", "c1")
    (refusal,) = hub_redis.rescore(caller, "s1", "c1")
    assert refusal.run_id == ""
    assert "2 messages wait in spoke.c1" in refusal.message
    with pytest.raises(UnknownScorerError, match="registered: s1"):
        hub_redis.rescore(caller, "s2", None)
    with pytest.raises(UnknownScorerError, match="it runs on: c1, c2"):
        hub_redis.rescore(caller, "s1", "elsewhere")
    with pytest.raises(UnknownClusterError, match="registered: c1, c2, elsewhere"):
        hub_redis.rescore(caller, "s1", "c3")
    assert admin.acl_log() == []
    # Without a password the hub reports it only now, because plans need none.
    password.unlink()
    with pytest.raises(SettingsError, match="DSF_REDIS_PASSWORD_FILE"):
        hub_redis.rescore(caller, "s1", None)
