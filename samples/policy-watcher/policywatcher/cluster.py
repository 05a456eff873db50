"""The policies and the claim on the API server."""

from __future__ import annotations

from typing import Any, Final

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from policywatcher.claim import Compliance, PollResult

_POLICIES: Final = ("policy.open-cluster-management.io", "v1")
_CLAIMS: Final = ("cluster.open-cluster-management.io", "v1alpha1")
#: Owner of the claim's value, for server-side apply.
_FIELD_MANAGER: Final = "policy-watcher"
#: Seconds to connect, and to wait for bytes of the response. The API server responds within its own limit of 60 s.
_TIMEOUT: Final = (5.0, 60.0)
#: Policies per response.
_PAGE: Final = 500
#: Maximum bytes of an error's text in messages.
_TEXT: Final = 500


class ClusterError(Exception):
    """The API server was unreachable or refused a request. The message has the request, the response and a remedy."""


class Cluster:
    """Access to the watcher's cluster. Close it when done."""

    def __init__(self, configuration: client.Configuration, namespace: str, claim: str) -> None:
        # No retries, because the next poll follows soon.
        configuration.retries = 0
        self._client = client.ApiClient(configuration)
        self._api = client.CustomObjectsApi(self._client)
        self._namespace = namespace
        self._claim = claim

    @classmethod
    def connect(cls, namespace: str, claim: str) -> Cluster:
        """Connect with the pod's ServiceAccount, or outside of a cluster with the kubeconfig. Raises ClusterError."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            # Proxies of the environment are for servers outside of the cluster.
            configuration.proxy = None
        except config.ConfigException:
            try:
                config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            except (config.ConfigException, OSError) as error:
                raise ClusterError(f"no API server is configured: {error}; run in a pod or set KUBECONFIG") from None
        return cls(configuration, namespace, claim)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()  # type: ignore[no-untyped-call]

    def compliance(self) -> PollResult:
        """Return the common compliance of all policies of the namespace. Raises ClusterError."""
        evaluated: set[tuple[str, int]] = set()
        query: dict[str, Any] = {}
        while True:
            page = self._ask(
                f"list policies in namespace {self._namespace}",
                self._api.list_namespaced_custom_object,
                *_POLICIES,
                self._namespace,
                "policies",
                limit=_PAGE,
                **query,
            )
            for policy in page.get("items") or ():
                # A policy that is not evaluated yet has no status, so its compliance is unknown.
                if (policy.get("status") or {}).get("compliant") != "Compliant":
                    return PollResult(Compliance.NONCOMPLIANT)
                # The generation counts changes of spec: the status may still be about an older generation.
                metadata = policy.get("metadata") or {}
                evaluated.add((str(metadata.get("uid")), int(metadata.get("generation") or 0)))
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return PollResult(Compliance.COMPLIANT if evaluated else Compliance.EMPTY, frozenset(evaluated))
            query = {"_continue": token}

    def claim(self) -> str | None:
        """Return the claim's value; None without a claim, empty for a claim without a value. Raises ClusterError."""
        try:
            claim = self._ask(
                f"read ClusterClaim {self._claim}",
                self._api.get_cluster_custom_object,
                *_CLAIMS,
                "clusterclaims",
                self._claim,
            )
        except _NoSuchObjectError:
            return None
        return str((claim.get("spec") or {}).get("value") or "")

    def set_claim(self, value: Compliance) -> None:
        """Write the claim, which is created if it does not exist. Raises ClusterError."""
        self._ask(
            f"write ClusterClaim {self._claim}",
            self._api.patch_cluster_custom_object,
            *_CLAIMS,
            "clusterclaims",
            self._claim,
            {
                "apiVersion": "/".join(_CLAIMS),
                "kind": "ClusterClaim",
                "metadata": {"name": self._claim},
                "spec": {"value": str(value)},
            },
            field_manager=_FIELD_MANAGER,
            # Takes over a foreign value, but not foreign labels.
            force=True,
            _content_type="application/apply-patch+yaml",
        )

    def _ask(self, what: str, call: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        try:
            response = call(*arguments, **options, _request_timeout=_TIMEOUT)
        except ApiException as error:
            raise _error(what, error) from None
        except (urllib3.exceptions.HTTPError, OSError, config.ConfigException) as error:
            cause = getattr(error, "reason", None) or error
            raise ClusterError(f"cannot {what}: the API server cannot be reached ({_line(cause)})") from None
        except ValueError as error:
            raise ClusterError(f"cannot {what}: the response is not from an API server ({_line(error)})") from None
        if not isinstance(response, dict):
            raise ClusterError(f"cannot {what}: the response is not from an API server (no JSON object)")
        return response


class _NoSuchObjectError(ClusterError):
    """The API server knows the kind but has no object of that name."""


def _line(text: object) -> str:
    """Return the API server's text on one line, for the log."""
    return " ".join(str(text)[:_TEXT].split())


def _error(what: str, error: ApiException) -> ClusterError:
    text = _line(error.body or error.reason or "")
    message = f"cannot {what}: the API server answered {error.status}: {text}"
    if error.status == 403:
        return ClusterError(f"{message}; apply the Roles of manifests/deployment.yaml")
    if error.status == 404:
        # The response for an unknown kind is a plain "404 page not found", for an unknown object a Status with its
        # name.
        if "NotFound" in text:
            return _NoSuchObjectError(message)
        return ClusterError(
            f"{message}; the kind is not known there: install its CRD (for policies, OCM's policy add-on)"
        )
    return ClusterError(message)
