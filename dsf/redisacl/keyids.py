"""Valid credentials of a cluster, including rotations. Pure functions.

A key id names one set of credentials: the signing key and the password in Redis. Both are derived from the master
secret and sent in one Secret. A rotation moves to the next id: `rotated`, then deliver the new set, and once the
agent has it (or the grace time is over) `settled`, after which the old set is refused everywhere.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

from dsf.messages import MAX_KEY_ID
from dsf.store.entries import CLOCK_SKEW


@dataclass(frozen=True)
class KeyIds:
    """The credentials of one cluster. `since` is when the current ones were made (unix seconds)."""

    current: int = 1
    #: Still valid beside the current ones; None when no rotation is under way.
    previous: int | None = None
    since: float = 0.0

    @property
    def valid(self) -> tuple[int, ...]:
        """Ids that are valid now, newest first: what `ClusterRecord.key_ids` holds."""
        return (self.current,) if self.previous is None else (self.current, self.previous)

    def rotate(self, now: float) -> KeyIds:
        """Start a rotation. An earlier rotation that is still under way ends: at most two ids are valid."""
        return KeyIds(self.current + 1, self.current, now)

    def revoke(self, now: float) -> KeyIds:
        """Switch to new credentials without an overlap: the old ones are compromised."""
        return KeyIds(self.current + 1, None, now)

    def end_overlap(self, now: float, used_id: int | None, *, min_age: float = 0.0, grace: float = 3600.0) -> KeyIds:
        """End the overlap when the agent has signed with the current key (`used_id`) or `grace` seconds are over.

        OCM delivers in seconds; a disconnected cluster gets the new Secret when it is back, whether or not the old one
        is still valid.
        The overlap lasts at least `min_age` seconds: an agent may have its new signing key before its new password,
        which is a file that Kubernetes updates later.
        """
        if self.previous is not None and self.since > now + CLOCK_SKEW:
            # The hub's clock was ahead: the overlap begins now, or it would last until that time comes.
            return replace(self, since=now)
        age = now - self.since
        if self.previous is not None and ((used_id == self.current and age >= min_age) or age >= max(grace, min_age)):
            return replace(self, previous=None)
        return self

    def dump(self) -> str:
        """Return the text for `parse`. Has no secret."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> KeyIds | None:
        """Parse what `dump` wrote; None for anything else: admins of a cluster's namespace may write any text."""
        try:
            document = json.loads(text)
            ids = cls(int(document["current"]), document["previous"], float(document["since"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        previous_fits = ids.previous is None or (type(ids.previous) is int and 1 <= ids.previous < ids.current)
        return ids if 1 <= ids.current <= MAX_KEY_ID and previous_fits and math.isfinite(ids.since) else None
