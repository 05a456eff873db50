from __future__ import annotations

from typing import Any

import pytest

from dsf.api.fieldtypes import parse_rate
from tests.cases import load


@pytest.mark.parametrize("case", load("rates"))
def test_rate(case: dict[str, Any]) -> None:
    assert parse_rate(case["text"]) == case["expected"]


@pytest.mark.parametrize(
    "text", ["", "10", "10/d", "0/s", "-1/s", "1.5/s", "10 /s", "10/s\n", "/s", "s", "1" * 10 + "/s"]
)
def test_not_a_rate(text: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole text is compared
        parse_rate(text)
    assert str(raised.value) == (
        f"{text!r} is not a rate: write a whole number from 1 on and /s, /m or /h, such as 10/s or 30/m"
    )
