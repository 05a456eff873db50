"""Pages about a running framework, followed beside one, and the uses of its metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from deploy.tests.unit.test_chart_monitoring import DASHBOARD
from tests.integration.docs import venues
from tests.integration.docs.pages import Command
from tests.integration.docs.stackworld import CLUSTERS, INTERVAL, SCORER, StackWorld
from tests.integration.docs.venues import Venue
from tests.support.httpserver import answer

# All tests run in one worker, as they share servers and follow each other.
_FAILING = "broken"


def _commands() -> list[Command]:
    """Return each once, in the order in which a reader meets them."""
    commands_by_text: dict[str, Command] = {}
    for command in venues.of(Venue.STACK):
        commands_by_text.setdefault(command.text, command)
    return list(commands_by_text.values())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackWorld]:
    """The running stack."""
    with StackWorld(tmp_path_factory.mktemp("stack") / "world") as running:
        yield running


def test_commands_of_pages_work(world: StackWorld) -> None:
    before = {cluster: world.books(SCORER, cluster)["scheduled"] for cluster in CLUSTERS}
    outputs: dict[str, str] = {}
    for command in _commands():
        outputs[command.text] = world.type(command)
    assert len(outputs) >= 15
    explained = outputs["dsf explain sample-scorer --cluster worker01"]
    assert "n1" in explained
    (rescore_command,) = [text for text in outputs if text.startswith("dsf rescore") and "-o json" in text]
    assert {run["cluster"] for run in json.loads(outputs[rescore_command])["runs"]} == set(CLUSTERS)
    # Manual runs succeeded: by the command line, by Celery and through Flower's API.
    (send_task_command,) = [text for text in outputs if "send-task" in text]
    task = json.loads(outputs[send_task_command])["task-id"]
    world.until(lambda: _has_run(world, task), f"the task {task} that was sent through Flower")
    for cluster in CLUSTERS:
        assert world.books(SCORER, cluster)["scheduled"] > before[cluster]
    assert {entry["intervalSeconds"] for entry in world.data("schedule", "list")["entries"]} == {INTERVAL}


def _has_run(world: StackWorld, task: str) -> bool:
    return world.flower_knows(task).get("state") == "SUCCESS"


@pytest.mark.parametrize("page", venues.PROGRAMS)
def test_programs_of_pages_work(world: StackWorld, page: str) -> None:
    before = {cluster: world.books(SCORER, cluster)["ok"] for cluster in CLUSTERS}
    output = world.run_program(page)
    for cluster in CLUSTERS:
        # Each cluster gets the tick that the program sends to it.
        world.until(
            lambda name=cluster: world.books(SCORER, name)["ok"] > before[name],  # type: ignore[misc]
            f"the cycle of {cluster}",
        )
        assert re.search(rf"^{cluster} {SCORER}-score ok ", output, re.MULTILINE), output
        assert re.search(rf"^{cluster}/{SCORER} 0:01:00$", output, re.MULTILINE), output
    entries = world.data("schedule", "list")["entries"]
    assert {entry["cluster"]: entry["intervalSeconds"] for entry in entries} == {
        "worker01": 120,
        "worker02": INTERVAL,
    }
    world.data("schedule", "reset", SCORER, "--cluster", "worker01")


def test_dashboard_panels_show_series(world: StackWorld) -> None:
    # For panels of failures: a failing scorer, refused results, and skipped ticks.
    world.scorer(_FAILING, answer("no", 500), interval=1, execution={"maxRetries": 0})
    results = [{"metric": {"node": "n1"}, "score": 1}, {"metric": {"node": "n2"}, "score": None}]
    world.scorer("partly", answer({"results": results}), interval=1)
    world.scorer("suspended", answer({"results": []}), interval=1, execution={"suspend": True})
    world.redis.hincrby("dsf:rejected", "stale", 1)
    # The stack has no TLS; tests/integration/exporter/test_server.py covers the metrics of certificates.
    queries = {
        panel["title"]: [_filled(target["expr"]) for target in panel["targets"]]
        for panel in DASHBOARD["panels"]
        if panel["title"] != "Days until certificates end"
    }
    for title, expressions in queries.items():
        for expression in expressions:
            world.until(
                lambda e=expression: world.query(e),  # type: ignore[misc]
                f"data for the panel {title!r}: {expression}",
                40,
            )

    def reasons() -> set[str]:
        return {series["metric"]["reason"] for series in world.query(_filled(queries["Failures by reason"][0]))}

    world.until(lambda: "http_error" in reasons(), "the failures of a scorer", 40)
    # A cycle may have had no time; it has as long as its interval.
    assert reasons() <= {"http_error", "deadline", "timeout"}


def _filled(expression: str) -> str:
    """Return the query with every variable at `All`."""
    return re.sub(r"\$\w+", ".*", expression)


def test_central_store_receives_the_documented_metrics(world: StackWorld) -> None:
    names = ("dynamic_score", "cluster_cpu_free", "cluster_memory_free", "dynamic_scoring_requests_total")
    for name in names:
        world.until(lambda n=name: world.query(n, world.receiver_port), f"{name} at the receiver", 30)  # type: ignore[misc]
    (cpu,) = world.query("cluster_cpu_free", world.receiver_port)
    # The ended pod requests nothing.
    assert (float(cpu["value"][1]), cpu["metric"]["cluster"]) == (8 - 1.5, "worker01")
    (memory,) = world.query("cluster_memory_free", world.receiver_port)
    assert float(memory["value"][1]) == 750
    metric_names = {series["metric"]["__name__"] for series in world.query('{__name__=~".+"}', world.receiver_port)}
    assert {name for name in metric_names if not name.startswith(("dynamic_scor", "cluster_"))} == set()
