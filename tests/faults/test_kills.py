"""kill -9 of every process at the worst moments: the next tick scores, and nothing in a queue is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dsf import keys
from dsf.reasons import FailureReason
from dsf.store.history import HistoryEntry
from dsf.store.ticks import send_now
from tests.faults.fleet import BY_HAND, SERIES, STALL, Fleet, scores
from tests.support.httpserver import Gate, matrix
from tests.support.mail import MailboxReader

#: Interval in seconds of `held`, whose stages wait at gates.
INTERVAL = 2
USER = "agent-c1"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with one cluster, whose agent has its own Redis user, as in production."""
    folder = tmp_path_factory.mktemp("kills") / "stack"
    user = ("--user", USER, "on", ">secret", "~*", "&*", "+@all")
    stack = Fleet(folder, redis_options=user)
    stack.settings["agent"] = {"redis_url": f"redis://{USER}:secret@127.0.0.1:{stack.redis_server.port}/0"}
    stack.scorer("held", scores(50), interval=INTERVAL, query="up")
    stack.scorer("steady", scores(60))
    stack.scorer("calm", scores(60), interval=BY_HAND)
    with stack:
        stack.wait_success("held")
        stack.wait_success("steady")
        stack.first_score("calm")
        yield stack


def runs_of(fleet: Fleet, scorer: str) -> list[str]:
    """Ids of the open runs of a scorer on c1."""
    pairs = [member.rpartition("/") for member in fleet.open_runs()]
    return [run for pair, _, run in pairs if pair == keys.pair("c1", scorer)]


def hold_at_stage(fleet: Fleet, stage: str) -> str:
    """Run a cycle of `held` until this stage and hold it there; return the id of its run.

    The cycle has a minute: with two seconds the stage would end before a busy machine kills the process.
    """
    fleet.until(lambda: fleet.items("held") == {"n1": 50})
    fleet.schedule.set_override("c1/held", paused=True)
    fleet.until(lambda: fleet.state("held").open == 0, "the last scheduled cycle to end")
    if stage == "fetch":
        gate = Gate(matrix(SERIES))
        fleet.source.script(gate, path="/held")
    else:
        if stage == "score":
            # More than the agent keeps in memory between two stages.
            fleet.source.script(matrix(*[SERIES] * 4000), path="/held")
        gate = Gate(scores(77))
        fleet.api.script(gate, path="/held")
    run = send_now(fleet.redis, "c1", "held", 60, queue_limit=100)
    assert gate.entered.wait(120)
    if stage == "publish":
        # The agent may go on with its own queue, but the hub's does not take its results.
        fleet.redis.acl_setuser(USER, enabled=True, reset_keys=True, keys=[keys.spoke_queue("c1")])
        gate.opened.set()
        fleet.until(lambda: fleet.metric("agent c1", "dynamic_score", ds_score_name="held-score") == 77)
    return run


def release(fleet: Fleet) -> None:
    """Everything answers again, and cycles are scheduled."""
    fleet.schedule.reset("c1/held")
    fleet.source.script(matrix(SERIES), path="/held")
    fleet.api.script(scores(50), path="/held")
    fleet.redis.acl_setuser(USER, enabled=True, keys=["*"])


@pytest.mark.parametrize("stage", ["fetch", "score", "publish"])
def test_agent_killed_in_any_stage_scores_at_the_next_tick(fleet: Fleet, stage: str) -> None:
    run = hold_at_stage(fleet, stage)
    fleet.kill("agent c1")
    release(fleet)
    assert fleet.items("held") == {"n1": 50}

    fleet.restart("agent c1")
    assert fleet.spooled("c1") == []
    assert fleet.wait_success("held", timeout=INTERVAL + 5) < INTERVAL + 5 + STALL
    fleet.wait_success("steady")

    # Its run was dispatched and has no result, which the books count once after its deadline.
    fleet.redis.zadd(keys.OPEN_RUNS, {keys.run_member("c1", "held", run): time.time()}, xx=True)
    fleet.until(lambda: run not in runs_of(fleet, "held"), "the killed run to be declared lost")
    assert [entry.outcome for entry in fleet.history("held") if entry.run == run] == ["lost"]
    fleet.check_cleared("held")
    fleet.check_books("steady")
    assert fleet.api.paths().count("/held") <= fleet.state("held").scheduled
    assert fleet.items("held") == {"n1": 50}


