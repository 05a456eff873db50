"""DynamicScorers of a hub on Kubernetes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

import dsf.log
from dsf.api.scorer import DynamicScorer
from dsf.errors import BackendError
from dsf.kube.resources import DYNAMIC_SCORERS
from dsf.kube.session import Session
from dsf.web.objects import parsed

log = dsf.log.get(__name__)

#: Seconds for which an object is cached.
_FRESH: Final = 3.0


class ScorerCache:
    """DynamicScorers of the API server, cached for some seconds; none without the right to read them."""

    def __init__(self, session: Session, namespaces: Iterable[str]) -> None:
        self._session = session
        self._namespaces = tuple(dict.fromkeys(namespaces))
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, DynamicScorer | None]] = {}

    def scorer(self, name: str, namespace: str = "") -> DynamicScorer | None:
        """See the protocol."""
        key = namespace, name
        with self._lock:
            until, scorer = self._known.get(key, (0.0, None))
        if time.monotonic() < until:
            return scorer
        scorer = self._read(name, [namespace] if namespace else self._namespaces)
        with self._lock:
            if len(self._known) > 1000:
                self._known.clear()
            self._known[key] = (time.monotonic() + _FRESH, scorer)
        return scorer

    def _read(self, name: str, namespaces: Iterable[str]) -> DynamicScorer | None:
        for namespace in namespaces:
            try:
                return parsed(self._session.request("GET", DYNAMIC_SCORERS.path(namespace, name)))
            except BackendError as error:
                log.debug("a DynamicScorer cannot be read", scorer=name, namespace=namespace, error=str(error))
        return None
