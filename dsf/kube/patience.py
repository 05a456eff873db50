"""Blocking requests with retry, for callers without a work queue."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, Final

from dsf.kube.session import ApiServerError, Session

#: Seconds for which a request is repeated while the API server is overloaded, and seconds between two attempts without
#: a Retry-After.
_BUSY: Final = 10.0
_PAUSE: Final = 1.0


def request_with_retry(session: Session, method: str, path: str, **options: Any) -> dict[str, Any]:
    """See `Session.request`. A request answered with 429 was not processed, so it can be sent again."""
    deadline = time.monotonic() + _BUSY
    while True:
        try:
            return session.request(method, path, **options)
        except ApiServerError as error:
            pause = error.retry_after or _PAUSE
            if error.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
