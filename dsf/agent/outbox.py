"""Signs results and puts them into the cluster's mailbox on the hub.

The mailbox has a few slots of one result each, emptied by the hub. An agent may write nothing else. A scorer that has
its share of the slots, or that finds all slots taken, replaces its waiting result by the newer one: each scorer has its
turn. The replacement happens at the scorer's second try (or its last), because a healthy hub empties a slot within that
time: an agent that stood still has several results of a scorer at once. Without a result to replace the agent keeps the
new one. The scorers of one namespace never fill all slots (`dsf.process.shares`): those of the others reach a hub that
is behind, too.

The signing key is a file that is read at each use, so that rotation needs no restart.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import redis

from dsf import keys
from dsf.agent.config import read_limited
from dsf.errors import CycleError, SettingsError
from dsf.messages import Result, SigningKey, sign
from dsf.process.shares import has_share
from dsf.settings import Settings
from dsf.store.pairs import SUCCESSES

#: Seconds until the next try while the mailbox has no room, longer than a hub that keeps up leaves a result there; and
#: while Redis is away.
_AGAIN: Final = 0.25
_AWAY: Final = 1.0


class KeyRing:
    """The agent's current signing key."""

    def __init__(self, settings: Settings) -> None:
        self._file = settings.signing_key_file

    def key(self) -> SigningKey:
        """Return the key to sign with. Raises SettingsError naming the variable."""
        if self._file is None:
            raise SettingsError(
                "DSF_SIGNING_KEY_FILE: not set; it is the file with the agent's key `<id>:<hex>` that the hub delivers"
            )
        try:
            return SigningKey.parse(read_limited(self._file, 64 * 1024).decode())
        except OSError as error:
            raise SettingsError(f"DSF_SIGNING_KEY_FILE: cannot be read: {error.strerror}") from None
        except ValueError:
            raise SettingsError("DSF_SIGNING_KEY_FILE: not a signing key, expected `<id>:<hex>`") from None


class Mail(NamedTuple):
    """Content of a slot, for its agent."""

    scorer: str
    run: str
    #: Whether it has a score, not only a reason for having none.
    is_score: bool

    def is_newer(self, old: Mail) -> bool:
        """True if it is a later result of the same scorer."""
        return old.scorer == self.scorer and old.run < self.run


class Mailbox:
    """Writes results into the slots; only this process writes them. Thread-safe."""

    def __init__(self, client: redis.Redis, cluster: str, namespaces: Callable[[], Mapping[str, str]]) -> None:
        """`namespaces` returns the namespace of each scorer here, empty for the hub's own."""
        self._redis = client
        self._namespaces = namespaces
        self._slots = keys.mail_slots(cluster)
        self._flag = keys.mail_flag(cluster)
        self._lock = threading.Lock()
        # Scorer -> the slot that is tried first.
        self._homes: dict[str, int] = {}
        # The newest result of each slot, which the hub may have taken; scorers of the slots that a thread is writing.
        self._written: dict[int, Mail] = {}
        self._busy: dict[int, str] = {}

    def put(self, mail: Mail, text: bytes, *, replace: bool = True) -> bool:
        """True if the result is in a slot now, also in place of an older result if `replace` allows that.

        The call costs one round trip unless its slot is taken. Raises redis.RedisError.
        """
        with self._lock:
            home = self._homes.setdefault(mail.scorer, len(self._homes) % len(self._slots))
        if self._has_share(mail) and self._write(home, mail, text):
            return True
        occupied_slots = self._taken_slots()
        older = [slot for slot in self._older(mail) if slot in occupied_slots]
        scores = [slot for slot in older if self._written[slot].is_score]
        # A reason for having no score waits: it is not worth another one.
        if mail.is_score and len(scores) >= self._share(mail):
            if not replace:
                return False
            if self._replace(scores, mail, text):
                return True
        free = [slot for slot in range(len(self._slots)) if slot not in occupied_slots] if self._has_share(mail) else []
        return any(self._write(slot, mail, text) for slot in free) or (
            mail.is_score and replace and self._replace(older, mail, text)
        )

    def _replace(self, slots: list[int], mail: Mail, text: bytes) -> bool:
        return any(self._write(slot, mail, text, replace=True) for slot in slots)

    def _has_share(self, mail: Mail) -> bool:
        """False if the scorers of the result's namespace use as many slots as they may, as far as is known here."""
        namespaces = self._namespaces()
        with self._lock:
            scorers = {slot: old.scorer for slot, old in self._written.items()} | self._busy
        mails_by_namespace = Counter(namespaces.get(scorer, "") for scorer in scorers.values())
        namespace = namespaces.get(mail.scorer, "")
        # A result that is known may be gone, and its slot free.
        is_alone = not set(namespaces.values()) - {namespace}
        return is_alone or has_share(namespace, mails_by_namespace, len(self._slots), namespaces.values())

    def _taken_slots(self) -> set[int]:
        """Return the slots with results, and forget the results that the hub has taken."""
        with self._lock:
            before = dict(self._written)
        with self._redis.pipeline(transaction=False) as pipe:
            for key in self._slots:
                pipe.exists(key)
            occupied_slots = {slot for slot, is_taken in enumerate(pipe.execute()) if is_taken}
        with self._lock:
            for slot, mail in before.items():
                if slot not in occupied_slots and self._written.get(slot) is mail:
                    del self._written[slot]
        return occupied_slots

    def _older(self, mail: Mail) -> list[int]:
        """Slots with older results of the same scorer, the oldest first; the hub may have taken them."""
        with self._lock:
            older = [(old.run, slot) for slot, old in self._written.items() if mail.is_newer(old)]
        return [slot for _, slot in sorted(older)]

    def _share(self, mail: Mail) -> int:
        """Slots for each of the scorers that use them."""
        with self._lock:
            scorers = {old.scorer for old in self._written.values()} | {mail.scorer}
        return max(1, len(self._slots) // len(scorers))

    def _write(self, slot: int, mail: Mail, text: bytes, *, replace: bool = False) -> bool:
        """True if the result is in this slot now. False if the slot is taken, or if another thread is writing it."""
        with self._lock:
            # The hub may have emptied it since, and another thread filled it.
            if slot in self._busy:
                return False
            if replace and ((old := self._written.get(slot)) is None or not mail.is_newer(old)):
                return False
            self._busy[slot] = mail.scorer
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._slots[slot], text, nx=not replace)
                # After the result: the hub clears the flag before it has read everything.
                pipe.set(self._flag, slot)
                is_in = bool(pipe.execute()[0])
            if is_in:
                self._written[slot] = mail
            return is_in
        finally:
            del self._busy[slot]


