"""Failing, wrong and oversized sources and scoring APIs beside a working one: users see the reasons, others are
unaffected.

The messages of each failure are tested with their packages: `tests/integration/http`, `auth`, `sources`, `cycle`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsf.up.httpcheck import make_http_check
from tests.faults.fleet import BY_HAND, Fleet, scores
from tests.support.child import Child
from tests.support.httpserver import answer, hang, send_endless, send_gzip_bomb, send_half
from tests.support.plugins import install
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.stack import pass_time
from tests.support.wait import wait_for

#: Seconds between two cycles of the failing scorers.
INTERVAL = 4
#: Bytes that an agent may grow by with all these at once. A response of up to 8 MB, the limit, is in memory as a whole,
#: and the one of 200,000 results takes about 100 MB while it is read as JSON.
GROWTH = 250_000_000
FLOODS = {
    "hangs": hang,
    "stops-halfway": send_half,
    "sends-a-gigabyte": send_endless(1 << 30),
    "sends-without-end": send_endless(),
    "sends-a-bomb": send_gzip_bomb,
    "sends-too-many": answer(json.dumps({"results": [{"metric": {"node": "n1"}, "score": 1}] * 200_000}).encode()),
}
PLUGIN = (
    "from dsf.sources.plugin import Options, Plugin\n"
    "def fetch(request):\n    raise KeyError('power')\n"
    "it = Plugin(1, Options, fetch)"
)


class FaultyFleet(Fleet):
    """The stack, whose agent has a plug-in that fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        install(folder / "packages", "dsf_raises", {"raises.example.com": "dsf_raises:it"}, PLUGIN)

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of the agent's image, which other processes do not have."""
        variables = super().environment(name)
        if name.startswith("agent"):
            variables["PYTHONPATH"] += os.pathsep + str(self.folder / "packages")
        return variables


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Prometheus that scrapes itself every second."""
    program, folder, port = find("prometheus"), tmp_path_factory.mktemp("prometheus"), free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n"
        "  - job_name: itself\n    static_configs:\n"
        f"      - {{targets: ['127.0.0.1:{port}'], labels: {{node: n1}}}}\n"
    )
    options = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}")
    process = Child(
        (str(program), *options, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"), folder / "log"
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(make_http_check(f"{url}/-/ready"), 30, f"Prometheus; {process.tail()}")
        yield url
    finally:
        process.kill()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, prometheus: str) -> Iterator[Fleet]:
    """All response well until a test says otherwise."""
    world = FaultyFleet(tmp_path_factory.mktemp("failures") / "stack")
    world.scorer("steady", scores(60), interval=BY_HAND, query="up", source=prometheus)
    for name in FLOODS:
        world.scorer(name, scores(10), interval=INTERVAL, execution={"maxRetries": 0})
    world.scorer("asked", scores(10), interval=INTERVAL, query="up", source=prometheus)
    with world:
        world.first_score("steady")
        for name in ("asked", *FLOODS):
            world.until(lambda name=name: world.items(name) == {"n1": 10}, f"{name} to score")  # type: ignore[misc]
        yield world


def test_floods_of_a_source_do_not_affect_other_scorers(fleet: Fleet) -> None:
    """Other scorers are unaffected, and the agent's memory stays small."""
    memory = fleet.memory("agent c1")
    with fleet.expect_unaffected("steady"):
        for name, flood in FLOODS.items():
            fleet.api.script(flood, path=f"/{name}")
        grown, end = 0, time.monotonic() + 2 * INTERVAL
        while time.monotonic() < end:
            grown = max(grown, fleet.memory("agent c1") - memory)
            pass_time(0.05)
        assert grown < GROWTH
    for name in FLOODS:
        # The last score stays until it expires; it is not replaced by garbage.
        assert fleet.items(name) == {"n1": 10}
        fleet.api.script(scores(10), path=f"/{name}")


