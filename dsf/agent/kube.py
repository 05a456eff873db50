"""Objects read from the agent's own API server: its ConfigMap, and the tokens that scorers reference.

Each object is watched by name, so that a Role with `resourceNames` suffices. The agent notices a change immediately,
whereas a mounted volume would be up to a minute late.

The Secret with the agent's own credentials is mounted. The Role does not allow reading it, so a scorer cannot name it.
The agent never reads objects from the hub's API server.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from collections.abc import Collection
from typing import Final

from dsf.agent.config import NO_SUMMARIES, AgentConfig, Summaries, from_configmap
from dsf.agent.secrets import Release, extract_certificates, format_secret_key
from dsf.api.authentication import API_SERVER_AUDIENCES, CaKind, Reference
from dsf.api.types import CONFIGMAP_NAME, MANAGED_BY, MANAGED_BY_LABEL, TOKEN_ACCOUNT, USABLE_FOR
from dsf.auth.secrets import SecretError, Token, Use
from dsf.errors import BackendError, ManifestError
from dsf.kube.reflector import Reflector
from dsf.kube.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Resource
from dsf.kube.session import Session
from dsf.kube.store import Key, Object
from dsf.settings import Settings

#: Part of a watch's error text if the API server denied access (HTTP status 403).
_FORBIDDEN: Final = ": 403: "
#: Secret types with private keys of servers or registry passwords. The agent sends no value of such a Secret.
_UNSENDABLE_TYPES: Final = frozenset({"kubernetes.io/tls", "kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"})
#: Secret type with a ServiceAccount's token. Only a label or annotation of the Secret itself can release it.
_SERVICE_ACCOUNT_TYPE: Final = "kubernetes.io/service-account-token"
_RESOURCES: Final = {CaKind.Secret: SECRETS, CaKind.ConfigMap: CONFIG_MAPS}


#: Maximum seconds to wait for the first list of an object in the agent, whose stages wait for it. An object that is not
#: listed by then counts as missing.
_MAX_LIST_SECONDS: Final = 5.0
#: Maximum seconds to connect to the API server for a token, and to read the response. At least one stage waits for it.
_TOKEN_CONNECT_SECONDS: Final = 3.0
_TOKEN_READ_SECONDS: Final = 5.0


class _WatchedObject:
    """Watches one object by its name and stores its newest version."""

    def __init__(
        self, session: Session, resource: Resource, namespace: str, name: str, max_list_seconds: float
    ) -> None:
        self._key = (namespace, name)
        self._max_list_seconds = max_list_seconds
        # Deadline of the first list by time.monotonic(), set by the first call of `wait`.
        self._wait_deadline: float | None = None
        self.reflector = Reflector(
            session,
            resource,
            self.handle_change,
            namespace=namespace,
            # A rule with `resourceNames` in a Role allows list and watch only with this selector.
            selectors={"fieldSelector": f"metadata.name={name}"},
        )

    def handle_change(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Handle a change of the object. The base class ignores it because callers read the object at each use."""

    @property
    def watch_problem(self) -> str:
        """Return why the object cannot be read. The text is empty if it can be read."""
        if self.reflector.error or self.reflector.synced.is_set():
            return self.reflector.error or ""
        return "the API server has not answered yet"

    def wait(self) -> None:
        """Wait for the first list of the object or for an error, at most `max_list_seconds` after the first call."""
        if self._wait_deadline is None:
            self._wait_deadline = time.monotonic() + self._max_list_seconds
        while not self.reflector.synced.is_set() and not self.reflector.error:
            if time.monotonic() >= self._wait_deadline:
                return
            self.reflector.synced.wait(0.05)

    def read(self) -> Object | None:
        """Return the object, or None if it does not exist. Return the last known version during an API server outage.

        Waits for the first list of the object.
        """
        self.wait()
        return self.reflector.store.get(self._key)


