"""The whole framework under attack, and while its credentials change. One fleet for all tests; the last one searches
everything that it left behind for secrets."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from json import dumps

import pytest
import redis

from dsf import keys, messages
from dsf.messages import derive_key, new_run_id, sign
from dsf.results.ingest import REGISTRY_AGE
from dsf.store.agents import AgentKeys
from dsf.store.registry import ClusterRecord, Registry
from tests.integration.security.attacks import message, push_tick, result, send
from tests.integration.security.fleet import CANARIES, CLUSTERS, MASTER, SCORER, Fleet, replace
from tests.integration.security.proofs import counted, failures, undisturbed, works
from tests.integration.security.traces import contents, files, pages, traffic
from tests.support.httpserver import answer

# One process for all of them: they share servers, and the last test looks at what the others left behind.
pytestmark = pytest.mark.xdist_group("security-fleet")

#: What an agent says when its password is refused, or its file cannot be read.
REFUSED = "refuses user or password"
UNREADABLE = "DSF_REDIS_PASSWORD_FILE: cannot read"


def test_every_process_works_with_its_own_user_and_is_refused_nothing(fleet: Fleet) -> None:
    works(fleet, *CLUSTERS)
    assert "dynamic_scoring_up 1.0" in fleet.get(fleet.exporter_port, "/metrics")
    expected = {"dsf-hub", "dsf-beat", "dsf-results", "dsf-exporter", "dsf-flower", "spoke-c1", "spoke-c10"}
    fleet.until(lambda: {client["user"] for client in fleet.admin.client_list()} - {"admin"} == expected, "all users")
    ours = {"dsf.cycle", "dsf.fetch", "dsf.score", "dsf.publish", "dsf.ingest"}
    fleet.until(lambda: _seen_by_flower(fleet) >= ours, "Flower to show every task")
    fleet.get(fleet.flower_port, "/broker")
    fleet.get(fleet.flower_port, "/workers")
    # Flower asks these workers: their registered tasks.
    workers = json.loads(fleet.get(fleet.flower_port, "/workers?json=1"))["data"]
    (results,) = (worker["hostname"] for worker in workers if worker["hostname"].startswith("results@"))
    for worker, task in (("spoke@c1", "dsf.publish"), (results, "dsf.ingest")):
        assert task in fleet.get(fleet.flower_port, f"/worker/{worker}")
    assert fleet.acl_log() == []


def _seen_by_flower(fleet: Fleet) -> set[str]:
    tasks = json.loads(fleet.get(fleet.flower_port, "/api/tasks"))
    # Of a task that began before Flower listened the name is not known.
    return {task["name"] for task in tasks.values() if task["name"]}


class TestResults:
    """What a thief of the credential of c1 may push, and what becomes of it."""

    def test_forged(self, fleet: Fleet) -> None:
        with counted(fleet, "bad_signature", 4) as thief:
            mine = derive_key(MASTER, "c1", 1)
            guessed = messages.SigningKey(id=1, secret=b"x" * 32)
            send(thief, dumps(sign(result("c1"), guessed)))
            # In the name of another cluster: outside, inside, and both.
            send(thief, dumps(sign(result("c10"), mine)))
            send(thief, dumps(sign(result("c10"), mine) | {"cluster": "c1"}))
            send(thief, dumps(sign(result("c1"), mine) | {"cluster": "c10"}))

    def test_changed_on_the_way(self, fleet: Fleet) -> None:
        with counted(fleet, "bad_signature", 3) as thief:
            good = sign(result("c1"), derive_key(MASTER, "c1", 1))
            send(thief, dumps(good | {"body": good["body"].replace("99.0", "100.0")}))
            send(thief, dumps(good | {"body": good["body"][:-20]}))
            send(thief, dumps(good | {"sig": good["sig"][:-2] + "00"}))

    def test_as_messages_of_celery(self, fleet: Fleet) -> None:
        with counted(fleet, "malformed", 4) as thief:
            good = sign(result("c1"), derive_key(MASTER, "c1", 1))
            for task in ("dsf.cycle", "celery.chord_unlock", "os.system", "celery.map"):
                send(thief, message(good, task=task))

    def test_truncated_and_oversized(self, fleet: Fleet) -> None:
        with counted(fleet, "malformed", 4) as thief:
            whole = dumps(sign(result("c1"), derive_key(MASTER, "c1", 1)))
            send(thief, whole[: len(whole) // 2], "", whole[:-1])
            big = result("c1", results=[({"node": "x" * 3_000_000}, 1.0)])
            send(thief, dumps(sign(big, derive_key(MASTER, "c1", 1))))

    def test_replayed(self, fleet: Fleet) -> None:
        with counted(fleet, "replayed", 2) as thief:
            # An older one would be stale: what the agent has sent is taken in first.
            fleet.until(lambda: not fleet.admin.exists(*keys.mail_slots("c1")))
            run = fleet.state("c1").last_run
            envelope = sign(result("c1", run), derive_key(MASTER, "c1", 1))
            send(thief, dumps(envelope), dumps(envelope))

    def test_of_another_time(self, fleet: Fleet) -> None:
        key = derive_key(MASTER, "c1", 1)
        with counted(fleet, "stale", 2) as thief:
            old, future = time.time() - 100_000, time.time() + 3600
            send(thief, dumps(sign(result("c1", new_run_id(old), at=old), key)))
            send(thief, dumps(sign(result("c1", at=future), key)))

    def test_a_chain_in_a_result_is_not_sent_on(self, fleet: Fleet) -> None:
        marker = "chained-scorer"
        evil = [
            {"task": "dsf.cycle", "args": [marker, "x"], "kwargs": {}, "options": {"queue": queue}, "immutable": True}
            for queue in ("spoke.c10", "spoke.c1", "hub.results")
        ]
        with counted(fleet, "malformed", 3) as thief:
            good = sign(result("c1"), derive_key(MASTER, "c1", 1))
            for embed in ({"chain": evil}, {"callbacks": evil, "errbacks": evil}, {"chord": evil[0]}):
                send(thief, message(good, embed))
        # Beside a signature that is right: its own scores it may forge, but nothing follows.
        skip = sign(result("c1", outcome="skipped", reason="overlap", results=[]), derive_key(MASTER, "c1", 1))
        skipped = fleet.state("c1").skipped().get("overlap", 0)
        with undisturbed(fleet):
            send(thief, dumps(skip | {"chain": evil, "callbacks": evil}))
            fleet.until(lambda: fleet.state("c1").skipped().get("overlap", 0) > skipped)
        works(fleet, *CLUSTERS)
        assert marker not in "".join(fleet.log(f"agent-{cluster}") for cluster in CLUSTERS)
        # The worker did not even try: that would be in the log.
        assert fleet.acl_log() == []


class TestTicks:
    """What whoever gets at a cluster's queue can make its agent do."""

    def test_a_url_or_an_unknown_scorer_makes_no_request(self, fleet: Fleet) -> None:
        trap = "http://127.0.0.1:1/steal"
        for server in (fleet.source, fleet.scorer):
            server.script(answer("not the path that was delivered", 418), path="/steal")
        steal = f"{fleet.source.url}/steal"
        names: list[object] = ["unknown", trap, steal, f"../{SCORER}", "", None, 7, {"url": steal}, [steal], "x" * 9000]
        for name in names:
            push_tick(fleet, "dsf.cycle", [name, new_run_id()])
        for run_id in (steal, "../../etc/passwd", "", None, 7, {"url": steal}):
            push_tick(fleet, "dsf.cycle", [SCORER, run_id])
            push_tick(fleet, "dsf.score", [SCORER, new_run_id()])
        push_tick(fleet, "dsf.cycle", [SCORER, new_run_id(), steal])
        for task in ("os.system", "celery.chord_unlock", "celery.map", "dsf.ingest"):
            push_tick(fleet, task, [steal])
        fleet.until(lambda: fleet.admin.llen("spoke.c1") == 0, "all of it to be taken")
        works(fleet, *CLUSTERS)
        assert "/steal" not in fleet.source.paths() + fleet.scorer.paths()
        assert {request.query["query"] for request in fleet.source.requests if request.query} == {"up"}
        assert fleet.acl_log() == []

    def test_a_chain_in_a_tick_leads_nowhere_else(self, fleet: Fleet) -> None:
        options = {"queue": "spoke.c10"}
        steps = [
            {"task": task, "args": ["smuggled", new_run_id()], "kwargs": {}, "options": options, "immutable": True}
            for task in ("dsf.publish", "dsf.score")
        ]
        push_tick(fleet, "dsf.cycle", [SCORER, new_run_id()], {"chain": steps})
        works(fleet, "c10")
        assert "smuggled" not in fleet.log("agent-c10")
        # The agent did not even try: its transport drops what comes with a call.
        assert fleet.acl_log() == []
        works(fleet, "c1")