def test_query_error_of_a_user_is_reported_and_cleared_after_its_correction(fleet: Fleet, prometheus: str) -> None:
    """A user makes a mistake, reads Prometheus' own words everywhere, and corrects it."""
    fleet.scorer("asked", interval=INTERVAL, query="sum(up", source=prometheus)
    message = fleet.check_failure("asked", "fetch", "bad_query", "parse error", "unclosed left parenthesis")
    assert message.startswith(f"GET {prometheus}/api/v1/query_range: ")
    fleet.scorer("asked", interval=INTERVAL, query="up", source=prometheus)
    fleet.check_cleared("asked")


def test_broken_scoring_api_is_reported_and_cleared_after_its_recovery(fleet: Fleet) -> None:
    fleet.scorer("broken", answer("out of memory", 500), interval=INTERVAL, execution={"maxRetries": 1})
    url = f"POST {fleet.api.url}/broken"
    message = fleet.check_failure("broken", "score", "http_error", url, "HTTP 500: out of memory")
    assert len(message) < 700
    fleet.api.script(scores(20), path="/broken")
    fleet.check_cleared("broken")
    fleet.until(lambda: fleet.items("broken") == {"n1": 20})
    (fleet.manifests / "scorer-broken.yaml").unlink()


def test_plugin_exception_is_reported_as_fetch_failure(fleet: Fleet) -> None:
    fleet.scorer("plugged", scores(10), interval=INTERVAL, query="x", kind="raises.example.com")
    fleet.check_failure("plugged", "fetch", "plugin_failed", "KeyError in dsf_raises.py:3: 'power'")
    (fleet.manifests / "scorer-plugged.yaml").unlink()


def test_invalid_manifests_are_reported_by_dsf_status(fleet: Fleet) -> None:
    """The manifest is refused, or cannot be used on a cluster: `dsf status` reports both."""
    fleet.scorer("nameless", scores(10), query='up{r="${label:region}"}')
    fleet.scorer("unknown", scores(10), query="up", wrong=True)

    def problem() -> dict[str, Any] | None:
        problems = fleet.data("status")["problems"]
        return next((entry for entry in problems if entry["file"] == "scorer-unknown.yaml"), None)

    problem_entry = fleet.until(problem, "the file in `dsf status`", timeout=60) or {}
    assert (problem_entry["field"], "is not a known field" in problem_entry["message"]) == ("spec.wrong", True)
    fleet.until(lambda: fleet.condition("nameless", "Distributed")[1] == "MissingClusterValue", "the condition")
    process = fleet.dsf("status", "nameless", "-o", "json")
    assert process.returncode == 1, process.stdout + process.stderr
    messages = {condition["reason"]: condition["message"] for condition in json.loads(process.stdout)["conditions"]}
    assert "ManagedCluster 'c1' has no label 'region' for ${label:region}" in messages["MissingClusterValue"]
    for name in ("nameless", "unknown"):
        (fleet.manifests / f"scorer-{name}.yaml").unlink()


def test_status_metrics_and_books_are_clean_after_all_failures(fleet: Fleet) -> None:
    """The steady scorer is unaffected by all failures before, and the agent's metrics are well formed."""
    names = {"steady", "asked", *FLOODS}

    def is_well() -> bool:
        process = fleet.dsf("status", "-o", "json")
        return process.returncode == 0 and {row["name"] for row in json.loads(process.stdout)["scorers"]} == names

    fleet.until(is_well, "`dsf status` to find nothing wrong")
    assert fleet.failed_since("steady") == {"error": 0, "lost": 0}
    for name in names:
        fleet.check_books(name)
    text = fleet.page("agent c1", "/metrics").text
    assert "dynamic_score{" in text
    command = [find("promtool"), "check", "metrics"]
    process = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    for name in fleet.processes:
        log = fleet.log(name)
        assert "Traceback" not in log, f"{name}: {log[log.index('Traceback') - 500 :][:2000]}"
