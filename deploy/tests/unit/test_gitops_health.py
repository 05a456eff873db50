"""Health in Argo CD and Flux from statuses that the hub writes: runs the Lua and CEL of deploy/."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import yaml

from dsf.api.scorer import DynamicScorer, DynamicScorerStatus
from dsf.api.types import CONFIG_KIND, GROUP, SCORER_KIND
from dsf.hub.conditions import DeliveryCounts, make_config_status, make_scorer_status
from dsf.hub.cycleoutcomes import CycleOutcomes
from dsf.hub.health import Health
from dsf.hub.plan import make_plan
from dsf.hub.scorerplan import Obstacle
from dsf.store.entries import Pace, Pauses, ScheduleOverride
from tests.support import chart
from tests.unit.hub.builders import NOW, cluster, config, scorer

_ARGO = yaml.safe_load((chart.ROOT / "deploy" / "argocd" / "argocd-cm.yaml").read_text())["data"]
_FLUX = yaml.safe_load((chart.ROOT / "deploy" / "flux" / "scorers.yaml").read_text())["spec"]["healthCheckExprs"]
_KEY = "dynamic-scoring.open-cluster-management.io/paused-until"
#: The functions of `os` that Argo CD allows to scripts; it allows no other library.
_OS = """
local time, date = os.time, os.date
function require(name) return name == "os" and {time = time, date = date} or error("no module " .. name) end
os, io, string, package, loadfile, dofile, debug = nil, nil, nil, nil, nil, nil, nil
"""

Manifest = dict[str, Any]


def run(script: str, manifest: Manifest) -> Any:
    """Run a script of Argo CD and return its result as plain data."""
    from lupa.lua51 import LuaRuntime

    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.execute(_OS)
    lua.globals().obj = lua.table_from(manifest, recursive=True)
    return _as_plain_data(lua.execute(script))


def _as_plain_data(value: Any) -> Any:
    from lupa.lua51 import lua_type

    if lua_type(value) != "table":
        return value
    items = {key: _as_plain_data(entry) for key, entry in value.items()}
    return list(items.values()) if items and set(items) == set(range(1, len(items) + 1)) else items


def argo(manifest: Manifest) -> str:
    """Return the health that Argo CD shows."""
    health = run(_ARGO[f"resource.customizations.health.{GROUP}_{manifest['kind']}"], manifest)
    assert health["message"]
    return str(health["status"])


def flux(manifest: Manifest) -> str:
    """Return the health for Flux, in its order: observedGeneration, inProgress, failed, current."""
    status, generation = manifest["status"], manifest["metadata"]["generation"]
    if status.get("observedGeneration", generation) != generation:
        return "inProgress"
    from cel import evaluate

    (health_check,) = [entry for entry in _FLUX if entry["kind"] == manifest["kind"]]
    assert health_check["apiVersion"] == manifest["apiVersion"]
    names = (name for name in ("inProgress", "failed", "current") if evaluate(health_check[name], manifest))
    return next(names, "inProgress")


def _scorer(
    health: Health, cycles: CycleOutcomes, spread: DeliveryCounts, pauses: Pauses, dynamic_scorer: DynamicScorer
) -> Manifest:
    plan = make_plan([dynamic_scorer], config(), [cluster("a"), cluster("b")], NOW)
    status = make_scorer_status(
        plan.scorers[dynamic_scorer.key],
        health,
        spread,
        cycles,
        Pace(30, 0, pauses),
        previous=DynamicScorerStatus(),
        now=NOW + timedelta(seconds=1),
    )
    return {**dynamic_scorer.to_manifest(), "status": status.to_manifest()}


_ACTIVE = Health(scorer().status.health_status, is_checked=True, is_proven=True)
_DOWN = Obstacle("Timeout", "no response")
_EVERYWHERE = DeliveryCounts(clusters=2, desired=2, distributed=2, config="hub/c", is_enabled=True)
_WELL = CycleOutcomes(succeeding=2)
_BY_HAND = Pauses(2, "a", ScheduleOverride(paused=True, by="ann"), None)


@pytest.mark.parametrize(
    ("arguments", "by_argo", "by_flux"),
    [
        ({}, "Healthy", "current"),
        ({"cycles": CycleOutcomes()}, "Progressing", "inProgress"),
        ({"spread": replace(_EVERYWHERE, distributed=1)}, "Progressing", "inProgress"),
        ({"cycles": CycleOutcomes(succeeding=1, failing=1)}, "Progressing", "inProgress"),
        ({"cycles": CycleOutcomes(failing=2, failing_without_score=2)}, "Degraded", "failed"),
        ({"health": replace(_ACTIVE, failures=2, failure=_DOWN)}, "Healthy", "current"),
        ({"dynamic_scorer": scorer(scoring={})}, "Degraded", "failed"),
        ({"dynamic_scorer": scorer(execution={"suspend": True})}, "Suspended", "current"),
        ({"pauses": _BY_HAND}, "Suspended", "current"),
        ({"spread": replace(_EVERYWHERE, desired=0, distributed=0)}, "Suspended", "current"),
    ],
)
def test_scorer_health_follows_its_ready_condition(arguments: dict[str, Any], by_argo: str, by_flux: str) -> None:
    usual = {"health": _ACTIVE, "cycles": _WELL, "spread": _EVERYWHERE, "pauses": Pauses(), "dynamic_scorer": scorer()}
    manifest = _scorer(**{**usual, **arguments})
    assert (argo(manifest), flux(manifest)) == (by_argo, by_flux)


@pytest.mark.parametrize(
    ("changed_numbers", "by_argo", "by_flux"),
    [
        ({}, "Healthy", "current"),
        ({"distributed": 1}, "Progressing", "inProgress"),
        ({"clusters": 0, "distributed": 0}, "Progressing", "inProgress"),
        ({"without_room": ["a/b"]}, "Degraded", "failed"),
    ],
)
def test_configuration_health_follows_its_ready_condition(
    changed_numbers: dict[str, Any], by_argo: str, by_flux: str
) -> None:
    scoring_config = config(generation=3)
    numbers = {"clusters": 2, "distributed": 2, "scorers": 1, "masked": 0, **changed_numbers}
    manifest = {
        **scoring_config.to_manifest(),
        "status": make_config_status(scoring_config, now=NOW, **numbers).to_manifest(),
    }
    assert (argo(manifest), flux(manifest)) == (by_argo, by_flux)


@pytest.mark.parametrize("kind", [SCORER_KIND, CONFIG_KIND])
def test_status_of_an_earlier_generation_counts_as_progressing(kind: str) -> None:
    bad = {"type": "Ready", "status": "False", "reason": "Old", "message": "m", "observedGeneration": 1}
    manifest: Manifest = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": kind,
        "metadata": {"name": "a", "generation": 2},
        "status": {"conditions": [bad]},
    }
    assert (argo(manifest), flux(manifest)) == ("Progressing", "inProgress")
    assert argo({**manifest, "status": {}}) == flux({**manifest, "status": {}}).replace("inProgress", "Progressing")
    without = {name: value for name, value in manifest.items() if name != "status"}
    assert argo(without) == "Progressing"


def _actions() -> tuple[str, dict[str, str]]:
    actions = yaml.safe_load(_ARGO[f"resource.customizations.actions.{GROUP}_{SCORER_KIND}"])
    return actions["discovery.lua"], {
        definition["name"]: definition["action.lua"] for definition in actions["definitions"]
    }


def test_argo_actions_pause_a_scorer_for_an_hour_and_resume_it() -> None:
    discovery, actions = _actions()
    manifest = scorer().to_manifest()
    offered = run(discovery, manifest)
    assert set(offered) == set(actions)
    assert offered["resume"]["disabled"]
    paused = run(actions["pause-1h"], manifest)
    assert {name: value for name, value in paused.items() if name != "metadata"}.keys() <= manifest.keys()
    assert not run(discovery, paused)["resume"].get("disabled")
    # The hub reads the annotation as a pause of an hour from now.
    read = DynamicScorer.from_manifest({**manifest, "metadata": paused["metadata"]})
    plan = make_plan([read], config(), [cluster("a")], NOW).scorers[read.key]
    pause_end = plan.suspended_until
    assert pause_end is not None
    assert 3590 < pause_end - time.time() <= 3600
    resumed = run(actions["resume"], paused)
    assert _KEY not in (resumed["metadata"].get("annotations") or {})
