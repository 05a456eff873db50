from __future__ import annotations

import pytest

from dsf.scorer import ScorerError, env_number


@pytest.mark.parametrize(("text", "value"), [(None, 7.0), ("", 7.0), (" ", 7.0), ("2", 2.0), (" -1.5e3 ", -1500.0)])
def test_a_number(monkeypatch: pytest.MonkeyPatch, text: str | None, value: float) -> None:
    monkeypatch.delenv("LIMIT", raising=False)
    if text is not None:
        monkeypatch.setenv("LIMIT", text)
    found = env_number("LIMIT", 7)
    assert found == value
    assert isinstance(found, float)


@pytest.mark.parametrize(
    ("text", "least", "wanted"),
    [("many", None, "a number"), ("nan", None, "a number"), ("inf", 1, "a number from 1 on"), ("0", 1, "from 1 on")],
)
def test_what_is_none(monkeypatch: pytest.MonkeyPatch, text: str, least: float | None, wanted: str) -> None:
    monkeypatch.setenv("LIMIT", text)
    with pytest.raises(ScorerError, match=f"environment variable LIMIT is '{text}'; it must be .*{wanted}"):
        env_number("LIMIT", 7, least=least)
