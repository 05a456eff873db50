"""What the agent reads from its own cluster's API server: its ConfigMap, its key, the tokens that scorers name.

Each object is watched by its name, so that a Role with `resourceNames` is enough, and a change is seen at once: a
mounted volume would be up to a minute late. Nothing of the hub's API server is read.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable, Collection
from types import MappingProxyType
from typing import Final

import dsf.log
from dsf.agent.config import Summaries
from dsf.agent.kubecluster import KubeCluster
from dsf.agent.secrets import SecretError, parse_token, secret_label
from dsf.api.summary import ScorerSummary, parse_summaries
from dsf.api.types import CONFIGMAP_NAME, CREDENTIALS_KEY, CREDENTIALS_NAME, SUMMARIES_KEY, SourceType
from dsf.errors import ManifestError, SettingsError
from dsf.kube.reflector import Reflector
from dsf.kube.resources import CONFIG_MAPS, SECRETS, Resource
from dsf.kube.session import Session
from dsf.kube.store import Key, Object
from dsf.messages import SigningKey
from dsf.settings import Settings

log = dsf.log.get(__name__)

_NONE: Final[Summaries] = MappingProxyType({})
#: Seconds to wait for the first look at an object; then it counts as missing until it is seen.
_FIRST_LOOK: Final = 5.0
#: Seconds to wait for the agent's own Secret at the start.
_KEY_WAIT: Final = 60.0
#: Seconds between two looks while waiting.
_POLL: Final = 0.05
#: How a refusal looks in what a watch says of itself.
_FORBIDDEN: Final = ": 403: "


class _Watched:
    """One object, watched by its name."""

    def __init__(self, session: Session, resource: Resource, namespace: str, name: str) -> None:
        self._key = (namespace, name)
        self.reflector = Reflector(
            session,
            resource,
            self.changed,
            namespace=namespace,
            # Makes list and watch requests for this one name, which `resourceNames` of a Role can allow.
            selectors={"fieldSelector": f"metadata.name={name}"},
        )

    def changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Called by the watch; nothing to do where the object is read when it is used."""

    def wait(self) -> None:
        """Wait for the first look at the object, or for what is wrong with it."""
        deadline = time.monotonic() + _FIRST_LOOK
        while not self.reflector.synced.wait(_POLL) and not self.reflector.error and time.monotonic() < deadline:
            pass

    def read(self) -> Object | None:
        """The object as of now, or None. While the API server is away: as it was seen last."""
        self.wait()
        return self.reflector.store.get(self._key)


class KubeObjects:
    """All that the agent reads from its own cluster, over one session.

    Constructing it waits for the agent's key: a pod may be there before OCM delivers its Secret. Raises SettingsError
    when that takes too long, so that the pod says why and starts again.
    """

    def __init__(self, settings: Settings, *, key_wait: float = _KEY_WAIT) -> None:
        """`key_wait` in seconds."""
        self._session = Session.load(settings.kubeconfig)
        namespace = settings.agent_namespace
        self.secrets = KubeSecrets(self._session, namespace)
        self.cluster = KubeCluster(self._session)
        self.config = KubeConfig(self._session, namespace, on_change=self._on_change, on_stop=self._stop)
        try:
            self.secrets.wait_for_key(key_wait)
        except BaseException:
            self._stop()
            raise

    def _on_change(self, summaries: Summaries) -> None:
        self.secrets.keep(
            {
                name
                for summary in summaries.values()
                for name in (summary.source_endpoint_auth_name, summary.scoring_endpoint_auth_name)
            }
        )
        if not any(summary.source_type == SourceType.Kubernetes for summary in summaries.values()):
            self.cluster.stop()

    def _stop(self) -> None:
        self.cluster.stop()
        self.secrets.stop()
        self._session.close()


