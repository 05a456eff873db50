"""The readers of foreign bytes, each a function of the document."""

from __future__ import annotations

from dsf.api.remoteconfig import parse_remote_config
from dsf.api.scoring import parse_response
from dsf.messages import derive_key, frame, verify

_SECRET = bytes(32)


def result(data: bytes) -> None:
    """A result that its agent, or whoever has its credentials, has signed."""
    verify(frame(data, derive_key(_SECRET, "c1", 1), "c1"), _SECRET)


def unsigned_result(data: bytes) -> None:
    """Bytes in a slot of a mailbox."""
    verify(data, _SECRET)


def later_result(data: bytes) -> None:
    """A result of a schema that this hub does not know."""
    verify(frame(data, derive_key(_SECRET, "c1", 1), "c1", 9), _SECRET)


remote_config = parse_remote_config
scoring_response = parse_response
