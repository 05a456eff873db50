"""Errors that arrive as events of a watch."""

from __future__ import annotations

from typing import cast

import pytest

from dsf.kube.reflector import Reflector
from dsf.kube.resources import LEASES
from dsf.kube.session import ApiServerError, ExpiredError, Session


@pytest.mark.parametrize(("code", "is_expired"), [(410, True), (500, False), (429, False)])
def test_relist_follows_only_an_expired_version(code: int, is_expired: bool) -> None:
    reflector = Reflector(cast("Session", None), LEASES, lambda *_: None)
    status = {"code": code, "message": "no", "details": {"retryAfterSeconds": 7}}
    with pytest.raises(ApiServerError) as caught:
        reflector._apply_event("ERROR", status)
    assert caught.value.status == code
    assert isinstance(caught.value, ExpiredError) is is_expired
    assert is_expired or caught.value.retry_after == 7
