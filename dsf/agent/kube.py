"""What the agent reads from its own cluster's API server: its ConfigMap, its key, the tokens that scorers name.

Each object is watched by its name, so that a Role with `resourceNames` is enough, and a change is seen at once: a
mounted volume would be up to a minute late. Nothing of the hub's API server is read.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import dsf.log
from dsf.agent.config import Summaries
from dsf.agent.secrets import SecretError, parse_token, secret_label
from dsf.api.summary import ScorerSummary, parse_summaries
from dsf.api.types import CONFIGMAP_NAME, CREDENTIALS_KEY, CREDENTIALS_NAME, SUMMARIES_KEY
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


class _Watched:
    """One object, watched by its name."""

    def __init__(self, session: Session, resource: Resource, namespace: str, name: str) -> None:
        self._key = (namespace, name)
        self.reflector = Reflector(
            session,
            resource,
            self.changed,
            namespace=namespace,
            selectors={"fieldSelector": f"metadata.name={name}"},
        )

    def changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Called by the watch; nothing to do where the object is read when it is used."""

    def read(self) -> Object | None:
        """The object as of now, or None."""
        self.reflector.synced.wait(_FIRST_LOOK)
        return self.reflector.store.get(self._key)


class KubeObjects:
    """All that the agent reads from its own cluster, over one session.

    Constructing it waits for the agent's key: a pod may be there before OCM delivers its Secret. Raises SettingsError
    when that takes too long, so that the pod says why and starts again.
    """

    def __init__(self, settings: Settings) -> None:
        self._session = Session.load(settings.kubeconfig)
        namespace = settings.agent_namespace
        self.secrets = KubeSecrets(self._session, namespace)
        self.config = KubeConfig(self._session, namespace, on_stop=self._stop)
        if not self.secrets.wait_for_key(_KEY_WAIT):
            try:
                self.secrets.key()
            except SettingsError:
                self._stop()
                raise

    def _stop(self) -> None:
        self.secrets.stop()
        self._session.close()


class KubeConfig(_Watched):
    """Summaries in the ConfigMap that OCM delivers. No ConfigMap means no scorers.

    One that cannot be used leaves the last good one in force, and is reported once.
    """

    def __init__(self, session: Session, namespace: str, on_stop: Callable[[], None] = lambda: None) -> None:
        super().__init__(session, CONFIG_MAPS, namespace, CONFIGMAP_NAME)
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
        self.reflector.synced.wait(_FIRST_LOOK)
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
        if new is None:
            found = _NONE
        else:
            try:
                found = _summaries(new)
            except ManifestError as error:
                if str(error) != self._problem:
                    log.error("configuration cannot be used, the last good one stays", problem=str(error))
                self._problem = str(error)
                return
        self._problem = ""
        self._loaded_at = time.time()
        if found != self._current:
            log.info("configuration loaded", scorers=sorted(found))
        self._current = found


def _summaries(configmap: Object) -> Summaries:
    text = (configmap.get("data") or {}).get(SUMMARIES_KEY)
    if not isinstance(text, str):
        raise ManifestError(f"ConfigMap {CONFIGMAP_NAME} has no key {SUMMARIES_KEY}")
    return MappingProxyType({summary.name: summary for summary in parse_summaries(text)})


class KubeSecrets:
    """Secrets of the agent's namespace, each watched from its first use on."""

    def __init__(self, session: Session, namespace: str) -> None:
        self._session = session
        self._namespace = namespace
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()

    def token(self, name: str, key: str) -> str | None:
        """The token as of now; None when the scorer names no Secret. Raises SecretError."""
        if not name and not key:
            return None
        label = secret_label(name, key)
        try:
            data = self.data(name, key)
        except KeyError:
            why = self._watched[name].reflector.error
            hint = f" (the agent cannot read it: {why})" if why else "; create it in the agent's namespace"
            raise SecretError(f"{label} is missing on the managed cluster{hint}") from None
        try:
            return parse_token(data)
        except ValueError:
            raise SecretError(f"{label} holds no token: expected one line of printable ASCII") from None

    def key(self) -> SigningKey:
        """The agent's own signing key, as of now. Raises SettingsError when it was not delivered."""
        try:
            return SigningKey.parse(self.data(CREDENTIALS_NAME, CREDENTIALS_KEY).decode())
        except KeyError:
            raise SettingsError(
                f"Secret {CREDENTIALS_NAME} with the key {CREDENTIALS_KEY} is not in namespace {self._namespace}: "
                "the hub delivers it by a ManifestWork"
            ) from None
        except UnicodeDecodeError:
            raise SettingsError(f"Secret {CREDENTIALS_NAME}: {CREDENTIALS_KEY} is not `<id>:<hex>`") from None

    def wait_for_key(self, seconds: float) -> bool:
        """Wait until the agent's key is there; says whether it is."""
        deadline = time.monotonic() + seconds
        said = False
        while True:
            try:
                self.key()
            except SettingsError as error:
                if time.monotonic() > deadline:
                    return False
                if not said:
                    log.warning("waiting for the agent's key", why=str(error))
                    said = True
                time.sleep(0.2)
            else:
                return True

    def data(self, name: str, key: str) -> bytes:
        """What a key of a Secret holds as of now. Raises KeyError when Secret or key are not there."""
        with self._lock:
            watched = self._watched.get(name)
            if watched is None:
                watched = _Watched(self._session, SECRETS, self._namespace, name)
                watched.reflector.start()
                self._watched[name] = watched
        secret = watched.read()
        if secret is None:
            raise KeyError(name)
        try:
            return base64.b64decode((secret.get("data") or {})[key], validate=True)
        except binascii.Error:
            raise KeyError(key) from None

    def stop(self) -> None:
        """End all watches."""
        with self._lock:
            for watched in self._watched.values():
                watched.reflector.stop()
