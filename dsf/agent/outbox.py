"""Signs results and puts them into the cluster's mailbox on the hub.

The mailbox has a few slots of one result each, which the hub empties. An agent may not write to any other key.

Scorers share the slots. A new score replaces the oldest waiting result of its scorer if the scorer uses its share of
the slots, or if all slots are occupied. The first try replaces nothing unless it is also the last try, because a
healthy hub empties a slot before the second try. Without an older result to replace, the agent retries until the
deadline.

The scorers of one namespace never fill all slots (`dsf.process.shares`), so that results of other namespaces reach a
slow hub, too.

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

#: Seconds until the next try if the mailbox has no room. A healthy hub empties a slot within that time.
_FULL_MAILBOX_RETRY_SECONDS: Final = 0.25
#: Seconds until the next try if Redis is not reachable.
_REDIS_RETRY_SECONDS: Final = 1.0
#: Maximum bytes of the file with the signing key.
_MAX_KEY_BYTES: Final = 64 * 1024


class SigningKeyFile:
    """Reads the agent's current signing key."""

    def __init__(self, settings: Settings) -> None:
        self._file = settings.signing_key_file

    def get_key(self) -> SigningKey:
        """Return the signing key. Raises SettingsError naming the variable if there is none or if it is not valid."""
        if self._file is None:
            raise SettingsError(
                "DSF_SIGNING_KEY_FILE: not set; it is the file with the agent's key `<id>:<hex>` that the hub delivers"
            )
        try:
            return SigningKey.parse(read_limited(self._file, _MAX_KEY_BYTES).decode())
        except OSError as error:
            raise SettingsError(f"DSF_SIGNING_KEY_FILE: cannot be read: {error.strerror}") from None
        except ValueError:
            raise SettingsError("DSF_SIGNING_KEY_FILE: not a signing key, expected `<id>:<hex>`") from None


class Mail(NamedTuple):
    """Identifies a result: its scorer, its run, and whether it has scores."""

    scorer: str
    run: str
    #: Whether the result has scores and not only the reason of a failure.
    has_scores: bool

    def is_newer(self, other: Mail) -> bool:
        """True if this result is a later one of the same scorer. Run ids sort by their scheduled time."""
        return other.scorer == self.scorer and other.run < self.run


class Mailbox:
    """Writes results into the slots, into which no other process writes. Thread-safe.

    The lock guards the records of the slots. It is not held during a call to Redis, so each method checks the records
    again before it writes a slot.
    """

    def __init__(self, client: redis.Redis, cluster: str, namespaces: Callable[[], Mapping[str, str]]) -> None:
        """`namespaces` returns the namespace of each scorer here, empty for the hub's own."""
        self._redis = client
        self._namespaces = namespaces
        self._slot_keys = keys.mail_slots(cluster)
        self._flag_key = keys.mail_flag(cluster)
        self._lock = threading.Lock()
        # Scorer -> the slot that it tries first.
        self._first_slot_by_scorer: dict[str, int] = {}
        # Slot -> the newest result written into it. The hub may have read and removed it.
        self._mail_by_slot: dict[int, Mail] = {}
        # Slot that a thread is writing -> its scorer.
        self._scorer_by_busy_slot: dict[int, str] = {}

    def put(self, mail: Mail, frame: bytes, *, replace: bool = True) -> bool:
        """Write the result into a slot. Return False if no slot is available.

        `replace` allows to replace an older result of the scorer. The call costs one round trip if the scorer's first
        slot is free. Raises redis.RedisError.
        """
        with self._lock:
            first_slot = self._first_slot_by_scorer.setdefault(
                mail.scorer, len(self._first_slot_by_scorer) % len(self._slot_keys)
            )
        if self._may_use_another_slot(mail) and self._write(first_slot, mail, frame):
            return True
        occupied_slots = self._find_occupied_slots()
        slots_with_older_results = [
            slot for slot in self._find_slots_with_older_results(mail) if slot in occupied_slots
        ]
        with self._lock:
            # Another thread may have forgotten the result of a slot since it was found.
            slots_with_older_scores = [
                slot
                for slot in slots_with_older_results
                if (other := self._mail_by_slot.get(slot)) is not None and other.has_scores
            ]
        # Only a result with scores replaces another one. The reason of a failure waits for a free slot.
        if mail.has_scores and len(slots_with_older_scores) >= self._compute_max_slots(mail):
            if not replace:
                return False
            if self._replace(slots_with_older_scores, mail, frame):
                return True
        free_slots: list[int] = []
        if self._may_use_another_slot(mail):
            free_slots = [slot for slot in range(len(self._slot_keys)) if slot not in occupied_slots]
        return any(self._write(slot, mail, frame) for slot in free_slots) or (
            mail.has_scores and replace and self._replace(slots_with_older_results, mail, frame)
        )

    def _replace(self, slots: list[int], mail: Mail, frame: bytes) -> bool:
        """Replace the older result in the first of these slots that allows it. Return False if none does."""
        return any(self._write(slot, mail, frame, replace=True) for slot in slots)

    def _may_use_another_slot(self, mail: Mail) -> bool:
        """Return False if the scorers of the result's namespace use their share of the slots.

        The count is an upper bound, because the hub may have emptied some of the slots.
        """
        namespaces = self._namespaces()
        with self._lock:
            scorers = {
                slot: mail_in_slot.scorer for slot, mail_in_slot in self._mail_by_slot.items()
            } | self._scorer_by_busy_slot
        mails_by_namespace = Counter(namespaces.get(scorer, "") for scorer in scorers.values())
        namespace = namespaces.get(mail.scorer, "")
        # The only namespace on a cluster may use all slots.
        is_alone = not set(namespaces.values()) - {namespace}
        return is_alone or has_share(namespace, mails_by_namespace, len(self._slot_keys), namespaces.values())

    def _find_occupied_slots(self) -> set[int]:
        """Return the slots with results, and forget the results that the hub has read."""
        with self._lock:
            mails_before = dict(self._mail_by_slot)
        with self._redis.pipeline(transaction=False) as pipe:
            for key in self._slot_keys:
                pipe.exists(key)
            occupied_slots = {slot for slot, exists in enumerate(pipe.execute()) if exists}
        with self._lock:
            for slot, mail in mails_before.items():
                if slot not in occupied_slots and self._mail_by_slot.get(slot) is mail:
                    del self._mail_by_slot[slot]
        return occupied_slots

    def _find_slots_with_older_results(self, mail: Mail) -> list[int]:
        """Return the slots with older results of the same scorer, the oldest first. The hub may have emptied them."""
        with self._lock:
            older_runs = [(other.run, slot) for slot, other in self._mail_by_slot.items() if mail.is_newer(other)]
        return [slot for _, slot in sorted(older_runs)]

    def _compute_max_slots(self, mail: Mail) -> int:
        """Return the number of slots for each of the scorers that use them."""
        with self._lock:
            scorers = {other.scorer for other in self._mail_by_slot.values()} | {mail.scorer}
        return max(1, len(self._slot_keys) // len(scorers))

    def _write(self, slot: int, mail: Mail, frame: bytes, *, replace: bool = False) -> bool:
        """Write the result into this slot. Return False if the slot is occupied or another thread is writing it.

        `replace` allows to replace an older result of the same scorer.
        """
        with self._lock:
            if slot in self._scorer_by_busy_slot:
                return False
            # Since the caller's check, the hub may have emptied the slot and another thread may have filled it.
            if replace and ((old_mail := self._mail_by_slot.get(slot)) is None or not mail.is_newer(old_mail)):
                return False
            self._scorer_by_busy_slot[slot] = mail.scorer
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._slot_keys[slot], frame, nx=not replace)
                # The flag is set after the result, because the hub clears the flag before it reads the slots. It is
                # also set if the slot is occupied, because a result waits there in that case.
                pipe.set(self._flag_key, slot)
                is_written = bool(pipe.execute()[0])
            if is_written:
                with self._lock:
                    self._mail_by_slot[slot] = mail
            return is_written
        finally:
            with self._lock:
                del self._scorer_by_busy_slot[slot]