class KubeConfig(_Watched):
    """Summaries in the ConfigMap that OCM delivers. No ConfigMap means no scorers.

    One that cannot be used leaves the last good one in force, and is reported once. `on_change` gets the summaries
    each time they change.
    """

    def __init__(
        self,
        session: Session,
        namespace: str,
        *,
        on_change: Callable[[Summaries], None] = lambda _: None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(session, CONFIG_MAPS, namespace, CONFIGMAP_NAME)
        self._on_change = on_change
        self._on_stop = on_stop
        self._current: Summaries = _NONE
        self._problem = ""
        self._loaded_at = 0.0

    @property
    def problem(self) -> str:
        """Why the newest delivery, or the watch, cannot be used; empty while it can."""
        return self._problem or self.reflector.error or ""

    @property
    def loaded_at(self) -> float:
        """Unix time at which the summaries in force were read; 0 before the first."""
        return self._loaded_at

    def get(self, scorer: str) -> ScorerSummary | None:
        """The scorer's summary as of now."""
        return self.summaries().get(scorer)

    def summaries(self) -> Summaries:
        """All summaries as of now, by the scorer's name."""
        self.wait()
        return self._current

    def start(self) -> None:
        """Begin to watch."""
        self.reflector.start()

    def stop(self) -> None:
        """End the watch."""
        self.reflector.stop()
        self._on_stop()

    def changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Take in what the watch saw."""
        found = _NONE
        if new is not None:
            try:
                found = _summaries(new)
            except ManifestError as error:
                if str(error) != self._problem:
                    log.error("configuration cannot be used, the last good one stays", problem=str(error))
                self._problem = str(error)
                return
        self._problem = ""
        self._loaded_at = time.time()
        before, self._current = self._current, found
        if found != before:
            log.info("configuration loaded", scorers=sorted(found))
            self._on_change(found)


def _summaries(configmap: Object) -> Summaries:
    text = (configmap.get("data") or {}).get(SUMMARIES_KEY)
    if not isinstance(text, str):
        raise ManifestError(f"ConfigMap {CONFIGMAP_NAME} has no key {SUMMARIES_KEY}")
    return MappingProxyType({summary.name: summary for summary in parse_summaries(text)})


class KubeSecrets:
    """Secrets of the agent's namespace, each watched from its first use on, as long as a scorer names it."""

    def __init__(self, session: Session, namespace: str) -> None:
        self._session = session
        self._namespace = namespace
        self._watched: dict[str, _Watched] = {}
        # Guards _watched.
        self._lock = threading.Lock()

    @property
    def watched(self) -> frozenset[str]:
        """Names of the Secrets that are held."""
        with self._lock:
            return frozenset(self._watched)

    def token(self, name: str, key: str) -> str | None:
        """The token as of now; None when the scorer names no Secret. Raises SecretError."""
        if not name and not key:
            return None
        label = secret_label(name, key)
        watched = self._watch(name)
        try:
            data = _value(watched.read(), key)
        except KeyError:
            why = watched.reflector.error
            if why and not watched.reflector.synced.is_set():
                # Never seen: the next cycle looks at once, so that a right that is granted now works by then.
                self._drop(name, watched)
            raise SecretError(f"{label} is missing on the managed cluster{self._hint(name, why)}") from None
        try:
            return parse_token(data)
        except ValueError:
            raise SecretError(f"{label} holds no token: expected one line of printable ASCII") from None

    def key(self) -> SigningKey:
        """The agent's own signing key, as of now. Raises SettingsError when it was not delivered."""
        watched = self._watch(CREDENTIALS_NAME)
        try:
            return SigningKey.parse(_value(watched.read(), CREDENTIALS_KEY).decode())
        except KeyError:
            why = watched.reflector.error
            hint = self._hint(CREDENTIALS_NAME, why) if why else "; the hub delivers it by a ManifestWork"
            raise SettingsError(
                f"key {CREDENTIALS_KEY!r} of Secret {CREDENTIALS_NAME!r} is missing in namespace "
                f"{self._namespace}{hint}"
            ) from None
        except UnicodeDecodeError:
            raise SettingsError(f"Secret {CREDENTIALS_NAME}: {CREDENTIALS_KEY} is not `<id>:<hex>`") from None

    def wait_for_key(self, seconds: float) -> None:
        """Wait until the agent's key is there. Raises SettingsError when it is not there after `seconds`."""
        deadline = time.monotonic() + seconds
        said = ""
        while True:
            try:
                self.key()
            except SettingsError as error:
                if time.monotonic() > deadline:
                    raise
                if str(error) != said:
                    said = str(error)
                    log.warning("waiting for the agent's key", why=said)
                time.sleep(_POLL)
            else:
                return

    def keep(self, names: Collection[str]) -> None:
        """Forget all Secrets but these and the agent's own: what nobody uses must not stay in memory."""
        with self._lock:
            gone = [self._watched.pop(name) for name in self._watched.keys() - {*names, CREDENTIALS_NAME}]
        for watched in gone:
            watched.reflector.stop()

    def stop(self) -> None:
        """End all watches."""
        with self._lock:
            watched, self._watched = list(self._watched.values()), {}
        for one in watched:
            one.reflector.stop()

    def _watch(self, name: str) -> _Watched:
        with self._lock:
            watched = self._watched.get(name)
            if watched is None:
                watched = self._watched[name] = _Watched(self._session, SECRETS, self._namespace, name)
                watched.reflector.start()
            return watched

    def _drop(self, name: str, watched: _Watched) -> None:
        with self._lock:
            if self._watched.get(name) is watched:
                del self._watched[name]
        watched.reflector.stop()

    def _hint(self, name: str, why: str | None) -> str:
        return hint(SECRETS, self._namespace, name, why) if why else f"; create it in namespace {self._namespace}"


def hint(resource: Resource, namespace: str, name: str, why: str) -> str:
    """What to add to "is missing" when a watch says `why` it has not seen the object."""
    lacks = f" for this agent: its Role in namespace {namespace} has no rule for get, list and watch of {resource} with"
    return f"{lacks} resourceNames [{name}] ({why})" if _FORBIDDEN in why else f" or cannot be read ({why})"


def _value(secret: Object | None, key: str) -> bytes:
    """What the key of a Secret holds. Raises KeyError when Secret or key are not there."""
    if secret is None:
        raise KeyError(key)
    try:
        return base64.b64decode((secret.get("data") or {})[key], validate=True)
    except binascii.Error:
        raise KeyError(key) from None
