"""Which credentials of a cluster are valid, also while they are being rotated. Pure.

A key id names one set of credentials: the signing key and the password in Redis. Both are derived from the master
secret and travel in one Secret. A rotation goes on to the next id: `rotated`, then deliver the new set, and once its
agent has it (or the grace time is over) `settled`, after which the old set is refused everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Seconds for which the old credentials stay valid when nothing is heard of the agent. OCM delivers in seconds; a
#: cluster that is away gets the new Secret when it is back, whether or not the old one is still valid.
GRACE = 3600.0


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

    def rotated(self, now: float) -> KeyIds:
        """Begin a rotation. One that is still under way ends with it: at most two ids are valid."""
        return KeyIds(self.current + 1, self.current, now)

    def revoked(self, now: float) -> KeyIds:
        """Go on to new credentials without an overlap: the old ones are in wrong hands."""
        return KeyIds(self.current + 1, None, now)

    def settled(self, now: float, used: int | None, grace: float = GRACE) -> KeyIds:
        """End the overlap when the agent has signed with the current key (`used`) or the grace time is over."""
        if self.previous is not None and (used == self.current or now - self.since >= grace):
            return replace(self, previous=None)
        return self
