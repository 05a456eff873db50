"""The ids of a cluster's valid credentials, and their rotation. Pure functions.

A key id identifies one set of credentials: the signing key and the password in Redis, which are derived from the master
secret and delivered in one Secret. `KeyIds.rotate` starts a rotation with the next id, whose set is then delivered.
`KeyIds.end_overlap_if_due` ends the rotation once the agent uses the new set, or after the grace time. From then on,
the hub and Redis reject the old set.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

from dsf.messages import MAX_KEY_ID
from dsf.store.entries import CLOCK_SKEW


@dataclass(frozen=True)
class KeyIds:
    """The valid key ids of one cluster."""

    current: int = 1
    #: The old id during a rotation, which is still valid; None without a rotation.
    previous: int | None = None
    #: Time at which the current credentials were created (unix seconds).
    since: float = 0.0

    @property
    def valid(self) -> tuple[int, ...]:
        """The valid key ids, newest first, as in `ClusterRecord.key_ids`."""
        return (self.current,) if self.previous is None else (self.current, self.previous)

    def rotate(self, now: float) -> KeyIds:
        """Start a rotation at `now` (unix seconds), and end an unfinished one, so that at most two ids are valid."""
        return KeyIds(self.current + 1, self.current, now)

    def revoke(self, now: float) -> KeyIds:
        """Switch to new credentials without an overlap, because the old credentials are compromised."""
        return KeyIds(self.current + 1, None, now)

    def end_overlap_if_due(
        self, now: float, used_id: int | None, *, min_age: float = 0.0, grace: float = 3600.0
    ) -> KeyIds:
        """Return the key ids without the previous one if the agent has signed with the current key, or after `grace`.

        Otherwise, the overlap goes on. `now` is in unix seconds, `min_age` and `grace` are durations in seconds.

        `used_id` is the id of the key with which the agent last signed, or None. The grace time may end while a cluster
        is disconnected: OCM does not need the agent's credentials, and delivers the new Secret when the cluster
        reconnects.

        The overlap lasts at least `min_age` seconds, because an agent may have its new signing key before its new
        password, which is in a file that Kubernetes updates later.
        """
        if self.previous is not None and self.since > now + CLOCK_SKEW:
            # The hub's clock was ahead. Correct the time, because the overlap would otherwise last too long.
            return replace(self, since=now)
        age = now - self.since
        if self.previous is not None and ((used_id == self.current and age >= min_age) or age >= max(grace, min_age)):
            return replace(self, previous=None)
        return self

    def dump(self) -> str:
        """Return the key ids as JSON, which `parse` reads and which contains no secret."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> KeyIds | None:
        """Return the key ids in a text of `dump`; None for other texts, which users may have written."""
        try:
            document = json.loads(text)
            ids = cls(int(document["current"]), document["previous"], float(document["since"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        is_previous_valid = ids.previous is None or (type(ids.previous) is int and 1 <= ids.previous < ids.current)
        return ids if 1 <= ids.current <= MAX_KEY_ID and is_previous_valid and math.isfinite(ids.since) else None
