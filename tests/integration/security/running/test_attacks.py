"""Attacks on the whole framework by a holder of a cluster's credential, or of its queue."""

from __future__ import annotations

import json
import time

from dsf import keys, messages
from dsf.messages import make_run_id, sign
from tests.integration.security.fleet import CLUSTERS, SCORER, Fleet
from tests.integration.security.running.attacks import message, push_tick, result, send
from tests.integration.security.running.proofs import counted, undisturbed, works
from tests.support.httpserver import answer


def test_processes_are_denied_nothing_with_their_own_users(fleet: Fleet) -> None:
    works(fleet, *CLUSTERS)
    assert "dynamic_scoring_up 1.0" in fleet.get(fleet.web_port, "/metrics")
    expected = {"dsf-controller", "dsf-beat", "dsf-results", "dsf-web", "dsf-flower", "spoke-c1", "spoke-c10"}
    fleet.until(lambda: {client["user"] for client in fleet.admin.client_list()} - {"admin"} == expected, "all users")
    dsf_tasks = {"dsf.cycle", "dsf.fetch", "dsf.score", "dsf.publish", "dsf.ingest"}
    fleet.until(lambda: _seen_by_flower(fleet) >= dsf_tasks, "Flower to show every task")
    fleet.get(fleet.flower_port, "/broker")
    fleet.get(fleet.flower_port, "/workers")
    # Flower queries these workers for their registered tasks.
    workers = json.loads(fleet.get(fleet.flower_port, "/workers?json=1"))["data"]
    (results,) = (worker["hostname"] for worker in workers if worker["hostname"].startswith("results@"))
    for worker, task in (("spoke@c1", "dsf.publish"), (results, "dsf.ingest")):
        # Flower waits a second for a response; each poll requests the missing ones again.
        fleet.until(lambda worker=worker, task=task: task in fleet.get(fleet.flower_port, f"/worker/{worker}"), task)
    assert fleet.acl_log() == []


def _seen_by_flower(fleet: Fleet) -> set[str]:
    tasks = json.loads(fleet.get(fleet.flower_port, "/api/tasks"))
    # Flower knows no name for tasks that began before it listened.
    return {task["name"] for task in tasks.values() if task["name"]}


class TestResults:
    """Results pushed by a thief with the credential of c1, and their effect."""

    def test_forged_result_is_rejected(self, fleet: Fleet) -> None:
        with counted(fleet, "bad_signature", 4) as thief:
            own_key = fleet.signing_key()
            guessed = messages.SigningKey(id=1, secret=b"x" * 32)
            send(thief, sign(result("c1"), guessed))
            # In the name of another cluster, before and after signing.
            send(thief, sign(result("c10"), own_key))
            send(thief, sign(result("c10"), own_key).replace(b" c10\n", b" c1\n"))
            send(thief, sign(result("c1"), own_key).replace(b" c1\n", b" c10\n"))

    def test_altered_result_is_rejected(self, fleet: Fleet) -> None:
        with counted(fleet, "bad_signature", 3) as thief:
            valid_result = sign(result("c1"), fleet.signing_key())
            signature = valid_result.split()[1]
            send(
                thief,
                valid_result.replace(b"99.0", b"100.0"),
                valid_result[:-20],
                valid_result.replace(signature, signature[::-1]),
            )

    def test_forged_celery_messages_are_rejected(self, fleet: Fleet) -> None:
        with counted(fleet, "malformed", 4) as thief:
            valid_result = sign(result("c1"), fleet.signing_key()).decode()
            for task in ("dsf.cycle", "celery.chord_unlock", "os.system", "celery.map"):
                send(thief, message(valid_result, task=task))

    def test_truncated_and_oversized_results_are_rejected(self, fleet: Fleet) -> None:
        with counted(fleet, "malformed", 4) as thief:
            whole = sign(result("c1"), fleet.signing_key())
            send(thief, whole[:70], "", whole[5:])
            big = result("c1", results=[({"node": "x" * 3_000_000}, 1.0)])
            send(thief, sign(big, fleet.signing_key()))

    def test_replayed_result_is_rejected(self, fleet: Fleet) -> None:
        with counted(fleet, "replayed", 2) as thief:
            # An older one would be stale, because the agent's results are ingested first.
            fleet.until(lambda: not fleet.admin.exists(*keys.mail_slots("c1")))
            run = fleet.state("c1").last_run
            frame = sign(result("c1", run), fleet.signing_key())
            send(thief, frame, frame)

    def test_results_of_the_past_and_the_future_are_rejected_as_stale(self, fleet: Fleet) -> None:
        key = fleet.signing_key()
        with counted(fleet, "stale", 2) as thief:
            old, future = time.time() - 100_000, time.time() + 3600
            send(thief, sign(result("c1", make_run_id(old), at=old), key))
            send(thief, sign(result("c1", at=future), key))

    def test_chain_in_a_result_is_not_forwarded(self, fleet: Fleet) -> None:
        marker = "chained-scorer"
        evil = [
            {"task": "dsf.cycle", "args": [marker, "x"], "kwargs": {}, "options": {"queue": queue}, "immutable": True}
            for queue in ("spoke.c10", "spoke.c1", "hub.results")
        ]
        with counted(fleet, "malformed", 3) as thief:
            valid_result = sign(result("c1"), fleet.signing_key()).decode()
            for embed in ({"chain": evil}, {"callbacks": evil, "errbacks": evil}, {"chord": evil[0]}):
                send(thief, message(valid_result, embed))
        # Signed fields: the holder may forge its own scores, without further effects.
        with undisturbed(fleet):
            skipped = fleet.state("c1").read_skip_counts().get("overlap", 0)
            key = fleet.signing_key()
            skip = sign(result("c1", outcome="skipped", reason="overlap", results=[]), key).partition(b"\n")[2]
            payload = json.loads(skip) | {"chain": evil, "callbacks": evil}
            send(thief, messages.make_frame(json.dumps(payload).encode(), key, "c1"))
            fleet.until(lambda: fleet.state("c1").read_skip_counts().get("overlap", 0) > skipped)
        works(fleet, *CLUSTERS)
        assert marker not in "".join(fleet.log(f"agent-{cluster}") for cluster in CLUSTERS)
        # The worker did not even try: that would be in the log.
        assert fleet.acl_log() == []


