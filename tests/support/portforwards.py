"""Port-forwards to pods that no node runs: an API server without nodes checks the rights for them, then ends them."""

from __future__ import annotations

import pytest

from dsf.agent.relay import HubRelay
from dsf.errors import RelayError
from dsf.kube.resources import PODS
from dsf.settings import Settings
from tests.support.controlplane import ControlPlane

#: In the reason for a port-forward that the rights allow.
ALLOWED = "does not have a host assigned"
#: In the reason for one that they do not allow.
FORBIDDEN = "forbids port-forwards"


def create_pod(plane: ControlPlane, namespace: str, name: str) -> None:
    """Create a pod that stays without a node."""
    # No controller manager creates the account that each pod needs.
    plane.kubectl("create", "serviceaccount", "default", "-n", namespace, check=False)
    spec = {"containers": [{"name": "redis", "image": "redis"}], "automountServiceAccountToken": False}
    plane.session().create(PODS.path(namespace), {"metadata": {"name": name}, "spec": spec})


def find_refusal(settings: Settings) -> str:
    """Return why an agent with these settings cannot reach its pod."""
    relay = HubRelay(settings, "127.0.0.1", 0)
    try:
        with pytest.raises(RelayError) as caught:
            relay.open_websocket()
    finally:
        relay.stop()
    return str(caught.value)
