"""llm-forecast-scorer: settings, prompt, and parsing of a response. Integration tests query a real server."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dsf.scorer import ScorerError, Series, Unavailable
from tests.unit.samples.conftest import Load

SAMPLE = "llm-forecast-scorer"


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("12.5", 12.5),
        (" -3\n", -3.0),
        ("\n\n+.5\n", 0.5),
        ("1e-3", 0.001),
        ("The next value is 7.", 7.0),
        ("**42**", 42.0),
        ("The next value is: -7e2", -700.0),
        ("`8.25`.", 8.25),
        ("0.7\n\nThe series rises, and in 5 minutes", 0.7),
        ("1e999", float("inf")),
        ("```\n0.5\n```", 0.5),
        ("```json\n0.5\n```\nThe series rises.", 0.5),
        ("```0.5```", 0.5),
        ("~~~text\n-1.5e3\n~~~", -1500.0),
        ("Here is the number:\n```\n0.5", 0.5),
        ('```json\n{"value": 0.5}\n```', 0.5),
        ('{\n  "next_value": "0.5"\n}', 0.5),
        ("[0.5]", 0.5),
        ("<think>There are 60 samples.\nIt falls to 3.</think>\n\n0.5", 0.5),
        ("<THINK>\n</THINK>```\n0.5\n```", 0.5),
        ("The prompt began the thoughts.\n</think>0.5", 0.5),
        ("<reasoning>12</reasoning> **0.5**", 0.5),
        ('"0.5"', 0.5),
        ("'0.5'", 0.5),
        ("*0.5*", 0.5),
        ("$0.5$", 0.5),
        ("$\\boxed{0.5}$", 0.5),
        ("\\boxed{ -2 }.", -2.0),
        ("Answer: 0.5", 0.5),
        ("Value = 0.5", 0.5),
        ("Predicted value: 0.5", 0.5),
        ("The forecast is 0.5", 0.5),
        ("```\nI cannot say.\n```", None),
        ("```python\nprint(0.5)\n```", None),
        ('{"time": 1718600060, "value": 0.5}', None),
        ("[0.5, 0.6]", None),
        ("<think>0.5</think>", None),
        ("0.5</think>", None),
        ('"0.5', None),
        ("5GB", None),
        (".5 cores", None),
        ("range 5-7", None),
        ("5, 7", None),
        ("12,", None),
        ("1718600060, 0.52", None),
        ("In 5 minutes: 0.7", None),
        ("<think>\nThere are 60 samples", None),
        ("<think> Let me look at the 60 samples", None),
        ("**5", None),
        ("٣", None),
        ("1,234.5", None),
        ("about 12,000 requests", None),
        ("3,5", None),
        ("", None),
        ("I cannot say.", None),
        ("NaN", None),
        ("Infinity", None),
        ("- . e", None),
        ("Qwen2 does not know", None),
    ],
)
def test_number_is_parsed_from_a_response(sample: Load, answer: str, value: float | None) -> None:
    assert sample().next_value(answer) == value


@pytest.mark.parametrize(
    ("samples", "near", "far"),
    [
        ([0.4, 0.6], [0.5, 0.6, 1.1, -0.1], [5.0, 60.0, 1718600060.0, -1.0, math.inf]),
        ([100.0, 100.0], [100.0, 150.0, 0.0], [201.0, -1.0]),
        ([0.0, 0.0], [0.0], [5.0]),
        ([-3.0, -1.0], [-5.0, 0.5], [10.0]),
    ],
)
def test_value_far_from_all_samples_is_rejected(
    sample: Load, samples: list[float], near: list[float], far: list[float]
) -> None:
    module = sample()
    known_series = Series.of({}, samples)
    assert [value for value in [*near, *far] if module.is_near(value, known_series)] == near


def test_nearness_uses_only_samples_seen_by_the_model(sample: Load) -> None:
    module = sample(MAX_SAMPLES="2")
    assert not module.is_near(900.0, Series.of({}, [1000, 1, 2]))


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "http://localhost:8000/v1/completions"),
        ({"VLLM_ENDPOINT": "http://vllm:8000"}, "http://vllm:8000/v1/completions"),
        ({"VLLM_ENDPOINT": "https://vllm/v1/"}, "https://vllm/v1/completions"),
        ({"INFERENCE_ENDPOINT": "http://llm/x/completions"}, "http://llm/x/completions"),
        ({"VLLM_ENDPOINT": "http://a/v1", "INFERENCE_ENDPOINT": "http://b/v1"}, "http://a/v1/completions"),
    ],
)
def test_endpoint_is_built_from_the_environment(sample: Load, environment: dict[str, str], url: str) -> None:
    module = sample(**environment)
    assert url == module.ENDPOINT


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VLLM_ENDPOINT", "vllm:8000"),
        ("INFERENCE_ENDPOINT", "file:///etc/passwd"),
        ("CONCURRENCY", "0"),
        ("INFERENCE_TIMEOUT", "soon"),
        ("MAX_SAMPLES", "-1"),
        ("PROMPT_FILE", "/nowhere/prompt.txt"),
        ("CONTEXT_FILE", "/nowhere/context.txt"),
    ],
)
def test_invalid_setting_is_refused(sample: Load, variable: str, value: str) -> None:
    with pytest.raises(ScorerError) as raised:
        sample(**{variable: value})
    assert value in str(raised.value)


def test_prompt_has_the_newest_samples_and_labels_in_one_line(sample: Load, tmp_path: Path) -> None:
    context = tmp_path / "context.txt"
    context.write_text("Sales double on Fridays.\n")
    module = sample(MAX_SAMPLES="2", CONTEXT_FILE=str(context))
    text = module.prompt(Series.of({"pod": 'a\n"b" $samples'}, [1, 2, 3.25], start=1718600000))
    assert '{"pod": "a\\n\\"b\\" $samples"}' in text
    assert "Sales double on Fridays." in text
    assert "\n1718600060, 2\n1718600120, 3.25\n" in text
    assert "1718600000" not in text


@pytest.mark.parametrize("text", ["no samples here", "$samples $colour", "$samples costs 5$", "$labels"])
def test_prompt_without_placeholder_is_refused(sample: Load, tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(text)
    with pytest.raises(ScorerError, match=r"must have \$samples"):
        sample(PROMPT_FILE=str(file))


def test_token_is_read_for_each_request(sample: Load, tmp_path: Path) -> None:
    assert sample().authorization() == {}
    file = tmp_path / "token"
    module = sample(INFERENCE_TOKEN_FILE=str(file))
    for content in (None, "\n"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(Unavailable, match="token for the language model"):
            module.authorization()
    for token in ("one", "two"):
        file.write_text(f"{token}\n")
        assert module.authorization() == {"Authorization": f"Bearer {token}"}


def test_config(sample: Load) -> None:
    config = sample().app.config()
    assert config["scoring"]["params"] == {"name": "llm_forecast_score", "interval": 60}
    assert (config["source"]["params"]["range"], config["source"]["params"]["step"]) == (3600, 60)
