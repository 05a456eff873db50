"""Delivery of a Secret of the hub to a cluster: named, labelled, changed and removed, on a real API server."""

from __future__ import annotations

import base64
from typing import Any

from dsf.api.types import API_VERSION, DELIVER_LABEL, USABLE_FOR
from dsf.kube.resources import DYNAMIC_SCORERS, SCORING_AUTHENTICATIONS, SECRETS
from tests.integration.hub.kube.hubworld import HubWorld
from tests.integration.hub.kube.rights import HUB
from tests.support.httpserver import ScriptedServer

SOURCE = {
    "type": "Prometheus",
    "host": "https://thanos.example",
    "params": {"query": "up", "range": 60, "step": 15},
    "auth": {"authenticationRef": {"name": "thanos"}},
}


def test_secret_is_delivered_updated_and_removed(world: HubWorld, api: ScriptedServer) -> None:
    [cluster] = world.setup(api.url, "one")
    namespace = world.namespace
    rights = [*HUB.values(), {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]}]
    world.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "ScoringAuthentication",
            "metadata": {"name": "thanos", "namespace": namespace},
            "spec": {
                # The host that /config of the scoring API names.
                "allowedHosts": ["prometheus.test"],
                "tokenSecretRef": {"name": "fleet", "key": "token"},
                "secretDelivery": [{"name": "fleet"}],
            },
        },
        secret(namespace, "fleet", "first-t0ken"),
        secret(namespace, "other", "0ther-token", **{DELIVER_LABEL: "true"}),
    )
    world.session.merge(DYNAMIC_SCORERS.path(namespace, "cpu-scorer"), {"spec": {"source": SOURCE}})
    hub = world.hub(kubeconfig=world.plane.service_account(namespace, "hub", rights), secret_delivery=True)

    def secrets() -> list[dict[str, Any]]:
        work = world.work(cluster)
        manifests: list[dict[str, Any]] = work["spec"]["workload"]["manifests"] if work else []
        return [manifest for manifest in manifests if manifest["kind"] == "Secret"]

    def delivered() -> dict[str, str]:
        return {secret["metadata"]["name"]: base64.b64decode(secret["data"]["token"]).decode() for secret in secrets()}

    def usable() -> str:
        [secret] = secrets()
        return str(secret["metadata"]["annotations"][USABLE_FOR])

    world.until(lambda: world.condition("ConfigSynced") == ("False", "SecretNotDelivered"), 30)
    assert delivered() == {}
    path = SECRETS.path(namespace, "fleet")
    world.session.merge(path, {"metadata": {"labels": {DELIVER_LABEL: "true"}}})
    world.until(lambda: delivered() == {"fleet": "first-t0ken"}, 30)
    world.session.merge(path, {"stringData": {"token": "sec0nd-token"}})
    world.until(lambda: delivered() == {"fleet": "sec0nd-token"}, 30)
    for hosts in ("thanos.example", "other.example", None):
        world.session.merge(path, {"metadata": {"annotations": {USABLE_FOR: hosts}}})
        world.until(lambda hosts=hosts: usable() == (hosts or ""), 30)
    world.session.merge(path, {"metadata": {"labels": {DELIVER_LABEL: None}}})
    world.until(lambda: delivered() == {}, 30)
    world.until(lambda: world.condition("ConfigSynced") == ("False", "SecretNotDelivered"), 30)

    log = hub.log.read_text()
    published_texts = [*world.condition_details("ConfigSynced"), *world.condition_details("Distributed"), log]
    for value in ("first-t0ken", "sec0nd-token", "0ther-token"):
        assert not any(form in text for text in published_texts for form in (value, encoded(value)))
    world.session.delete(SCORING_AUTHENTICATIONS.path(namespace, "thanos"))


def secret(namespace: str, name: str, token: str, **labels: str) -> dict[str, Any]:
    """Return a Secret of the hub."""
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"token": encoded(token)}}


def encoded(value: str) -> str:
    """As in a Secret."""
    return base64.b64encode(value.encode()).decode()
