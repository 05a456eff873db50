"""Checks the token that clients send (DSF_CLIENT_TOKEN_FILE), and limits the wrong tokens of each client."""

from __future__ import annotations

import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dsf.errors import AccessError, SettingsError
from dsf.process.clientlimiter import find_client

#: Minimum number of characters of a token. An attacker could guess a shorter one from many addresses, each of which has
#: its own limit.
MIN_TOKEN_CHARACTERS: Final = 16
#: Maximum number of wrong tokens that a client may send in a burst.
MAX_BURST: Final = 10
#: Seconds after which a client may send one more wrong token.
SECONDS_PER_TOKEN: Final = 6.0
# Maximum number of recorded clients. The client whose last wrong token is the oldest is evicted first.
_MAX_CLIENTS: Final = 10_000


class GuessLimit:
    """Limits the wrong tokens of each client, which is an IPv4 address or an IPv6 network. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # Client -> monotonic time at which it may send a full burst again. Each wrong token adds SECONDS_PER_TOKEN.
        self._full_burst_at: OrderedDict[str, float] = OrderedDict()

    def require_attempt(self, address: str) -> None:
        """Raise AccessError (429) if the client at this address has sent too many wrong tokens to try another one."""
        with self._lock:
            full_burst_at = self._full_burst_at.get(find_client(address), 0.0)
        wait_seconds = full_burst_at - self._monotonic() - (MAX_BURST - 1) * SECONDS_PER_TOKEN
        if wait_seconds > 0:
            raise AccessError(
                f"too many wrong tokens came from your address; try again in {int(wait_seconds) + 1} s", 429
            )

    def record_wrong_token(self, address: str) -> None:
        """Count a wrong token of the client at this address."""
        client = find_client(address)
        with self._lock:
            now = self._monotonic()
            self._full_burst_at[client] = max(now, self._full_burst_at.pop(client, now)) + SECONDS_PER_TOKEN
            if len(self._full_burst_at) > _MAX_CLIENTS:
                self._full_burst_at.popitem(last=False)


class TokenFile:
    """Compares tokens with a file. Reads the file at each check, so that the token can be rotated."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._limit = GuessLimit()

    def check(self, token: str, client: str) -> None:
        """Raise AccessError for a wrong token (401), and for a client that has sent too many wrong tokens (429).

        `client` is the client's IP address.

        Raises SettingsError if the file is unreadable or its token is too short.
        """
        self._limit.require_attempt(client)
        if not hmac.compare_digest(token.encode(), self.read().encode()):
            self._limit.record_wrong_token(client)
            raise AccessError("this is not the token of DSF_CLIENT_TOKEN_FILE", 401)

    def read(self) -> str:
        """Return the token. Raises SettingsError if the file is unreadable or its token is too short."""
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingsError(f"DSF_CLIENT_TOKEN_FILE: cannot read {self._file}: {reason}") from None
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise SettingsError(
                f"DSF_CLIENT_TOKEN_FILE: {self._file} has a token of {len(token)} characters, which can be guessed; it "
                f"must have at least {MIN_TOKEN_CHARACTERS}: openssl rand -hex 32"
            )
        return token
