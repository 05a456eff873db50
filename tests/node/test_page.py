"""The page in its pod, in a browser through `kubectl port-forward`; the hub's API server authorizes readers."""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.node.lab import kind, network
from tests.node.world import HUB_NAMESPACE, MANAGED, InstalledQuickstart
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
_PORT = 8080
Look = Callable[..., dict[str, Any]]


#: Account -> the role of the chart that it has.
_ROLES = {"looking": "viewer", "editing": "editor", "stranger": ""}


@pytest.fixture(scope="module")
def tokens(world: InstalledQuickstart) -> Iterator[dict[str, str]]:
    """Account -> a token of it."""
    tokens_by_account = {}
    roles = {name: role for name, role in _ROLES.items() if role}
    for name in _ROLES:
        world.hub.kubectl("-n", HUB_NAMESPACE, "create", "serviceaccount", name)
        tokens_by_account[name] = world.hub.kubectl("-n", HUB_NAMESPACE, "create", "token", name).strip()
    for name, role in roles.items():
        bound = (f"--clusterrole=dynamic-scoring-framework-{role}", f"--serviceaccount={HUB_NAMESPACE}:{name}")
        world.hub.kubectl("create", "clusterrolebinding", name, *bound)
    yield tokens_by_account
    world.hub.kubectl("delete", "clusterrolebinding", *roles)
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "serviceaccount", *tokens_by_account)


def test_api_requires_the_token_of_a_permitted_viewer(world: InstalledQuickstart, tokens: dict[str, str]) -> None:
    url = f"http://dynamic-scoring-hub.{HUB_NAMESPACE}:{_PORT}/api/v1/summary"

    def status(token: str) -> int:
        pod = ("-n", HUB_NAMESPACE, "exec", "dynamic-scoring-test", "--", "python", "-c", _FETCH, url, token)
        return int(world.hub.kubectl(*pod))

    # A new right takes a moment to become effective everywhere.
    wait_for(lambda: status(tokens["looking"]) == 200, 30, "an account that may look")
    assert (status(tokens["stranger"]), status("made-up"), status("")) == (403, 401, 401)


@pytest.fixture(scope="module")
def look(
    world: InstalledQuickstart, tokens: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Look]:
    """Open the page as an account in a browser; further words are arguments of `tests.node.look`."""
    if kind.is_selected():
        pytest.skip("the browser looks from the network of our own nodes")
    find("chromium")
    log = tmp_path_factory.mktemp("page") / "port-forward.log"
    forward = world.hub.command("-n", HUB_NAMESPACE, "port-forward", "service/dynamic-scoring-hub", str(_PORT))
    forwarding = Child(["/usr/bin/env", *forward], log)

    def forwards() -> bool:
        assert forwarding.is_running, forwarding.tail()
        return "Forwarding from" in forwarding.tail()

    pictures = os.environ.get("DSF_PICTURES", "")

    def open_page(name: str, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.node.look", f"http://127.0.0.1:{_PORT}", *arguments]
        command += ["--picture", f"{pictures}/web-pod-{name}.png"] if pictures else []
        process = subprocess.run(
            [*network.inside(network.LAN), *command],
            input=tokens[name], capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        report: dict[str, Any] = json.loads(process.stdout)
        return report

    try:
        wait_for(forwards, 30, "kubectl port-forward")
        yield open_page
    finally:
        forwarding.kill()


def test_page_in_a_browser_shows_the_fleet_to_permitted_users(look: Look) -> None:
    page = look("looking")
    assert (page["login"], page["status"], page["wrong"]) == (303, 200, [])
    assert all(name in page["text"] for name in ("sample-scorer", *MANAGED)), page["text"]
    # The account is valid, and has no rights on the page.
    denied_page = look("stranger")
    assert (denied_page["login"], denied_page["status"]) == (303, 403)
    assert not [name for name in ("sample-scorer", *MANAGED) if name in denied_page["text"]]


def test_editor_compares_two_versions_of_a_scorer(world: InstalledQuickstart, look: Look) -> None:
    """In the pod of the page; a viewer is not offered to."""
    scorer_object = world.hub.get("dynamicscorer", "cluster-free", "-n", HUB_NAMESPACE)
    spec = copy.deepcopy(scorer_object["spec"])
    spec["scoring"]["params"]["name"] = "cluster_free_next"
    metadata = {"name": "cluster-free-next", "namespace": HUB_NAMESPACE}
    world.hub.apply(
        {"apiVersion": scorer_object["apiVersion"], "kind": scorer_object["kind"], "metadata": metadata, "spec": spec}
    )
    try:
        for scorer, name in itertools.product(("cluster-free", "cluster-free-next"), MANAGED):
            wait_for(lambda name=name, scorer=scorer: world.score(name, scorer), 120, f"{scorer} of {name}", interval=1)
        assert look("looking", "--compare", "cluster-free", "cluster-free-next")["compared"] is None
        comparison = look("editing", "--compare", "cluster-free", "cluster-free-next")
        assert comparison["wrong"] == []
        assert all(name in comparison["compared"] for name in ("cluster-free-next", *MANAGED)), comparison["compared"]
        assert f"system:serviceaccount:{HUB_NAMESPACE}:editing" in comparison["compared"], comparison["compared"]
        changes = world.dsf("changes")
        assert "compare" in changes
    finally:
        world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "dynamicscorer", "cluster-free-next")
