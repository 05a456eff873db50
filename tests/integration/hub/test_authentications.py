"""ScoringAuthentications in the folder of manifests: the data that agents get, and the messages for users."""

from __future__ import annotations

from typing import Any

from tests.integration.hub.world import HubHarness
from tests.support.httpserver import ScriptedServer

SOURCE = {
    "type": "Prometheus",
    "host": "https://thanos.example",
    "params": {"query": "up", "range": 60, "step": 15},
    "auth": {"authenticationRef": {"name": "thanos"}},
}
SCORING = {"params": {"name": "thanos", "interval": 30}}


def authentication(**spec: Any) -> dict[str, Any]:
    """Return a ScoringAuthentication with a token."""
    token = {"tokenSecretRef": {"name": "thanos", "key": "token"}}
    return {
        "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
        "kind": "ScoringAuthentication",
        "metadata": {"name": "thanos"},
        "spec": {"allowedHosts": ["thanos.example"], **token, **spec},
    }


def test_authentication_is_applied_updated_and_removed(running: HubHarness, api: ScriptedServer) -> None:
    world = running
    world.scorer("cpu", api, mode="None", source=SOURCE, scoring=SCORING)
    world.until(lambda: world.condition("cpu", "ConfigSynced")[1] == "MissingAuthentication")
    world.write("thanos.yaml", authentication())

    def access() -> dict[str, Any]:
        summaries = [summary for summary in world.summaries("a") or [] if summary["name"] == "cpu"]
        return dict(summaries[0].get("sourceAccess", {})) if summaries else {}

    world.until(lambda: access().get("allowedHosts") == ["thanos.example"])
    assert access()["methods"]["tokenSecretRef"] == {"name": "thanos", "key": "token"}
    world.until(lambda: world.condition("cpu", "ConfigSynced")[0] == "True")
    world.write("thanos.yaml", authentication(tls={"insecureSkipVerify": True}))
    world.until(lambda: world.condition("cpu", "TLSVerified")[:2] == ("False", "InsecureSkipVerify"))
    world.write("thanos.yaml", authentication())
    world.until(lambda: world.condition("cpu", "TLSVerified")[0] == "True")
    world.write("thanos.yaml", authentication(allowedHosts=["other.example"]))
    world.until(lambda: world.condition("cpu", "ConfigSynced")[1] == "HostNotAllowed")
    world.until(lambda: world.delivered_scorers("a") == ["cpu-scorer"])
    world.remove("thanos.yaml")
    world.until(lambda: world.condition("cpu", "ConfigSynced")[1] == "MissingAuthentication")
