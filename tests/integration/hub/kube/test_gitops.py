"""A repository and the hub on one real API server: tools that apply git see no difference in the hub's writes."""

from __future__ import annotations

import json

from deploy.tests.unit.test_gitops_health import argo, flux
from dsf.kube.resources import DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS
from tests.integration.hub.kube.hubworld import HubWorld
from tests.support.httpserver import ScriptedServer
from tests.support.manifests import config, scorer

_APPLY = ("--server-side", "--field-manager", "argocd-controller", "-f", "-")


def test_written_statuses_do_not_differ_from_git(world: HubWorld, api: ScriptedServer) -> None:
    objects = [
        config(world.namespace, masks=[{"clusterName": "other", "scoreName": "*"}]),
        scorer(world.namespace, "cpu-scorer", configURL=f"{api.url}/config"),
    ]
    repository = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    world.plane.kubectl("apply", *_APPLY, stdin=repository)
    world.hub()
    name = world.plane.cluster()
    world.until(lambda: world.delivered_scorers(name) == ["cpu-scorer"], 20)
    world.deliver(name)
    world.until(lambda: world.condition("Distributed") == ("True", "Distributed"), 10)
    world.until(lambda: world.condition("Ready") == ("Unknown", "NoCyclesYet"), 10)
    # Exit code 1 and a text would be a difference.
    assert world.plane.kubectl("diff", *_APPLY, stdin=repository) == ""
    before = world.session.get(DYNAMIC_SCORERS.path(world.namespace, "cpu-scorer"))["metadata"]["resourceVersion"]
    world.plane.kubectl("apply", *_APPLY, stdin=repository)
    scorer_object = world.session.get(DYNAMIC_SCORERS.path(world.namespace, "cpu-scorer"))
    assert scorer_object["metadata"]["resourceVersion"] == before, "an apply of the same writes nothing"
    assert (argo(scorer_object), flux(scorer_object)) == ("Progressing", "inProgress")

    world.send(name, 7.0)
    world.until(lambda: world.condition("Ready") == ("True", "CyclesSucceed"), 20)
    scorer_object = world.session.get(DYNAMIC_SCORERS.path(world.namespace, "cpu-scorer"))
    assert (argo(scorer_object), flux(scorer_object)) == ("Healthy", "current")
    whole = world.session.get(DYNAMIC_SCORING_CONFIGS.path(world.namespace, "dynamic-scoring-config"))
    assert (argo(whole), flux(whole)) == ("Healthy", "current")
    assert world.plane.kubectl("diff", *_APPLY, stdin=repository) == ""

    # A pause of a person is an annotation, which git does not have: it stays.
    key = "dynamic-scoring.open-cluster-management.io/paused-until"
    world.plane.kubectl("annotate", "dscorer", "cpu-scorer", "-n", world.namespace, f"{key}=2999-01-01T00:00:00Z")
    world.until(lambda: world.condition("Ready") == ("False", "Suspended"), 10)
    assert world.plane.kubectl("diff", *_APPLY, stdin=repository) == ""
    world.plane.kubectl("apply", *_APPLY, stdin=repository)
    assert key in world.session.get(DYNAMIC_SCORERS.path(world.namespace, "cpu-scorer"))["metadata"]["annotations"]
    # An interval in git is part of the spec, which git restores.
    world.plane.kubectl(
        *("patch", "dscorer", "cpu-scorer", "-n", world.namespace, "--type", "merge"),
        *("-p", '{"spec": {"execution": {"suspend": true}}}'),
    )
    objects[1]["spec"]["execution"] = {"suspend": False}
    changed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    diff = world.plane.kubectl("diff", *_APPLY, "--force-conflicts", stdin=changed, check=False)
    assert "suspend: true" in diff
