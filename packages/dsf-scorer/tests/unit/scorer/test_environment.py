from __future__ import annotations

import pytest

from dsf.scorer import Prometheus, Scorer, ScorerError, env_number


@pytest.mark.parametrize(("text", "value"), [(None, 7.0), ("", 7.0), (" ", 7.0), ("2", 2.0), (" -1.5e3 ", -1500.0)])
def test_env_number_reads_the_variable_or_the_default(
    monkeypatch: pytest.MonkeyPatch, text: str | None, value: float
) -> None:
    monkeypatch.delenv("LIMIT", raising=False)
    if text is not None:
        monkeypatch.setenv("LIMIT", text)
    number = env_number("LIMIT", 7)
    assert number == value
    assert isinstance(number, float)


@pytest.mark.parametrize(
    ("text", "minimum", "requirement"),
    [("many", None, "a number"), ("nan", None, "a number"), ("inf", 1, "a number from 1 on"), ("0", 1, "from 1 on")],
)
def test_env_number_refuses_invalid_text(
    monkeypatch: pytest.MonkeyPatch, text: str, minimum: float | None, requirement: str
) -> None:
    monkeypatch.setenv("LIMIT", text)
    with pytest.raises(ScorerError, match=f"environment variable LIMIT is '{text}'; it must be .*{requirement}"):
        env_number("LIMIT", 7, least=minimum)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("SCORE_INTERVAL", "0", "0 is not a whole number of seconds from 1 on"),
        ("SCORE_INTERVAL", "abc", "it must be a whole number"),
        ("SCORE_NAME", " ", "must be text"),
        ("SOURCE_RANGE", "0", "0 is not a whole number of seconds from 1 on"),
        ("SOURCE_RANGE", "-3", "-3 is not a whole number of seconds from 0 on"),
        ("SOURCE_STEP", "1.5", "it must be a whole number"),
        ("SOURCE_HOST", "prom:9090", "not a URL"),
    ],
)
def test_error_of_a_wrong_value_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    monkeypatch.setenv(f"MY_{variable}", text)
    source = Prometheus(host="http://prom:9090", path="/api/v1/query_range", query="up", range=60, step=5)
    with pytest.raises(ScorerError, match=f"(?s)the environment variable MY_{variable}.*{message}"):
        Scorer(name="s", description="", score_name="s", interval=30, source=source, env="MY_")


def test_whole_number_has_no_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTH", "2.7")
    assert env_number("LENGTH", 20) == 2.7
    with pytest.raises(ScorerError, match=r"LENGTH is '2\.7'; it must be a whole number from 1 on"):
        env_number("LENGTH", 20, least=1, whole=True)
