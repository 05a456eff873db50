"""The page in its pod, seen by a browser through `kubectl port-forward`; the hub's API server says who may look."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.lab import kind, network
from tests.node.world import HUB_NAMESPACE, MANAGED, World
from tests.support.child import Child
from tests.support.programs import find
from tests.support.wait import wait_for

_FETCH = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"} if sys.argv[2] else {})
try:
    print(urllib.request.urlopen(request, timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
_PORT = 8090


@pytest.fixture(scope="module")
def tokens(world: World) -> Iterator[dict[str, str]]:
    """Of two accounts: one may look at scorers as a viewer of the chart, the other one may nothing."""
    found = {}
    for name in ("looking", "stranger"):
        world.hub.kubectl("-n", HUB_NAMESPACE, "create", "serviceaccount", name)
        found[name] = world.hub.kubectl("-n", HUB_NAMESPACE, "create", "token", name).strip()
    bound = ("--clusterrole=dynamic-scoring-framework-viewer", f"--serviceaccount={HUB_NAMESPACE}:looking")
    world.hub.kubectl("create", "clusterrolebinding", "looking", *bound)
    yield found
    world.hub.kubectl("delete", "clusterrolebinding", "looking")
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "serviceaccount", *found)


def test_the_api_wants_a_token_of_somebody_who_may_look(world: World, tokens: dict[str, str]) -> None:
    url = f"http://dynamic-scoring-web.{HUB_NAMESPACE}:{_PORT}/api/v1/summary"

    def status(token: str) -> int:
        pod = ("-n", HUB_NAMESPACE, "exec", "dynamic-scoring-test", "--", "python", "-c", _FETCH, url, token)
        return int(world.hub.kubectl(*pod))

    # A right that was just given is not known everywhere at once.
    wait_for(lambda: status(tokens["looking"]) == 200, 30, "an account that may look")
    assert (status(tokens["stranger"]), status("made-up"), status("")) == (403, 401, 401)


def test_a_browser_shows_the_fleet_to_who_may_look(world: World, tokens: dict[str, str], tmp_path: Path) -> None:
    if kind.wanted():
        pytest.skip("the browser looks from the network of our own nodes")
    find("chromium")
    with contextlib.ExitStack() as stack:
        forward = world.hub.command("-n", HUB_NAMESPACE, "port-forward", "service/dynamic-scoring-web", str(_PORT))
        forwarding = Child(["/usr/bin/env", *forward], tmp_path / "port-forward.log")
        stack.callback(forwarding.kill)

        def forwards() -> bool:
            assert forwarding.is_running, forwarding.tail()
            return "Forwarding from" in forwarding.tail()

        wait_for(forwards, 30, "kubectl port-forward")
        pictures = os.environ.get("DSF_PICTURES", "")

        def look(name: str) -> dict[str, Any]:
            command = [sys.executable, "-m", "tests.node.look", f"http://127.0.0.1:{_PORT}"]
            command += [f"{pictures}/web-pod-{name}.png"] if pictures else []
            done = subprocess.run(
                [*network.inside(network.LAN), *command],
                input=tokens[name], capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            said: dict[str, Any] = json.loads(done.stdout)
            return said

        seen = look("looking")
        assert (seen["login"], seen["status"], seen["wrong"]) == (303, 200, [])
        assert all(name in seen["text"] for name in ("sample-scorer", *MANAGED)), seen["text"]
        # Somebody who is known, and has no right to look.
        refused = look("stranger")
        assert (refused["login"], refused["status"]) == (303, 403)
        assert not [name for name in ("sample-scorer", *MANAGED) if name in refused["text"]]
