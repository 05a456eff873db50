"""Forms as they arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request

from dsf.errors import AccessError
from dsf.web import forms


def _request(*parts: bytes, is_whole: bool) -> Request:
    """One whose body comes in these parts; what is not whole never ends."""
    waiting = [*parts]

    async def receive() -> dict[str, Any]:
        if not waiting and not is_whole:
            await asyncio.Event().wait()
        body = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": body, "more_body": bool(waiting) or not is_whole}

    return Request({"type": "http", "method": "POST", "path": "/login", "headers": []}, receive)


def test_a_form_may_come_in_parts() -> None:
    found = asyncio.run(forms.read_form(_request(b"token=a&", b"to=%2Fscores&empty=", is_whole=True)))
    assert found == {"token": "a", "to": "/scores", "empty": ""}


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (_request(b"to", is_whole=False), 408, r"this form did not arrive within 0\.1 s"),
        (_request(b"x" * 20_000, b"x" * 20_000, is_whole=True), 413, "too large"),
        (_request(b"&".join(b"x=1" for _ in range(31)), is_whole=True), 413, "too many fields"),
        (_request(b"scorer=a&scorer=b", is_whole=True), 400, "a field twice"),
    ],
)
def test_a_form_that_is_refused(monkeypatch: pytest.MonkeyPatch, request_: Request, status: int, why: str) -> None:
    monkeypatch.setattr(forms, "_FORM_SECONDS", 0.1)
    with pytest.raises(AccessError, match=why) as refused:
        asyncio.run(forms.read_form(request_))
    assert refused.value.status == status
