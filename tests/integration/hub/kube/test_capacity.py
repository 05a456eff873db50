"""A tenant with more than fits into a ManifestWork stops nobody's deliveries, on a real API server with OCM's limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dsf.api.types import MANIFESTWORK_NAME
from dsf.kube.resources import DYNAMIC_SCORERS, MANIFEST_WORKS
from dsf.kube.session import ApiServerError
from tests.integration.hub.kube.hubworld import HubWorld
from tests.support.httpserver import ScriptedServer
from tests.support.manifests import scorer

#: That of OCM's webhook, which is not installed here.
LIMIT = 500 * 1024
#: The ConfigMap's text is nearly all of it.
SIZE = "size(object.spec.workload.manifests[0].data.summaries)"
QUERY = {"type": "Prometheus", "host": "http://p.test", "params": {"query": "x" * 14_500, "range": 60, "step": 15}}


@pytest.fixture
def limited(world: HubWorld, api: ScriptedServer) -> Iterator[str]:
    """A cluster whose ManifestWork is refused if it is too large, in OCM's words."""
    [name] = world.setup(api.url, "limited")
    kind = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": ["work.open-cluster-management.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["manifestworks"],
    }
    is_other = f"object.metadata.namespace != '{name}' || object.metadata.name != '{MANIFESTWORK_NAME}'"
    validation = {
        "expression": f"{is_other} || {SIZE} <= {LIMIT}",
        "messageExpression": f"'the size of manifests is ' + string({SIZE}) + ' bytes which exceeds the {LIMIT} limit'",
    }
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    objects: list[dict[str, Any]] = [
        {"kind": "ValidatingAdmissionPolicy", "spec": policy},
        {
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]
    world.apply(*({"apiVersion": kind, "metadata": {"name": name}, **one} for one in objects))
    large = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x"}, "data": {"summaries": "x" * 600_000}}
    work = {
        "apiVersion": MANIFEST_WORKS.api_version,
        "kind": MANIFEST_WORKS.kind,
        "metadata": {"name": MANIFESTWORK_NAME, "namespace": name},
        "spec": {"workload": {"manifests": [large]}},
    }

    def is_refused() -> bool:
        try:
            world.session.request("POST", MANIFEST_WORKS.path(name), query={"dryRun": "All"}, body=work)
        except ApiServerError as error:
            return f"exceeds the {LIMIT} limit" in str(error)
        return False

    try:
        world.until(is_refused, 30)
        yield name
    finally:
        for one in reversed(objects):
            world.plane.kubectl("delete", one["kind"], name)


def test_deliveries_and_deletions_go_on(world: HubWorld, api: ScriptedServer, limited: str) -> None:
    tenant = world.plane.namespace("tenant")

    def plain(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
        params = {"name": name, "interval": 30}
        more = {"configSyncMode": "None", "scoring": {"params": params}, **spec}
        return scorer(namespace, name, configURL=f"{api.url}/config", **more)

    # Nearly twice of what fits.
    names = [f"large-{number:02}" for number in range(60)]
    many = [plain(tenant, name, source=QUERY) for name in names]
    world.apply(*many, plain(world.namespace, "of-hub"))
    world.hub(scorer_namespaces=f'["{tenant}"]')

    def told() -> set[str]:
        return set(world.told(limited) or ())

    def without_room() -> set[str]:
        return {
            item["metadata"]["name"]
            for item in world.items(DYNAMIC_SCORERS)
            if any(condition["reason"] == "NoRoom" for condition in item.get("status", {}).get("conditions", ()))
        }

    def all_decided() -> set[str]:
        """What is delivered, once the others are known to have no room: before, some were just not checked yet."""
        found = told()
        return found if found | without_room() == {"of-hub", "cpu-scorer", *names} else set()

    # The tenant gets what is left, and that is not all.
    first = world.until(all_decided, 60)
    assert {"of-hub", "cpu-scorer"} <= first
    assert 20 < len(first) < 50
    left_out = next(name for name in names if name not in first)
    world.apply(plain(world.namespace, "later"))
    world.until(lambda: "later" in told(), 30)
    world.session.delete(DYNAMIC_SCORERS.path(world.namespace, "of-hub"))
    world.until(lambda: "of-hub" not in told(), 30)
    for name in names[:5]:
        world.session.delete(DYNAMIC_SCORERS.path(tenant, name))
    # Their room goes to those that had none.
    world.until(lambda: (found := told()) and names[0] not in found and left_out in found, 30)