class TestTicks:
    """Ticks that an attacker with access to a cluster's queue can make its agent run."""

    def test_url_or_unknown_scorer_in_a_tick_causes_no_request(self, fleet: Fleet) -> None:
        trap = "http://127.0.0.1:1/steal"
        for server in (fleet.source, fleet.scorer):
            server.script(answer("not the path that was delivered", 418), path="/steal")
        steal = f"{fleet.source.url}/steal"
        names: list[object] = ["unknown", trap, steal, f"../{SCORER}", "", None, 7, {"url": steal}, [steal], "x" * 9000]
        for name in names:
            push_tick(fleet, "dsf.cycle", [name, make_run_id()])
        for run_id in (steal, "../../etc/passwd", "", None, 7, {"url": steal}):
            push_tick(fleet, "dsf.cycle", [SCORER, run_id])
            push_tick(fleet, "dsf.score", [SCORER, make_run_id()])
        push_tick(fleet, "dsf.cycle", [SCORER, make_run_id(), steal])
        for task in ("os.system", "celery.chord_unlock", "celery.map", "dsf.ingest"):
            push_tick(fleet, task, [steal])
        fleet.until(lambda: fleet.admin.llen("spoke.c1") == 0, "all of it to be taken")
        works(fleet, *CLUSTERS)
        assert "/steal" not in fleet.source.paths() + fleet.scorer.paths()
        assert {request.query["query"] for request in fleet.source.requests if request.query} == {"up"}
        assert fleet.acl_log() == []

    def test_chain_in_a_tick_is_not_forwarded(self, fleet: Fleet) -> None:
        options = {"queue": "spoke.c10"}
        steps = [
            {"task": task, "args": ["smuggled", make_run_id()], "kwargs": {}, "options": options, "immutable": True}
            for task in ("dsf.publish", "dsf.score")
        ]
        push_tick(fleet, "dsf.cycle", [SCORER, make_run_id()], {"chain": steps})
        works(fleet, "c10")
        assert "smuggled" not in fleet.log("agent-c10")
        # The agent does not even try, because its transport drops further data of a call.
        assert fleet.acl_log() == []
        works(fleet, "c1")


def test_processes_recover_from_a_restart_of_redis(fleet: Fleet) -> None:
    before = fleet.state("c1")
    fleet.redis.restart()
    # Writes of transactions and scripts survive too: Redis replays its log as the default user, which is off and
    # nevertheless has rights.
    after = fleet.state("c1")
    assert after.scheduled >= before.scheduled
    assert after.score is not None
    works(fleet, *CLUSTERS)
    fleet.until(lambda: "dynamic_scoring_up 1.0" in fleet.get(fleet.web_port, "/metrics"))
    assert fleet.acl_log() == []
