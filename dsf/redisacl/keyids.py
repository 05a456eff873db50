"""Valid credentials of a cluster, including rotations. Pure functions.

A key id stands for one set of credentials: the signing key and the password in Redis, which are derived from the master
secret and delivered in one Secret. `KeyIds.rotate` starts a rotation with the next id, whose set is then delivered.
`KeyIds.end_overlap` ends it once the agent uses the new set, or after the grace time. From then on the old set is
refused everywhere.
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
    #: Unix seconds at which the current credentials were made.
    since: float = 0.0

    @property
    def valid(self) -> tuple[int, ...]:
        """The valid ids, newest first, as in `ClusterRecord.key_ids`."""
        return (self.current,) if self.previous is None else (self.current, self.previous)

    def rotate(self, now: float) -> KeyIds:
        """Start a rotation. An unfinished one ends, so that at most two ids are valid."""
        return KeyIds(self.current + 1, self.current, now)

    def revoke(self, now: float) -> KeyIds:
        """Switch to new credentials without an overlap, because the old ones are compromised."""
        return KeyIds(self.current + 1, None, now)

    def end_overlap(self, now: float, used_id: int | None, *, min_age: float = 0.0, grace: float = 3600.0) -> KeyIds:
        """End the overlap if the agent has signed with the current key (`used_id`), or after `grace` seconds.

        OCM delivers the new Secret within seconds. A disconnected cluster gets it when it reconnects, even if the old
        one is no longer valid.

        The overlap lasts at least `min_age` seconds, because an agent may have its new signing key before its new
        password, which is in a file that Kubernetes updates later.
        """
        if self.previous is not None and self.since > now + CLOCK_SKEW:
            # The hub's clock was ahead. Without this correction, the overlap would last until that time.
            return replace(self, since=now)
        age = now - self.since
        if self.previous is not None and ((used_id == self.current and age >= min_age) or age >= max(grace, min_age)):
            return replace(self, previous=None)
        return self

    def dump(self) -> str:
        """Return the text for `parse`. It contains no secret."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> KeyIds | None:
        """Parse a text of `dump`. Return None for any other text, which admins of a cluster's namespace may write."""
        try:
            document = json.loads(text)
            ids = cls(int(document["current"]), document["previous"], float(document["since"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        previous_fits = ids.previous is None or (type(ids.previous) is int and 1 <= ids.previous < ids.current)
        return ids if 1 <= ids.current <= MAX_KEY_ID and previous_fits and math.isfinite(ids.since) else None