def test_redis_restarts_and_everybody_comes_back(fleet: Fleet) -> None:
    before = fleet.state("c1")
    fleet.redis.restart()
    # Also what was written in transactions and scripts is still there: the default user, as whom Redis reads its log,
    # is off and nevertheless has rights.
    after = fleet.state("c1")
    assert after.scheduled >= before.scheduled
    assert after.score is not None
    works(fleet, *CLUSTERS)
    fleet.until(lambda: "dynamic_scoring_up 1.0" in fleet.get(fleet.exporter_port, "/metrics"))
    assert fleet.acl_log() == []


@pytest.fixture(scope="class")
def by_hand(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet without its hub controller, which would undo what these tests do in its place."""
    fleet.end("hub")
    yield fleet
    fleet.run_hub()
    fleet.until(lambda: "dsf-hub" in {client["user"] for client in fleet.admin.client_list()}, "the hub to be back")
    works(fleet, *CLUSTERS)


@pytest.fixture
def rotated(by_hand: Fleet) -> Iterator[Fleet]:
    """c1 has the credentials of id 1 and uses them, whatever the test before left behind; and again afterwards."""
    give(by_hand, 1)
    yield by_hand
    give(by_hand, 1)


def give(fleet: Fleet, key_id: int) -> None:
    """Make the credentials of this id the only ones of c1, on both sides, and wait until its agent uses them."""
    fleet.users.ensure("c1", (key_id,))
    Registry(fleet.admin).put_cluster(ClusterRecord(name="c1", key_ids=(key_id,)))
    fleet.deliver("c1", key_id)
    works(fleet, "c1")


class TestCredentials:
    """Rotation without a lost cycle; revocation at once."""

    def test_rotation_loses_no_cycle_and_restarts_nothing(self, rotated: Fleet) -> None:
        fleet, registry = rotated, Registry(rotated.admin)
        new = fleet.fresh_key()
        pid = fleet.process("agent-c1").pid
        lost, failed = fleet.state("c1").count("lost"), failures(fleet, "c1")
        # 1. Both are valid.
        registry.put_cluster(ClusterRecord(name="c1", key_ids=(new, 1)))
        fleet.users.ensure("c1", (new, 1))
        works(fleet, "c1")
        # 2. OCM brings the new ones.
        fleet.deliver("c1", new)
        fleet.until(lambda: AgentKeys(fleet.admin).last_used("c1") == new, "a result signed with the new key")
        # 3. The old ones are refused, and every connection that came with them is cut.
        before = {client["id"] for client in fleet.admin.client_list() if client["user"] == "spoke-c1"}
        assert before
        registry.put_cluster(ClusterRecord(name="c1", key_ids=(new,)))
        fleet.users.ensure("c1", (new,))
        fleet.until(
            lambda: (
                (now := {client["id"] for client in fleet.admin.client_list() if client["user"] == "spoke-c1"})
                and not now & before
            ),
            "the agent to be back",
        )
        works(fleet, "c1")
        state = fleet.state("c1")
        assert (state.count("lost"), failures(fleet, "c1")) == (lost, failed)
        assert fleet.process("agent-c1").pid == pid
        assert fleet.process("agent-c1").is_running
        with pytest.raises(redis.AuthenticationError):
            fleet.spoke("c1", 1).ping()
        # Within a second the results worker knows.
        time.sleep(REGISTRY_AGE + 0.2)
        with counted(fleet, "bad_signature"):
            send(fleet.spoke("c1", new), dumps(sign(result("c1"), derive_key(MASTER, "c1", 1))))

    def test_a_revoked_credential_ends_at_once_and_the_agent_waits_for_its_new_one(self, rotated: Fleet) -> None:
        fleet, new = rotated, rotated.fresh_key()
        pid = fleet.process("agent-c1").pid
        thief = fleet.spoke("c1", 1)
        assert thief.ping()
        told = fleet.log("agent-c1").count(REFUSED)
        fleet.users.ensure("c1", (new,))
        Registry(fleet.admin).put_cluster(ClusterRecord(name="c1", key_ids=(new,)))
        with pytest.raises(redis.AuthenticationError):
            thief.ping()
        # Several times, so that it has waited as long as it ever does.
        fleet.until(lambda: fleet.log("agent-c1").count(REFUSED) >= told + 6, "the agent to say so", 30)
        works(fleet, "c10")
        fleet.deliver("c1", new)
        works(fleet, "c1")
        assert fleet.process("agent-c1").pid == pid
        assert fleet.process("agent-c1").is_running

    def test_a_password_file_that_is_away_for_a_moment(self, rotated: Fleet) -> None:
        fleet = rotated
        file = fleet.password_file("c1")
        password = file.read_text()
        told = fleet.log("agent-c1").count(UNREADABLE)
        file.unlink()
        fleet.admin.execute_command("CLIENT KILL", "USER", "spoke-c1")
        fleet.until(lambda: fleet.log("agent-c1").count(UNREADABLE) > told, "the agent to say so")
        replace(file, password)
        works(fleet, "c1")

    def test_a_removed_cluster_is_cut_off_and_a_new_one_starts_afresh(self, rotated: Fleet) -> None:
        fleet = rotated
        fleet.users.remove("c1")
        fleet.until(lambda: not any(c["user"] == "spoke-c1" for c in fleet.admin.client_list()))
        with pytest.raises(redis.AuthenticationError):
            fleet.spoke("c1", 1).ping()
        fleet.users.ensure("c1", (1,))
        works(fleet, "c1")


def test_no_secret_is_anywhere(fleet: Fleet) -> None:
    """After all that happened above. A source that refuses the token is one more occasion to show it."""
    places = dict(traffic(fleet, "good cycles", "dsf.cycle", "dsf.fetch", "dsf.score", "dsf.publish"))
    fleet.source.script(answer({"error": "no such token"}, 401))
    fleet.until(lambda: fleet.state("c1").failing > 0, "a failed cycle")
    secrets = dict(CANARIES)
    for cluster in CLUSTERS:
        for key_id in range(1, fleet.newest_key + 1):
            secrets[f"password {key_id} of {cluster}"] = fleet.users.password(cluster, key_id)
            secrets[f"signing key {key_id} of {cluster}"] = derive_key(MASTER, cluster, key_id).secret.hex()
    places |= dict(traffic(fleet, "failed cycles", "dsf.fetch"))
    places |= dict(contents(fleet)) | dict(files(fleet)) | dict(pages(fleet))
    assert len(places) > 30
    found = [
        (name, place)
        for place, text in places.items()
        for name, secret in secrets.items()
        if secret in text or base64.b64encode(secret.encode()).decode().rstrip("=")[:-1] in text
    ]
    assert found == []
    # The search itself finds what is there.
    assert any(SCORER in text for text in places.values())
    # A cycle that had no time may have been the newest one then.
    told = "unauthorized"
    fleet.until(lambda: told in fleet.get(fleet.exporter_port, "/api/v1/scorers"), "the refusal to be shown")
    assert any(told in text for text in places.values())
