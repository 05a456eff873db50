"""Acts by `kubectl annotate` on a real API server: who may, who did it, and the response in the status."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsf.fleet import changes
from dsf.kube.resources import DYNAMIC_SCORERS
from dsf.settings import settings
from tests.integration.hub.kube.hubworld import HubWorld
from tests.integration.hub.kube.rights import rule
from tests.support import commandline
from tests.support.httpserver import ScriptedServer

GROUP = "dynamic-scoring.open-cluster-management.io"


def test_dsf_acts_as_the_user_of_the_kubeconfig(
    world: HubWorld, api: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [name] = world.setup(api.url, "managed")
    world.hub()
    world.until(lambda: world.schedule.read_entries_of("cpu-scorer"), 20)
    person = world.plane.service_account(world.namespace, "bob", [rule(GROUP, "dynamicscorers", "get patch")])
    for variable in [variable for variable in os.environ if variable.startswith("DSF_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("KUBECONFIG", str(person))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings.cache_clear()
    in_namespace = ("-n", world.namespace, "-o", "json")
    result = commandline.dsf("schedule", "pause", "cpu-scorer", "-c", name, "--note", "new disks", *in_namespace)
    assert result.exit_code == 0, result.output
    user = f"system:serviceaccount:{world.namespace}:bob"
    assert json.loads(result.stdout)["by"] == user
    assert world.schedule.read_overrides()[f"{name}/cpu-scorer"].by == user
    assert commandline.dsf("rescore", "cpu-scorer", *in_namespace).exit_code == 0
    assert world.client.llen(f"spoke.{name}") == 1
    result = commandline.dsf("schedule", "reset", "cpu-scorer", "-c", "nosuch", *in_namespace)
    assert (result.exit_code, json.loads(result.stdout)["outcome"]) == (1, "Refused")
    settings.cache_clear()


def answers(world: HubWorld) -> dict[str, dict[str, Any]]:
    """Return the responses in the status of cpu-scorer, by act."""
    status = world.session.get(DYNAMIC_SCORERS.path(world.namespace, "cpu-scorer")).get("status") or {}
    return {answer["act"]: answer for answer in status.get("acts") or ()}


def test_right_to_patch_scorers_is_enough_to_act(world: HubWorld, api: ScriptedServer) -> None:
    [name] = world.setup(api.url, "managed")
    world.hub()
    world.until(lambda: world.schedule.read_entries_of("cpu-scorer"), 20)
    person = world.plane.service_account(world.namespace, "ann", [rule(GROUP, "dynamicscorers", "get patch")])

    def annotate(act: str, value: str) -> None:
        world.plane.kubectl(
            *("--kubeconfig", str(person), "-n", world.namespace, "annotate", "--overwrite", "dscorer", "cpu-scorer"),
            f"{GROUP}/{act}={value}",
        )

    annotate("pause", f"1h cluster={name} note='new disks'")
    world.until(lambda: answers(world).get("pause", {}).get("outcome") == "Done", 20)
    assert answers(world)["pause"]["by"] == "kubectl-annotate"
    assert world.schedule.read_overrides()[f"{name}/cpu-scorer"].note == "new disks"
    annotate("rescore", "1")
    world.until(lambda: world.client.llen(f"spoke.{name}") == 1, 10)
    assert answers(world)["rescore"]["outcome"] == "Running"
    annotate("interval", "soon")
    world.until(lambda: answers(world).get("interval", {}).get("outcome") == "Refused", 10)
    # The same value again, or another change of the object, does not repeat the act.
    annotate("pause", f"1h cluster={name} note='new disks'")
    annotate("resume", "1")
    world.until(lambda: answers(world).get("resume", {}).get("outcome") == "Done", 10)
    assert world.client.llen(f"spoke.{name}") == 1
    recorded = [(change.action.value, change.by, change.way) for change in changes.read_changes(world.client).changes]
    assert recorded == [(act, "kubectl-annotate", "annotation") for act in ("resume", "rescore", "pause")]
