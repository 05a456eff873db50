"""Objects read from the agent's own API server: its ConfigMap, and the tokens that scorers reference.

Each object is watched by name, so that a Role with `resourceNames` suffices, and a change is seen at once: a mounted
volume would be up to a minute late. The agent's own credentials are mounted, not read here: scorers name the Secrets
that are read here, and the Role excludes that one. The hub's API server is never read.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from collections.abc import Collection
from typing import Final

from dsf.agent.config import NONE, AgentConfig, Summaries, from_configmap
from dsf.agent.secrets import Release, only_certificates, secret_label
from dsf.api.authentication import API_SERVER_AUDIENCES, CaKind, Reference
from dsf.api.types import CONFIGMAP_NAME, MANAGED_BY, MANAGED_BY_LABEL, TOKEN_ACCOUNT, USABLE_FOR
from dsf.auth.secrets import SecretError, Token, Use
from dsf.errors import BackendError, ManifestError
from dsf.kube.reflector import Reflector
from dsf.kube.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Resource
from dsf.kube.session import Session
from dsf.kube.store import Key, Object
from dsf.settings import Settings

#: Marks a refusal in the problem text of a watch.
_FORBIDDEN: Final = ": 403: "
#: Secret types with private keys of servers or registry passwords.
_NEVER_SENT: Final = frozenset({"kubernetes.io/tls", "kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"})
#: Secret type with a ServiceAccount's rights: only the Secret itself can release it.
_ACCOUNT: Final = "kubernetes.io/service-account-token"
_RESOURCES: Final = {CaKind.Secret: SECRETS, CaKind.ConfigMap: CONFIG_MAPS}


class _Watched:
    """An object, watched by name."""

    def __init__(self, session: Session, resource: Resource, namespace: str, name: str) -> None:
        self._key = (namespace, name)
        # By time.monotonic(), from the first wait on.
        self._wait_until: float | None = None
        self.reflector = Reflector(
            session,
            resource,
            self.changed,
            namespace=namespace,
            # List and watch by this one name, as a Role's `resourceNames` can allow.
            selectors={"fieldSelector": f"metadata.name={name}"},
        )

    def changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Called by the watch; a no-op where the object is read at use."""

    @property
    def unreadable(self) -> str:
        """Why the object cannot be read; empty if it can."""
        if self.reflector.error or self.reflector.synced.is_set():
            return self.reflector.error or ""
        return "the API server has not answered yet"

    def wait(self) -> None:
        """Wait for the first list of the object, or for an error. All callers together wait for one period."""
        if self._wait_until is None:
            # An object that is not listed by then counts as missing until it is seen.
            self._wait_until = time.monotonic() + 5.0
        while not self.reflector.synced.is_set() and not self.reflector.error:
            if time.monotonic() >= self._wait_until:
                return
            self.reflector.synced.wait(0.05)

    def read(self) -> Object | None:
        """Return the current object, or None. While the API server is unreachable: as last seen."""
        self.wait()
        return self.reflector.store.get(self._key)


