"""docker-compose.yaml, unchanged, with docker-compose of Debian in a network without a way out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.node.lab import clusters, engine, folders, network
from tests.node.lab.command import LabError, run
from tests.support.wait import wait_for

_PROJECT = "dsf"
SERVICES = (
    *("redis", "hub", "flower", "sample-scorer", "static-scorer"),
    *(f"{kind}-{cluster}" for cluster in ("worker01", "worker02") for kind in ("agent", "prometheus", "node-exporter")),
)


pytestmark = pytest.mark.usefixtures("own_nodes")


class Compose:
    """The project's compose file."""

    def __call__(self, *arguments: str, timeout: float = 300) -> str:
        """Run docker-compose and return its output."""
        command = ["docker-compose", "-p", _PROJECT, "-f", str(folders.ROOT / "docker-compose.yaml"), *arguments]
        environment = ["env", f"DOCKER_HOST=unix://{engine.SOCKET}", "COMPOSE_HTTP_TIMEOUT=300"]
        return run(*network.inside(clusters.COMPOSE), *environment, *command, timeout=timeout)

    def container(self, service: str) -> dict[str, Any]:
        """Return the engine's description of a service's container."""
        (description,) = json.loads(run(*engine.docker("inspect", f"{_PROJECT}_{service}_1")))
        container: dict[str, Any] = description
        return container

    def healthy(self, service: str) -> bool:
        """Raises AssertionError while it does not run or is not healthy."""
        state = self.container(service)["State"]
        assert state["Running"], state
        health = state.get("Health", {"Status": "none"})
        assert health["Status"] in ("healthy", "none"), health
        return True

    def scores(self) -> list[dict[str, Any]]:
        """Return the scores of `dsf scores`, run as the file's first lines describe."""
        report = json.loads(self("exec", "-T", "hub", "dsf", "scores", "--output", "json"))
        scores: list[dict[str, Any]] = report["scores"]
        return scores


def _builds() -> dict[str, dict[str, str]]:
    """Return image -> its build section in the file. Compose itself could only build with a separate network."""
    services = yaml.safe_load((folders.ROOT / "docker-compose.yaml").read_text())["services"].values()
    builds = {service["image"]: service["build"] for service in services if "build" in service}
    return {image: {"context": build} if isinstance(build, str) else build for image, build in builds.items()}


@pytest.fixture(scope="module")
def compose(lab: None) -> Iterator[Compose]:
    engine.start()
    for image, build in _builds().items():
        target = ["--target", build["target"]] if "target" in build else []
        context = folders.ROOT / build["context"]
        engine.build(context, image, "--file", context / build.get("dockerfile", "Dockerfile"), *target)
    engine.start(clusters.COMPOSE)
    project = Compose()
    try:
        project("up", "-d")
        yield project
    finally:
        engine.stop()


def _scored(compose: Compose) -> bool:
    try:
        scores = compose.scores()
    except LabError as error:
        raise AssertionError(str(error)) from None
    text = json.dumps(scores)
    assert "worker01" in text, text[:500]
    assert "worker02" in text, text[:500]
    return True


def test_services_are_healthy_and_both_clusters_have_scores(compose: Compose) -> None:
    for service in SERVICES:
        wait_for(lambda service=service: compose.healthy(service), 120, f"{service} healthy", interval=1)
    wait_for(lambda: _scored(compose), 90, "scores of both clusters", interval=1)


def test_killed_container_is_restarted(compose: Compose) -> None:
    """Kill each container, one after the other. Its process dies, because after `docker kill` it would not be
    restarted.
    """
    for service in SERVICES:
        before = compose.container(service)["State"]["Pid"]
        os.kill(before, 9)

        def is_restarted(service: str = service, before: int = before) -> bool:
            state = compose.container(service)["State"]
            return state["Running"] and state["Pid"] not in (0, before)

        wait_for(is_restarted, 120, f"{service} to be back", interval=0.2)
    for service in SERVICES:
        wait_for(lambda service=service: compose.healthy(service), 120, f"{service} healthy", interval=1)


def test_scoring_goes_on_after_the_restarts(compose: Compose) -> None:
    def scores() -> bool:
        rescore_command = ("exec", "-T", "hub", "dsf", "rescore", "sample-scorer", "--wait", "--timeout", "20")
        try:
            compose(*rescore_command)
        except LabError as error:
            raise AssertionError(str(error)) from None
        return True

    wait_for(scores, 90, "a cycle on both clusters", interval=1)


def test_compose_down_leaves_nothing(compose: Compose) -> None:
    """Runs after the others of this file."""
    compose("down", "--volumes")
    for list_command in (("ps", "--all"), ("volume", "ls"), ("network", "ls")):
        remaining_ids = run(
            *engine.docker(*list_command, "--quiet", "--filter", f"label=com.docker.compose.project={_PROJECT}")
        )
        assert remaining_ids == "", list_command