class Outbox:
    """Signs results and puts them into the mailbox. Thread-safe."""

    def __init__(
        self,
        client: redis.Redis,
        keyring: KeyRing,
        cluster: str,
        max_bytes: int,
        *,
        namespaces: Callable[[], Mapping[str, str]],
        ending: threading.Event | None = None,
    ) -> None:
        """`namespaces` returns the namespace of each scorer here, empty for the hub's own. `ending` is set at
        shutdown: what cannot be sent then is given up."""
        self._mailbox = Mailbox(client, cluster, namespaces)
        self._keyring = keyring
        self._max_bytes = max_bytes
        self._ending = ending or threading.Event()

    def send(self, result: Result, deadline: float) -> None:
        """Send with retries until `deadline` (time.monotonic()) or the agent's shutdown.

        Raises CycleError of stage publish with reason no_signing_key, too_large, connection_failed or results_behind.
        """
        text = self._signed(result)
        mail = Mail(result.scorer, result.run, result.outcome in SUCCESSES)
        replace = False
        while True:
            is_last = self._ending.is_set() or time.monotonic() + _AGAIN >= deadline
            try:
                if self._mailbox.put(mail, text, replace=replace or is_last):
                    return
            except redis.RedisError as error:
                # While Redis is unreachable; the client itself retries briefly.
                if is_last or time.monotonic() + _AWAY >= deadline or self._ending.wait(_AWAY):
                    raise CycleError(
                        "publish", "connection_failed", "the result cannot be sent, Redis is away"
                    ) from error
                continue
            if is_last:
                raise CycleError(
                    "publish",
                    "results_behind",
                    "the hub has not taken the results of this cluster and namespace for so long; check its results "
                    "workers",
                )
            replace = True
            self._ending.wait(_AGAIN)

    def _signed(self, result: Result) -> bytes:
        """Return the frame. Raises CycleError without a key, and for a result that the hub would refuse unread."""
        try:
            text = sign(result, self._keyring.key())
        except SettingsError as error:
            raise CycleError("publish", "no_signing_key", str(error)) from None
        if len(text) > self._max_bytes:
            raise CycleError(
                "publish",
                "too_large",
                f"the result has {len(text)} bytes, more than the {self._max_bytes} that the hub takes; "
                "return fewer results or shorter labels",
            )
        return text
