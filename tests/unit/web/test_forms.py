"""Parsing of submitted forms."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request

from dsf.errors import AccessError
from dsf.web import forms


def _request(*parts: bytes) -> Request:
    """Return a request whose body arrives in these chunks."""
    waiting = [*parts]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    return Request({"type": "http", "method": "POST", "path": "/login", "headers": []}, receive)


def test_form_in_several_chunks_is_read() -> None:
    fields = asyncio.run(forms.read_form(_request(b"token=a&", b"to=%2Fscores&empty=")))
    assert fields == {"token": "a", "to": "/scores", "empty": ""}


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (_request(b"x" * 20_000, b"x" * 20_000), 413, "too large"),
        (_request(b"&".join(b"x=1" for _ in range(31))), 413, "too many fields"),
        (_request(b"scorer=a&scorer=b"), 400, "a field twice"),
    ],
)
def test_invalid_form_is_refused(request_: Request, status: int, why: str) -> None:
    with pytest.raises(AccessError, match=why) as raised:
        asyncio.run(forms.read_form(request_))
    assert raised.value.status == status
