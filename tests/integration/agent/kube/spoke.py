"""A managed cluster as an agent sees it: an API server, one namespace, and a Role with the rights by name only."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsf.api.types import CONFIGMAP_NAME, SUMMARIES_KEY, USABLE_FOR
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import CONFIG_MAPS, SECRETS, Resource
from tests.integration.agent.harness import Agent
from tests.support.controlplane import ControlPlane

_RBAC = ("rbac.authorization.k8s.io", "v1")
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_ROLES = Resource(*_RBAC, "roles", "Role")
_ROLE_BINDINGS = Resource(*_RBAC, "rolebindings", "RoleBinding")


class Spoke:
    """A namespace with an account that may only read the ConfigMap and the named Secrets."""

    def __init__(self, plane: ControlPlane, *secrets: str, namespace: str = "") -> None:
        """Create the namespace, by default with a generated name."""
        self.session = plane.session()
        self._plane = plane
        self.namespace = namespace or plane.namespace("agent")
        if namespace:
            self.session.create(_NAMESPACES.path(), {"metadata": {"name": namespace}})
        self.kubeconfig: Path = plane.service_account(self.namespace, "agent", [])
        with plane.granting(self.namespace, "agent", _rules(*secrets)) as rules:
            self.session.create(_ROLES.path(self.namespace), {"metadata": {"name": "agent"}, "rules": rules})
            self.session.create(
                _ROLE_BINDINGS.path(self.namespace),
                {
                    "metadata": {"name": "agent"},
                    "roleRef": {"apiGroup": _RBAC[0], "kind": "Role", "name": "agent"},
                    "subjects": [{"kind": "ServiceAccount", "namespace": self.namespace, "name": "agent"}],
                },
            )

    def allow(self, *secrets: str, config_maps: Sequence[str] = ()) -> None:
        """Let the account read its own ConfigMap and these Secrets and ConfigMaps, and no others."""
        self.grant(_rules(*secrets, config_maps=config_maps))

    def grant(self, rules: list[dict[str, Any]]) -> None:
        """Set the rights of the account to these rules."""
        with self._plane.granting(self.namespace, "agent", rules) as marked:
            self.session.merge(_ROLES.path(self.namespace, "agent"), {"rules": marked})

    def deliver(self, *summaries: dict[str, Any]) -> None:
        """Deliver these summaries, as OCM's work agent does."""
        self.deliver_text(json.dumps(summaries))

    def deliver_text(self, text: str) -> None:
        """Deliver this text instead of summaries."""
        self._put(CONFIG_MAPS, CONFIGMAP_NAME, {SUMMARIES_KEY: text})

    def withdraw(self) -> None:
        """Delete the ConfigMap."""
        self.session.delete(CONFIG_MAPS.path(self.namespace, CONFIGMAP_NAME))

    def secret(self, name: str, values: dict[str, str] | None, usable_for: str = "127.0.0.1") -> None:
        """Create, change or (None) delete a Secret whose label releases it for this machine."""
        if values is None:
            self.session.delete(SECRETS.path(self.namespace, name))
            return
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self._put(SECRETS, name, data, {USABLE_FOR: usable_for or None})

    def config_map(self, name: str, **values: str) -> None:
        """Create or change a ConfigMap; `_` in a key stands for a dot."""
        self._put(CONFIG_MAPS, name, {key.replace("_", "."): value for key, value in values.items()})

    def mark(self, name: str, **metadata: dict[str, str | None]) -> None:
        """Change labels and annotations of a Secret; None removes one."""
        self.session.merge(SECRETS.path(self.namespace, name), {"metadata": metadata})

    def _put(
        self, resource: Resource, name: str, data: dict[str, str], labels: dict[str, str | None] | None = None
    ) -> None:
        changes = {"metadata": {"labels": labels or {}}, "data": data}
        with contextlib.suppress(ObjectNotFoundError):
            self.session.merge(resource.path(self.namespace, name), changes)
            return
        self.session.create(resource.path(self.namespace), {"metadata": {"name": name}})
        self.session.merge(resource.path(self.namespace, name), changes)


class KubeAgent(Agent):
    """A real agent process whose only inputs are its cluster's API server and its mounted key."""

    def __init__(self, folder: Path, redis_url: str, spoke: Spoke, **settings: object) -> None:
        super().__init__(
            folder,
            redis_url,
            agent_kube=True,
            kubeconfig=spoke.kubeconfig,
            agent_namespace=spoke.namespace,
            **settings,
        )
        for name in ("agent_config", "agent_secrets_dir"):
            del self._settings[name]

    def value(self, metric: str) -> float:
        """Return the value of a metric without labels."""
        (line,) = self.metrics(f"{metric} ")
        return float(line.split()[1])


def _rules(*secrets: str, config_maps: Sequence[str] = ()) -> list[dict[str, Any]]:
    verbs, maps = ["get", "list", "watch"], [CONFIGMAP_NAME, *config_maps]
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": maps, "verbs": verbs}]
    if secrets:
        # Without names it would be for every Secret.
        rules.append({"apiGroups": [""], "resources": ["secrets"], "resourceNames": [*secrets], "verbs": verbs})
    return rules
