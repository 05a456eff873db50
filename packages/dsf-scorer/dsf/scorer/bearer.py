"""Bearer token check of /scoring."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsf.scorer.errors import RefusedError, ScorerError

log = logging.getLogger("dsf.scorer")

_NOT_READY_MESSAGE = "this scorer wants a token and has none to compare with; see its log"
#: Identity of a file's content: device, inode, size, mtime in ns. Kubernetes updates a Secret by renaming files.
_Stamp = tuple[int, int, int, int]


@dataclass(slots=True)
class Bearer:
    """Needs `Authorization: Bearer <token>`. Set `env`, the name of an environment variable, or `file`, a path.

    Each line of the file is a token: while the file has the old and the new token, clients can switch one after
    another. The file is read again when it changes. The service does not start without a token, and refuses every
    request while there is none, so that a lost file never opens the service to everyone.
    """

    env: str = ""
    file: str | Path = ""
    _digests: tuple[bytes, ...] = field(default=(), init=False, repr=False)
    _stamp: _Stamp | None = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ScorerError unless exactly one of `env` and `file` is set."""
        if bool(self.env) == bool(str(self.file)):
            raise ScorerError("Bearer(): give either env= or file=")

    def require(self) -> None:
        """Raise ScorerError if there is no token."""
        if not self._read_digests():
            raise ScorerError(f"there is no token in the {self.location}")

    def check(self, authorization: Sequence[str]) -> None:
        """Raise RefusedError: 401 unless the only Authorization header has the token, 503 if there is no token to
        compare with.
        """
        digests = self._read_digests()
        if not digests:
            log.error("there is no token, so every request is refused where=%s", self.location)
            raise RefusedError(503, _NOT_READY_MESSAGE)
        scheme, _, token = (authorization[0] if len(authorization) == 1 else "").partition(" ")
        # Headers are latin-1 text.
        token_digest = _digest(token.strip().encode("latin-1", "replace"))
        # All tokens are compared, as digests of equal length: the time must not tell how much of a token was right.
        match_count = sum([hmac.compare_digest(token_digest, digest) for digest in digests])
        if scheme.lower() != "bearer" or not match_count:
            problem = ("a token is wanted", "the token is not the right one", "only one token is taken")
            text = problem[min(len(authorization), 2)]
            raise RefusedError(401, f"{text}: Authorization: Bearer <token>", headers={"WWW-Authenticate": "Bearer"})

    @property
    def location(self) -> str:
        """Source of the token, for messages."""
        return f"environment variable {self.env}" if self.env else f"file {self.file}"

    def _read_digests(self) -> tuple[bytes, ...]:
        if self.env:
            token = os.environ.get(self.env, "").strip()
            return (_digest(os.fsencode(token)),) if token else ()
        with self._lock:
            self._reread()
            return self._digests

    def _reread(self) -> None:
        try:
            status = Path(self.file).stat()
            stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return
            lines = Path(self.file).read_bytes().splitlines()
        except OSError as error:
            log.error("cannot read the token where=%s error=%s", self.location, type(error).__name__)
            self._digests, self._stamp = (), None
            return
        self._digests = tuple(_digest(line.strip()) for line in lines if line.strip())
        self._stamp = stamp


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
