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

    def is_good(self, rejected_token: str | None) -> bool:
        return bool(self.value) and self.value != rejected_token and time.monotonic() < self.ends_at

    def is_fresh(self, rejected_token: str | None) -> bool:
        return self.is_good(rejected_token) and time.monotonic() < self.renewed_at


class TokenCache:
    """Tokens of token servers, which all pairs share. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _CachedToken] = {}
        # Guards _kept; never held during a request.
        self._lock = threading.Lock()

    def token(
        self, key: Hashable, get: Callable[[float], Token], deadline: float, rejected_token: str | None = None
    ) -> str:
        """The token of `key`, which covers all that the token depends on; `get` requests one until its deadline.

        `rejected_token` is one that a server rejected. Raises what `get` raises, and HttpError (timeout) when another
        thread waits for the token's server until the deadline.
        """
        with self._lock:
            cached_token = self._kept.pop(key, None) or _CachedToken()
            self._kept[key] = cached_token
            self._tidy()
        if cached_token.is_fresh(rejected_token):
            return cached_token.value
        # While the old token is valid, no other thread waits for the renewal.
        if not cached_token.lock.acquire(
            timeout=0 if cached_token.is_good(rejected_token) else max(0.0, deadline - time.monotonic())
        ):
            if cached_token.is_good(rejected_token):
                return cached_token.value
            raise HttpError("timeout", "another cycle waits for the server of the token, too", retryable=True)
        try:
            return self._renewed(cached_token, get, deadline, rejected_token)
        finally:
            cached_token.lock.release()

    def _renewed(
        self, cached_token: _CachedToken, get: Callable[[float], Token], deadline: float, rejected_token: str | None
    ) -> str:
        if cached_token.is_fresh(rejected_token):
            return cached_token.value
        until, now = deadline, time.monotonic()
        if cached_token.is_good(rejected_token):
            # Half of what is left at most: a server that hangs must not end the cycle.
            until = now + min(_TRY, (deadline - now) / 2)
        try:
            value, seconds = get(until)
        except HttpError:
            if not cached_token.is_good(rejected_token):
                raise
            # The old token is valid until the next attempt.
            cached_token.renewed_at = time.monotonic() + 10.0
            return cached_token.value
        now = time.monotonic()
        cached_token.value, cached_token.ends_at = value, now + seconds
        cached_token.renewed_at = now + max(seconds * _SHARE, seconds - 60.0)
        return value

    def _tidy(self) -> None:
        # Tokens; expired ones go first.
        if len(self._kept) <= 256:
            return
        now = time.monotonic()
        # The newest is left out: it has no token yet.
        older_items = list(self._kept.items())[:-1]
        expired_keys = [
            key for key, cached_token in older_items if cached_token.ends_at < now and not cached_token.lock.locked()
        ]
        for key in expired_keys or list(self._kept)[:1]:
            del self._kept[key]