def test_killed_beat_is_replaced_by_a_standby_or_a_new_process(fleet: Fleet) -> None:
    fleet.schedule.set_override("c1/held", interval=3, note="incident 42")
    fleet.run("beat 2")
    # Either beat: one without CPU for two seconds loses its lock.
    fleet.until(lambda: "stands by" in fleet.log("beat 2") + fleet.log("beat"), "one beat to stand by")
    for dead, successor in (("beat", "beat 2"), ("beat 2", "beat")):
        started, before = time.monotonic(), fleet.state("steady").scheduled
        fleet.kill(dead)
        if successor not in fleet.processes:
            fleet.run(successor)
        # The lock's 2 s, one poll of it, one interval of 1 s, and the start of a process.
        fleet.until(lambda previous_ticks=before: fleet.state("steady").scheduled > previous_ticks + 1, "ticks", 10)  # type: ignore[misc]
        fleet.wait_success("steady")
        # Missed ticks are skipped.
        ticks = fleet.state("steady").scheduled - before
        assert ticks <= time.monotonic() - started + 1.5
        fleet.check_books("steady")
    assert fleet.schedule.read_overrides()["c1/held"].note == "incident 42"
    entry = next(schedule_entry for schedule_entry in fleet.data("schedule", "list", "held")["entries"])
    assert (entry["intervalSeconds"], entry["entryIntervalSeconds"]) == (3, INTERVAL)
    fleet.schedule.reset("c1/held")


def test_killed_results_worker_loses_no_queued_result(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.kill("results")
        queued_results = MailboxReader(fleet.redis, "c1")
        fleet.until(lambda results=queued_results: results.count() >= 4, "results in the queue")  # type: ignore[misc]
        # Otherwise newer scores replace them while a worker starts, and their runs are correctly counted as lost.
        fleet.schedule.set_override("c1/steady", paused=True)

        def queued_open_runs(results: MailboxReader = queued_results) -> list[str]:
            # Only runs that are open and queued count. A tick of a second may expire before an agent without CPU
            # receives it, and a worker may be killed after ingesting results and before it empties their slots.
            return [run for run in runs_of(fleet, "steady") if any(run in text for text in results.texts())]

        waiting = fleet.until(queued_open_runs, "results of open runs in the queue")
        fleet.run("results")

        def ingested_entries() -> dict[str, HistoryEntry]:
            entries_by_run = {entry.run: entry for entry in fleet.history("steady")}
            assert set(waiting) <= entries_by_run.keys()  # noqa: B023
            return entries_by_run

        entries = fleet.until(ingested_entries, "queued results to be taken in")
        # A cycle of one second may have had no time; its failure is ingested nevertheless.
        unsuccessful_entries = [entries[run] for run in waiting if entries[run].outcome not in ("ok", "skipped")]
        assert {(entry.outcome, entry.reason) for entry in unsuccessful_entries} <= {("error", FailureReason.DEADLINE)}
        fleet.check_books("steady")
        fleet.schedule.reset("c1/steady")
    fleet.wait_success("held")
    assert fleet.items("held") == {"n1": 50}


def test_scoring_goes_on_while_the_hub_is_killed(fleet: Fleet) -> None:
    fleet.schedule.set_override("*/steady", interval=1, note="kept")
    fleet.kill("hub")
    with fleet.expect_unaffected("calm"):
        fleet.wait_success("steady", cycles=2)
        fleet.wait_success("held")
        # Applied while no hub runs.
        fleet.scorer("late", scores(10))
        fleet.run("hub")
        fleet.wait_success("late")
    assert fleet.schedule.read_overrides()["*/steady"].note == "kept"
    assert {entry.pair for entry in fleet.schedule.read_entries()} == {"c1/calm", "c1/held", "c1/late", "c1/steady"}
    for scorer in ("held", "late", "steady"):
        fleet.check_cleared(scorer)
    fleet.schedule.reset("*/steady")


def test_restarted_exporter_restores_its_counters(fleet: Fleet) -> None:
    name = "dynamic_scoring_scheduled_total"
    before = fleet.metric("web", name, ds_score_name="steady-score")
    assert before
    with fleet.expect_unaffected("calm"):
        fleet.restart("web")
        after = fleet.metric("web", name, ds_score_name="steady-score")
        assert after
        assert after >= before
