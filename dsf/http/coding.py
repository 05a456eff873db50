"""Decompresses an answer in bounded steps.

A few bytes can expand a thousandfold, and an answer can consist of many small compressed members, each of which costs
a copy of the rest. So the output of each step is bounded, and the members are counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

#: gzip or zlib, detected by the first bytes.
_EITHER: Final = 32 + zlib.MAX_WBITS
#: Output bytes per step.
_STEP: Final = 1024 * 1024
#: Members of one gzip answer; servers send one.
_MAX_MEMBERS: Final = 64

#: Supported content codings. Only gzip is requested.
KNOWN: Final = frozenset({"gzip", "x-gzip", "deflate"})


class CodingError(ValueError):
    """The compressed data are invalid; the message says how."""


class UnfinishedError(CodingError):
    """The compressed data end too early."""


def inflated(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The decompressed data, at most a MiB at a time; nothing for no pieces. Raises CodingError.

    Trailing data after the last member are ignored, as gzip does.
    """
    inflater = zlib.decompressobj(_EITHER)
    members = 0
    is_begun = False
    for piece in pieces:
        is_begun = True
        rest = piece
        while rest:
            if inflater.eof:
                members += 1
                if members >= _MAX_MEMBERS:
                    raise CodingError(f"it is made of more than {_MAX_MEMBERS} compressed members")
                inflater = zlib.decompressobj(_EITHER)
            try:
                made = inflater.decompress(rest, _STEP)
            except zlib.error:
                if members:
                    return
                raise CodingError("it cannot be decompressed") from None
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            if made:
                yield made
    if is_begun and not inflater.eof:
        raise UnfinishedError("it ends too early")