class KubeConfig(AgentConfig, _Watched):
    """Summaries in the ConfigMap delivered by OCM, and the Secrets that they reference, over one session.

    No ConfigMap means no scorers.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError."""
        release, namespace = Release(settings), settings.agent_namespace
        self._session = Session.load(settings.kubeconfig)
        AgentConfig.__init__(self)
        _Watched.__init__(self, self._session, CONFIG_MAPS, namespace, CONFIGMAP_NAME)
        self.secrets = KubeSecrets(self._session, namespace, release)
        self.on_change(
            lambda summaries: self.secrets.keep(
                {reference for summary in summaries.values() for reference in summary.references}
            )
        )

    @property
    def problem(self) -> str:
        """Why the newest delivery or the watch is unusable; empty if it is usable."""
        return super().problem or self.unreadable

    def summaries(self) -> Summaries:
        """As of now."""
        self.wait()
        return self._current

    def start(self) -> None:
        """Start the watch."""
        self.reflector.start()

    def stop(self) -> None:
        """Stop all watches."""
        self.reflector.stop()
        self.secrets.stop()
        self._session.close()

    def changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Process a change."""
        try:
            summaries = NONE if new is None else from_configmap(new)
        except ManifestError as error:
            self._refuse(str(error))
        else:
            self._accept(summaries)


class KubeSecrets:
    """Secrets and ConfigMaps of the agent's namespace, each watched from first use until no scorer references it.

    The class also issues tokens of the account without rights that servers get.
    """

    def __init__(self, session: Session, namespace: str, release: Release) -> None:
        self._session = session
        self._namespace = namespace
        self._release = release
        self._watched: dict[Reference, _Watched] = {}
        # Guards _watched.
        self._lock = threading.Lock()

    @property
    def watched(self) -> frozenset[str]:
        """Names of the watched Secrets and ConfigMaps."""
        with self._lock:
            return frozenset(reference.name for reference in self._watched)

    def secret(self, name: str, key: str, use: Use) -> bytes:
        """See the protocol."""
        label = secret_label(name, key)
        reference = Reference(CaKind.Secret, name)
        watched = self._watch(reference)
        secret = watched.read()
        if secret is not None:
            self._check(name, key, use, secret)
        return self._value(reference, watched, secret, key, label)

    def certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        """See the protocol."""
        label = secret_label(name, key, kind)
        reference = Reference(kind, name)
        watched = self._watch(reference)
        return only_certificates(self._value(reference, watched, watched.read(), key, label), label)

    def account_token(self, audience: str, seconds: int, until: float) -> Token:
        """See the protocol."""
        api_server_audiences = API_SERVER_AUDIENCES | audiences_of(self._session.bearer_token())
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
            remaining_seconds = max(until - time.monotonic(), 0.001)
            # To connect, and to read: at least one stage waits for it.
            timeout = min(3.0, remaining_seconds), min(5.0, remaining_seconds)
            answer = self._session.request("POST", path, body=body, timeout=timeout)
            # The server decides the lifetime. The expiry time is not used: the agent's clock may differ.
            return Token(answer["status"]["token"], float(answer["spec"]["expirationSeconds"]))
        except BackendError as error:
            raise SecretError(
                f"no token of ServiceAccount {TOKEN_ACCOUNT} for {audience!r}: {error}; the agent's Role needs create "
                f"of serviceaccounts/token with resourceNames [{TOKEN_ACCOUNT}]",
                "auth_failed",
            ) from None
        except (LookupError, TypeError, ValueError):
            raise SecretError(f"no token of ServiceAccount {TOKEN_ACCOUNT}: a strange answer", "auth_failed") from None

    def keep(self, references: Collection[Reference]) -> None:
        """Forget all but these: unused Secrets must not stay in memory."""
        with self._lock:
            unwatched = [self._watched.pop(reference) for reference in self._watched.keys() - set(references)]
        for watched in unwatched:
            watched.reflector.stop()

    def stop(self) -> None:
        """Stop all watches."""
        with self._lock:
            watched, self._watched = list(self._watched.values()), {}
        for watch in watched:
            watch.reflector.stop()

    def _value(self, reference: Reference, watched: _Watched, obj: Object | None, key: str, label: str) -> bytes:
        try:
            return _value(obj, key)
        except KeyError:
            why = watched.unreadable
            if why and not watched.reflector.synced.is_set():
                # Never seen: the next cycle retries at once, so that a right granted meanwhile takes effect.
                self._drop(reference, watched)
            raise SecretError(f"{label} is missing on the managed cluster{self._hint(reference, why)}") from None

    def _check(self, name: str, key: str, use: Use, secret: Object) -> None:
        """Raise SecretError unless this use is allowed."""
        metadata = secret["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        kind = secret.get("type")
        if labels.get(MANAGED_BY_LABEL) == MANAGED_BY or (use.is_sent and kind in _NEVER_SENT):
            raise SecretError(
                f"{secret_label(name, key)} is never sent anywhere: its label {MANAGED_BY_LABEL} says that it is the "
                f"framework's own, or its type is one of {', '.join(sorted(_NEVER_SENT))}",
                "secret_refused",
            )
        servers = f"{labels.get(USABLE_FOR, '')} {annotations.get(USABLE_FOR, '')}"
        how = (
            f"its label or annotation {USABLE_FOR} in namespace {self._namespace} of the managed cluster, or on the "
            "hub to the chart's spokeSetting.agent.tokenSecrets"
        )
        self._release.check(name, key, use, servers, how, is_bindable=kind != _ACCOUNT)

    def _watch(self, reference: Reference) -> _Watched:
        with self._lock:
            watched = self._watched.get(reference)
            if watched is None:
                resource = _RESOURCES[reference.kind]
                watched = _Watched(self._session, resource, self._namespace, reference.name)
                self._watched[reference] = watched
                watched.reflector.start()
            return watched

    def _drop(self, reference: Reference, watched: _Watched) -> None:
        with self._lock:
            if self._watched.get(reference) is watched:
                del self._watched[reference]
        watched.reflector.stop()

    def _hint(self, reference: Reference, why: str | None) -> str:
        if not why:
            return f"; create it in namespace {self._namespace}"
        return hint(_RESOURCES[reference.kind], self._namespace, reference.name, why)


def audiences_of(token: str) -> frozenset[str]:
    """Return issuer and audiences of a ServiceAccount's token: those of its API server. Empty for any other token."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        audiences = claims.get("aud") or []
        audience_candidates = [claims.get("iss"), *([audiences] if isinstance(audiences, str) else audiences)]
    except (LookupError, ValueError, TypeError, AttributeError):
        return frozenset()
    return frozenset(name for name in audience_candidates if isinstance(name, str))


def hint(resource: Resource, namespace: str, name: str, why: str) -> str:
    """Text to add to "is missing" if a watch gives a reason (`why`)."""
    lacks = f" for this agent: its Role in namespace {namespace} has no rule for get, list and watch of {resource} with"
    return f"{lacks} resourceNames [{name}] ({why})" if _FORBIDDEN in why else f" or cannot be read ({why})"


def _value(obj: Object | None, key: str) -> bytes:
    """Return the value of a key of a Secret or ConfigMap. Raises KeyError if either is missing."""
    if obj is None:
        raise KeyError(key)
    if obj.get("kind") == CaKind.ConfigMap:
        return str((obj.get("data") or {})[key]).encode()
    try:
        return base64.b64decode((obj.get("data") or {})[key], validate=True)
    except binascii.Error:
        raise KeyError(key) from None
