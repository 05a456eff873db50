"""The token of DSF_CLIENT_TOKEN_FILE, which clients of a process send, and a limit of wrong ones for each client."""

from __future__ import annotations

import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dsf.errors import AccessError, SettingsError
from dsf.process.turns import client_of

#: Characters of a token: wrong ones are limited for each client, not for all clients together.
MIN_TOKEN: Final = 16
#: Wrong tokens of one client at once, and seconds until it may try one more.
AT_ONCE: Final = 10
SECONDS: Final = 6.0
# Clients with wrong tokens that are remembered. Beyond it the one that has been quiet longest is forgotten.
_MOST_CLIENTS: Final = 10_000


class GuessLimit:
    """The wrong tokens of each client. A client is an address, or a network of IPv6. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # Client -> when all of its wrong tokens are forgiven: each adds SECONDS.
        self._forgiven_at: OrderedDict[str, float] = OrderedDict()

    def require(self, address: str) -> None:
        """Raise AccessError (429) if no more tokens of this client may be compared now, right ones included."""
        with self._lock:
            excess = self._forgiven_at.get(client_of(address), 0.0) - self._monotonic() - (AT_ONCE - 1) * SECONDS
        if excess > 0:
            raise AccessError(f"too many wrong tokens came from your address; try again in {int(excess) + 1} s", 429)

    def add(self, address: str) -> None:
        """Count a wrong token."""
        client = client_of(address)
        with self._lock:
            now = self._monotonic()
            self._forgiven_at[client] = max(now, self._forgiven_at.pop(client, now)) + SECONDS
            if len(self._forgiven_at) > _MOST_CLIENTS:
                self._forgiven_at.popitem(last=False)


class TokenFile:
    """The token's file. It is read at every check, so that the token can be changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._guesses = GuessLimit()

    def check(self, token: str, client: str) -> None:
        """Raises AccessError for another token (401) and for a client that sent too many of them (429).

        Raises SettingsError if the file is unreadable or its token is too short.
        """
        self._guesses.require(client)
        if not hmac.compare_digest(token.encode(), self.read().encode()):
            self._guesses.add(client)
            raise AccessError("this is not the token of DSF_CLIENT_TOKEN_FILE", 401)

    def read(self) -> str:
        """The token. Raises SettingsError if the file is unreadable or its token is too short."""
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingsError(f"DSF_CLIENT_TOKEN_FILE: cannot read {self._file}: {reason}") from None
        if len(token) < MIN_TOKEN:
            raise SettingsError(
                f"DSF_CLIENT_TOKEN_FILE: {self._file} has a token of {len(token)} characters, which can be guessed; it "
                f"must have at least {MIN_TOKEN}: openssl rand -hex 32"
            )
        return token
