"""Commands that people type in pods: a backtest in an agent's, and Celery's own commands in one of the hub."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from dsf.messages import CYCLE_TASK, INGEST_TASK
from tests.node.lab.command import LabError
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, MANAGED, InstalledQuickstart
from tests.support.wait import wait_for

AGENTS = {name: f"spoke@{name}" for name in MANAGED}
#: Seconds between two moments of a backtest, and how far back the first one is.
_EVERY, _SINCE = 30, 120


@pytest.mark.parametrize("scorer", ["sample-scorer", "cluster-free"])
@pytest.mark.parametrize("name", MANAGED)
def test_backtest_runs_in_an_agent_pod(world: InstalledQuickstart, name: str, scorer: str) -> None:
    """As in docs/backtest.md: the agent's own source, and the delivered summary; for any user id."""
    pod = ("-n", AGENT_NAMESPACE, "exec", "deployment/dynamic-scoring-agent", "--")
    exec_command = (*pod, *f"dsf backtest {scorer} --since {_SINCE}s --every {_EVERY}s -o jsonl".split())

    def backtest_rows() -> list[dict[str, Any]]:
        # A Prometheus as young as this cluster may have no data yet; then the command reports that, and fails.
        try:
            return [json.loads(line) for line in world.managed[name].kubectl(*exec_command).splitlines()]
        except LabError as error:
            raise AssertionError(str(error)) from None

    question, *moments = wait_for(backtest_rows, 180, f"a backtest of {scorer} on {name}", interval=5)
    assert (question["question"]["cluster"], question["question"]["scorer"]) == (name, scorer)
    assert question["question"]["every"] == _EVERY
    times = [moment["at"] for moment in moments]
    assert len(times) >= _SINCE // _EVERY
    assert all(later - earlier == _EVERY for earlier, later in itertools.pairwise(times))
    assert {moment["cluster"] for moment in moments} == {name}
    items = [moment["items"] for moment in moments if moment["outcome"] == "ok"]
    assert any(items), moments
    if scorer == "cluster-free":
        assert all(set(item_names) == {"cluster_free"} for item_names in items)


def celery(world: InstalledQuickstart, *arguments: str) -> str:
    """Run Celery in the page's test pod, whose Redis user is dsf-operator."""
    pod = ("-n", HUB_NAMESPACE, "exec", "dynamic-scoring-test", "--")
    return world.hub.kubectl(*pod, "celery", "-A", "dsf.celery", *arguments, "--timeout", "10")


def inspected(world: InstalledQuickstart, question: str, *arguments: str) -> dict[str, Any]:
    """Worker -> its response. AssertionError unless all agents and a results worker answer."""
    try:
        replies: dict[str, Any] = json.loads(celery(world, "inspect", question, "--json", *arguments))
    except LabError as error:
        raise AssertionError(str(error)) from None
    assert set(AGENTS.values()) <= set(replies), replies
    assert [worker for worker in replies if worker.startswith("results@")], replies
    return replies


def test_celery_status_names_hub_workers_and_agents(world: InstalledQuickstart) -> None:
    workers = [f"results@{pod['metadata']['name']}" for pod in _results(world)]

    def status() -> bool:
        output = celery(world, "status")
        assert all(f"{worker}: OK" in output for worker in (*AGENTS.values(), *workers)), output
        assert f"{len(AGENTS) + len(workers)} nodes online" in output
        return True

    assert wait_for(status, 60, "every worker to answer", interval=1)


def _results(world: InstalledQuickstart) -> list[dict[str, Any]]:
    return world.wait_ready(world.hub, HUB_NAMESPACE, "app.kubernetes.io/component=hub")


def test_celery_inspect_returns_tasks_and_stats(world: InstalledQuickstart) -> None:
    def ask(question: str) -> dict[str, Any]:
        return wait_for(lambda: inspected(world, question), 60, f"answers to {question}", interval=1)

    assert all(response == {"ok": "pong"} for response in ask("ping").values())
    for worker, tasks in ask("registered").items():
        own_task, foreign_task = (CYCLE_TASK, INGEST_TASK) if worker.startswith("spoke@") else (INGEST_TASK, CYCLE_TASK)
        names = {task.split()[0] for task in tasks}
        assert own_task in names, f"{worker}: {tasks}"
        assert foreign_task not in names, f"{worker}: {tasks}"
    for worker, stats in ask("stats").items():
        assert stats["uptime"] >= 0, f"{worker}: {stats}"
        if worker.startswith("spoke@"):
            assert stats["pool"]["max-concurrency"] == 8
            assert stats["total"].get(CYCLE_TASK, 0) > 0, f"{worker}: {stats['total']}"
    for worker, tasks in ask("active").items():
        dsf_tasks = {CYCLE_TASK, INGEST_TASK, "dsf.fetch", "dsf.score", "dsf.publish"}
        assert {task["name"] for task in tasks} <= dsf_tasks, f"{worker}: {tasks}"


def _cycles(world: InstalledQuickstart) -> dict[str, int]:
    """Cluster -> cycles that its agent has begun since its start."""
    stats = wait_for(lambda: inspected(world, "stats"), 60, "answers to stats", interval=1)
    return {name: stats[worker]["total"].get(CYCLE_TASK, 0) for name, worker in AGENTS.items()}


def test_celery_control_limits_the_rate_of_one_agent(world: InstalledQuickstart) -> None:
    """The limited cluster runs one cycle an hour, while the other one continues."""
    limited, free = MANAGED
    try:
        output = celery(world, "control", "rate_limit", CYCLE_TASK, "1/h", "--destination", AGENTS[limited])
        assert "new rate limit set successfully" in output
        assert AGENTS[free] not in output
        before = _cycles(world)

        def other_cluster_continues() -> bool:
            world.dsf("rescore", "sample-scorer")
            return _cycles(world)[free] >= before[free] + 5

        wait_for(other_cluster_continues, 180, f"five cycles on {free}", interval=1)
        # The first one has its turn.
        assert _cycles(world)[limited] <= before[limited] + 1
    finally:
        celery(world, "control", "rate_limit", CYCLE_TASK, "0", "--destination", AGENTS[limited])
    world.rescore()
