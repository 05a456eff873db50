"""Caches tokens for all pairs. One thread renews a token before it expires, while the others use the old token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from dsf.auth.secrets import Token
from dsf.errors import HttpError

#: A token is renewed after this share of its lifetime, or this long before it expires, whichever is later.
_RENEWAL_SHARE: Final = 0.8
_RENEWAL_MARGIN_SECONDS: Final = 60.0
#: Maximum seconds for the renewal of a valid token, because the cycle also needs time to query its source.
_MAX_RENEWAL_SECONDS: Final = 5.0
#: Seconds between two attempts to renew a token that is still valid.
_RETRY_SECONDS: Final = 10.0
#: Maximum number of cached tokens.
_MAX_TOKENS: Final = 256


@dataclass(eq=False)
class _CachedToken:
    """A token, and the lock that is held while a thread renews it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    value: str = ""
    #: Times of the next renewal and of the token's expiry, by time.monotonic().
    renew_at: float = 0.0
    expires_at: float = 0.0

    def is_valid(self, rejected_token: str | None) -> bool:
        return bool(self.value) and self.value != rejected_token and time.monotonic() < self.expires_at

    def is_fresh(self, rejected_token: str | None) -> bool:
        """True if the token is valid and its renewal is not due yet."""
        return self.is_valid(rejected_token) and time.monotonic() < self.renew_at


class TokenCache:
    """Cache of tokens by token servers, which all pairs share. Thread-safe."""

    def __init__(self) -> None:
        self._cached_tokens: dict[Hashable, _CachedToken] = {}
        # Guards _cached_tokens; never held during a request.
        self._lock = threading.Lock()

    def get_token(
        self, key: Hashable, request_token: Callable[[float], Token], deadline: float, rejected_token: str | None = None
    ) -> str:
        """Return the cached token for `key`, or request a new one.

        `request_token` gets a deadline (time.monotonic()) and returns a token. `key` contains all parameters of the
        token. `rejected_token` is a token that a server rejected. Raises the errors of `request_token`, and HttpError
        (timeout) if another thread waits for the token server until the deadline.
        """
        with self._lock:
            cached_token = self._cached_tokens.pop(key, None) or _CachedToken()
            self._cached_tokens[key] = cached_token
            self._evict()
        if cached_token.is_fresh(rejected_token):
            return cached_token.value
        # While the old token is valid, no other thread waits for the renewal.
        if not cached_token.lock.acquire(
            timeout=0 if cached_token.is_valid(rejected_token) else max(0.0, deadline - time.monotonic())
        ):
            if cached_token.is_valid(rejected_token):
                return cached_token.value
            raise HttpError("timeout", "another cycle waits for the server of the token, too", retryable=True)
        try:
            return self._renew(cached_token, request_token, deadline, rejected_token)
        finally:
            cached_token.lock.release()

    def _renew(
        self,
        cached_token: _CachedToken,
        request_token: Callable[[float], Token],
        deadline: float,
        rejected_token: str | None,
    ) -> str:
        """Request a token and cache it. The caller holds the lock of `cached_token`."""
        if cached_token.is_fresh(rejected_token):
            return cached_token.value
        renewal_deadline, now = deadline, time.monotonic()
        if cached_token.is_valid(rejected_token):
            # Use at most half of the remaining time, so that an unresponsive token server does not fail the cycle.
            renewal_deadline = now + min(_MAX_RENEWAL_SECONDS, (deadline - now) / 2)
        try:
            value, seconds = request_token(renewal_deadline)
        except HttpError:
            if not cached_token.is_valid(rejected_token):
                raise
            # Keep the old token, which is still valid, and retry later.
            cached_token.renew_at = time.monotonic() + _RETRY_SECONDS
            return cached_token.value
        now = time.monotonic()
        cached_token.value, cached_token.expires_at = value, now + seconds
        cached_token.renew_at = now + max(seconds * _RENEWAL_SHARE, seconds - _RENEWAL_MARGIN_SECONDS)
        return value

    def _evict(self) -> None:
        """If the cache is full, evict the expired tokens, or the least recently used token if none has expired."""
        if len(self._cached_tokens) <= _MAX_TOKENS:
            return
        now = time.monotonic()
        # Skip the newest entry, which has no token yet.
        older_items = list(self._cached_tokens.items())[:-1]
        expired_keys = [
            key for key, cached_token in older_items if cached_token.expires_at < now and not cached_token.lock.locked()
        ]
        for key in expired_keys or list(self._cached_tokens)[:1]:
            del self._cached_tokens[key]