class Outbox:
    """Signs results and puts them into the mailbox. Thread-safe."""

    def __init__(
        self,
        client: redis.Redis,
        key_file: SigningKeyFile,
        cluster: str,
        max_bytes: int,
        *,
        namespaces: Callable[[], Mapping[str, str]],
        stopping: threading.Event | None = None,
    ) -> None:
        """`namespaces` returns the namespace of each scorer here, empty for the hub's own. `stopping` is set at
        shutdown. Results that cannot be sent after that are dropped."""
        self._mailbox = Mailbox(client, cluster, namespaces)
        self._key_file = key_file
        self._max_bytes = max_bytes
        self._stopping = stopping or threading.Event()

    def send(self, result: Result, deadline: float) -> None:
        """Sign and send a result, with retries until `deadline` by time.monotonic() or until the agent's shutdown.

        Raises CycleError of stage publish with reason no_signing_key, too_large, connection_failed or results_behind.
        """
        frame = self._sign(result)
        mail = Mail(result.scorer, result.run, result.outcome in SUCCESSES)
        replace = False
        while True:
            is_last_try = self._stopping.is_set() or time.monotonic() + _FULL_MAILBOX_RETRY_SECONDS >= deadline
            try:
                if self._mailbox.put(mail, frame, replace=replace or is_last_try):
                    return
            except redis.RedisError as error:
                # Wait longer before this retry, because the client itself has already retried for a short time.
                has_time = not is_last_try and time.monotonic() + _REDIS_RETRY_SECONDS < deadline
                if not has_time or self._stopping.wait(_REDIS_RETRY_SECONDS):
                    raise CycleError(
                        "publish", "connection_failed", "the result cannot be sent, Redis is away"
                    ) from error
                continue
            if is_last_try:
                raise CycleError(
                    "publish",
                    "results_behind",
                    "the hub has not taken the results of this cluster and namespace for so long; check its results "
                    "workers",
                )
            replace = True
            self._stopping.wait(_FULL_MAILBOX_RETRY_SECONDS)

    def _sign(self, result: Result) -> bytes:
        """Return the signed frame. Raises CycleError if there is no key, or if the frame is too large for the hub."""
        try:
            frame = sign(result, self._key_file.get_key())
        except SettingsError as error:
            raise CycleError("publish", "no_signing_key", str(error)) from None
        if len(frame) > self._max_bytes:
            raise CycleError(
                "publish",
                "too_large",
                f"the result has {len(frame)} bytes, more than the {self._max_bytes} that the hub takes; "
                "return fewer results or shorter labels",
            )
        return frame