class KubeConfig(AgentConfig, _WatchedObject):
    """Reads the summaries from the ConfigMap that OCM delivers. `secrets` reads the Secrets that they reference.

    The agent has no scorers if the ConfigMap does not exist.
    """

    def __init__(self, settings: Settings, *, max_list_seconds: float = _MAX_LIST_SECONDS) -> None:
        """Load the kubeconfig or the pod's ServiceAccount. Raises SettingsError if a setting is not usable.

        An object that is not listed within `max_list_seconds` counts as missing.
        """
        release, namespace = Release(settings), settings.agent_namespace
        self._session = Session.load(settings.kubeconfig)
        AgentConfig.__init__(self)
        _WatchedObject.__init__(self, self._session, CONFIG_MAPS, namespace, CONFIGMAP_NAME, max_list_seconds)
        self.secrets = KubeSecrets(self._session, namespace, release, max_list_seconds)
        self.on_change(
            lambda summaries: self.secrets.unwatch_others(
                {reference for summary in summaries.values() for reference in summary.references}
            )
        )

    @property
    def problem(self) -> str:
        """Return why the newest delivery or the watch is not usable. The text is empty if both are usable."""
        return super().problem or self.watch_problem

    def get_summaries(self) -> Summaries:
        """Return the newest accepted summaries. Waits for the first delivery."""
        self.wait()
        return self._current

    def start(self) -> None:
        """Start to watch the ConfigMap."""
        self.reflector.start()

    def stop(self) -> None:
        """Stop all watches and close the session."""
        self.reflector.stop()
        self.secrets.stop()
        self._session.close()

    def handle_change(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Accept the summaries of a changed ConfigMap, or report why they are not usable."""
        try:
            summaries = NO_SUMMARIES if new is None else from_configmap(new)
        except ManifestError as error:
            self._record_problem(str(error))
        else:
            self._accept(summaries)


class KubeSecrets:
    """Reads Secrets and ConfigMaps of the agent's namespace, and requests tokens of a ServiceAccount without rights.

    Implements dsf.auth.secrets.SecretSource. Each object is watched from its first use until no scorer references it.
    """

    def __init__(
        self, session: Session, namespace: str, release: Release, max_list_seconds: float = _MAX_LIST_SECONDS
    ) -> None:
        self._session = session
        self._namespace = namespace
        self._release = release
        self._max_list_seconds = max_list_seconds
        self._watched_objects: dict[Reference, _WatchedObject] = {}
        # Guards `_watched_objects`.
        self._lock = threading.Lock()

    @property
    def watched(self) -> frozenset[str]:
        """Return the names of the watched Secrets and ConfigMaps."""
        with self._lock:
            return frozenset(reference.name for reference in self._watched_objects)

    def get_secret(self, name: str, key: str, use: Use) -> bytes:
        """Return the value of a Secret's key. Raises SecretError if it is missing or not released for this use."""
        label = format_secret_key(name, key)
        reference = Reference(CaKind.Secret, name)
        watched_object = self._watch(reference)
        secret = watched_object.read()
        if secret is not None:
            self._check_use(name, key, use, secret)
        return self._get_value(reference, watched_object, secret, key, label)

    def get_certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        """Return the PEM certificates in a key of a Secret or ConfigMap. Raises SecretError if there are none."""
        label = format_secret_key(name, key, kind)
        reference = Reference(kind, name)
        watched_object = self._watch(reference)
        return extract_certificates(
            self._get_value(reference, watched_object, watched_object.read(), key, label), label
        )

    def request_account_token(self, audience: str, seconds: int, deadline: float) -> Token:
        """Request a token of the ServiceAccount without rights, valid for `seconds`.

        `deadline` ends the request, by time.monotonic(). Raises SecretError if the API server issues no token, or
        if the audience is one of the API server itself.
        """
        api_server_audiences = API_SERVER_AUDIENCES | parse_issuer_and_audiences(self._session.get_bearer_token())
        if audience in api_server_audiences:
            raise SecretError(
                f"no token for {audience!r}: it is an audience of this cluster's API server, with which the server "
                "that gets the token could act as its account; name that server's own audience",
                "secret_refused",
            )
        path = SERVICE_ACCOUNTS.path(self._namespace, TOKEN_ACCOUNT) + "/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": seconds},
        }
        try:
            remaining_seconds = max(deadline - time.monotonic(), 0.001)
            timeout = min(_TOKEN_CONNECT_SECONDS, remaining_seconds), min(_TOKEN_READ_SECONDS, remaining_seconds)
            response = self._session.request("POST", path, body=body, timeout=timeout)
            # The API server may change the lifetime. Its expiry time is ignored because the agent's clock may differ.
            return Token(response["status"]["token"], float(response["spec"]["expirationSeconds"]))
        except BackendError as error:
            raise SecretError(
                f"no token of ServiceAccount {TOKEN_ACCOUNT} for {audience!r}: {error}; the agent's Role needs create "
                f"of serviceaccounts/token with resourceNames [{TOKEN_ACCOUNT}]",
                "auth_failed",
            ) from None
        except (LookupError, TypeError, ValueError):
            raise SecretError(
                f"no token of ServiceAccount {TOKEN_ACCOUNT}: the response of the API server is not valid",
                "auth_failed",
            ) from None

    def unwatch_others(self, references: Collection[Reference]) -> None:
        """Stop to watch all objects but these, because unused Secrets must not stay in memory."""
        with self._lock:
            unused_objects = [
                self._watched_objects.pop(reference) for reference in self._watched_objects.keys() - set(references)
            ]
        for unused_object in unused_objects:
            unused_object.reflector.stop()

    def stop(self) -> None:
        """Stop all watches."""
        with self._lock:
            watched_objects, self._watched_objects = list(self._watched_objects.values()), {}
        for watched_object in watched_objects:
            watched_object.reflector.stop()

    def _get_value(
        self, reference: Reference, watched_object: _WatchedObject, obj: Object | None, key: str, label: str
    ) -> bytes:
        """Return the value of the object's key. Raise SecretError with a remedy if the object or key is missing."""
        try:
            return _decode_value(obj, key)
        except KeyError:
            watch_problem = watched_object.watch_problem
            if watch_problem and not watched_object.reflector.synced.is_set():
                # The next cycle starts a new watch because an admin may grant the missing right in the meantime.
                self._unwatch(reference, watched_object)
            remedy = self._describe_missing(reference, watch_problem)
            raise SecretError(f"{label} is missing on the managed cluster{remedy}") from None

    def _check_use(self, name: str, key: str, use: Use, secret: Object) -> None:
        """Raise SecretError unless the Secret may be used in this way."""
        metadata = secret["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        secret_type = secret.get("type")
        if labels.get(MANAGED_BY_LABEL) == MANAGED_BY or (use.is_sent and secret_type in _UNSENDABLE_TYPES):
            raise SecretError(
                f"{format_secret_key(name, key)} is never sent anywhere: its label {MANAGED_BY_LABEL} says that it is "
                f"the framework's own, or its type is one of {', '.join(sorted(_UNSENDABLE_TYPES))}",
                "secret_refused",
            )
        servers = f"{labels.get(USABLE_FOR, '')} {annotations.get(USABLE_FOR, '')}"
        release_instructions = (
            f"its label or annotation {USABLE_FOR} in namespace {self._namespace} of the managed cluster, or on the "
            "hub to the chart's spokeSetting.agent.tokenSecrets"
        )
        self._release.check(
            name, key, use, servers, release_instructions, is_bindable=secret_type != _SERVICE_ACCOUNT_TYPE
        )

    def _watch(self, reference: Reference) -> _WatchedObject:
        """Return the watched object of this reference. Starts a watch if there is none."""
        with self._lock:
            watched_object = self._watched_objects.get(reference)
            if watched_object is None:
                resource = _RESOURCES[reference.kind]
                watched_object = _WatchedObject(
                    self._session, resource, self._namespace, reference.name, self._max_list_seconds
                )
                self._watched_objects[reference] = watched_object
                watched_object.reflector.start()
            return watched_object

    def _unwatch(self, reference: Reference, watched_object: _WatchedObject) -> None:
        """Stop this watch."""
        with self._lock:
            if self._watched_objects.get(reference) is watched_object:
                del self._watched_objects[reference]
        watched_object.reflector.stop()

    def _describe_missing(self, reference: Reference, watch_problem: str) -> str:
        """Return the text after "is missing": what an admin has to do."""
        if not watch_problem:
            return f"; create it in namespace {self._namespace}"
        return describe_unreadable(_RESOURCES[reference.kind], self._namespace, reference.name, watch_problem)


def parse_issuer_and_audiences(token: str) -> frozenset[str]:
    """Return issuer and audiences of a ServiceAccount's token, which are those of its API server.

    The set is empty for any other token.
    """
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        audiences = claims.get("aud") or []
        audience_candidates = [claims.get("iss"), *([audiences] if isinstance(audiences, str) else audiences)]
    except (LookupError, ValueError, TypeError, AttributeError):
        return frozenset()
    return frozenset(name for name in audience_candidates if isinstance(name, str))


def describe_unreadable(resource: Resource, namespace: str, name: str, watch_problem: str) -> str:
    """Return the text after "is missing" for an object whose watch failed with `watch_problem`."""
    if _FORBIDDEN not in watch_problem:
        return f" or cannot be read ({watch_problem})"
    missing_rule_text = (
        f" for this agent: its Role in namespace {namespace} has no rule for get, list and watch of {resource} with"
    )
    return f"{missing_rule_text} resourceNames [{name}] ({watch_problem})"


def _decode_value(obj: Object | None, key: str) -> bytes:
    """Return the value of a key of a Secret or ConfigMap. Raises KeyError if the object or the key is missing."""
    if obj is None:
        raise KeyError(key)
    if obj.get("kind") == CaKind.ConfigMap:
        return str((obj.get("data") or {})[key]).encode()
    try:
        return base64.b64decode((obj.get("data") or {})[key], validate=True)
    except binascii.Error:
        raise KeyError(key) from None
