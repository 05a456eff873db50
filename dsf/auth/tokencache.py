"""Cache of tokens: one for all pairs that use it, renewed by one of them before it expires."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from dsf.auth.secrets import Token
from dsf.errors import HttpError

#: A token is renewed after this share of its lifetime, or a minute before its end if that is later.
_SHARE: Final = 0.8
#: Seconds per attempt: the cycle must query its source, too.
_TRY: Final = 5.0


@dataclass(eq=False)
class _CachedToken:
    """A token; the thread that renews it holds the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    value: str = ""
    #: On the clock of time.monotonic().
    renewed_at: float = 0.0
    ends_at: float = 0.0

    def is_good(self, refused: str | None) -> bool:
        return bool(self.value) and self.value != refused and time.monotonic() < self.ends_at

    def is_fresh(self, refused: str | None) -> bool:
        return self.is_good(refused) and time.monotonic() < self.renewed_at


class TokenCache:
    """Tokens of token servers, which all pairs share. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _CachedToken] = {}
        # Guards _kept; never held while a server is asked.
        self._lock = threading.Lock()

    def token(self, key: Hashable, get: Callable[[float], Token], deadline: float, refused: str | None = None) -> str:
        """The token of `key`, which covers all that the token depends on; `get` requests one until its deadline.

        `refused` is one that a server rejected. Raises what `get` raises, and HttpError (timeout) when another
        thread waits for the token's server until the deadline.
        """
        with self._lock:
            kept = self._kept.pop(key, None) or _CachedToken()
            self._kept[key] = kept
            self._tidy()
        if kept.is_fresh(refused):
            return kept.value
        # While the old token is valid, no other thread waits for the renewal.
        if not kept.lock.acquire(timeout=0 if kept.is_good(refused) else max(0.0, deadline - time.monotonic())):
            if kept.is_good(refused):
                return kept.value
            raise HttpError("timeout", "another cycle waits for the server of the token, too", retryable=True)
        try:
            return self._renewed(kept, get, deadline, refused)
        finally:
            kept.lock.release()

    def _renewed(self, kept: _CachedToken, get: Callable[[float], Token], deadline: float, refused: str | None) -> str:
        if kept.is_fresh(refused):
            return kept.value
        until, now = deadline, time.monotonic()
        if kept.is_good(refused):
            # Half of what is left at most: a server that hangs must not end the cycle.
            until = now + min(_TRY, (deadline - now) / 2)
        try:
            value, seconds = get(until)
        except HttpError:
            if not kept.is_good(refused):
                raise
            # The old token is valid until the next attempt.
            kept.renewed_at = time.monotonic() + 10.0
            return kept.value
        now = time.monotonic()
        kept.value, kept.ends_at = value, now + seconds
        kept.renewed_at = now + max(seconds * _SHARE, seconds - 60.0)
        return value

    def _tidy(self) -> None:
        # Tokens; expired ones go first.
        if len(self._kept) <= 256:
            return
        now = time.monotonic()
        # The newest is left out: it has no token yet.
        others = list(self._kept.items())[:-1]
        ended = [key for key, kept in others if kept.ends_at < now and not kept.lock.locked()]
        for key in ended or list(self._kept)[:1]:
            del self._kept[key]
