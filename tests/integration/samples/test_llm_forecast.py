"""llm-forecast-scorer over HTTP, with a language model that speaks the protocol over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.integration.samples.conftest import Start, ask, series
from tests.integration.samples.llm import MODEL, LanguageModel
from tests.support.httpserver import answer, close_early, send_endless, send_half, send_slowly

#: A series with samples, and one without any usable value.
TWO = {"data": [series(["1", "2"], pod="web"), series(["NaN"], pod="lost")]}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "inference").write_text("model-token\n")
    (folder / "api").write_text("api-token\n")
    return folder


@pytest.fixture(scope="module")
def shared() -> Iterator[LanguageModel]:
    with LanguageModel() as model:
        yield model


@pytest.fixture
def model(shared: LanguageModel) -> LanguageModel:
    """As new, while the scorers know its address."""
    shared.says, shared.seconds, shared.token, shared.most = "1.5", 0.0, "", 0
    shared.prompts.clear()
    shared.server.requests.clear()
    shared.server.script(shared._handle)
    return shared


@pytest.fixture
def scorer(llm_forecast: Start, shared: LanguageModel) -> str:
    """The inference timeout exceeds the time that a busy machine may delay the model."""
    return started(llm_forecast, shared, inference="6", scoring="25")


def started(llm_forecast: Start, model: LanguageModel, *, inference: str, scoring: str) -> str:
    return llm_forecast(
        VLLM_ENDPOINT=model.url,
        MODEL_NAME=MODEL,
        CONCURRENCY="3",
        INFERENCE_TIMEOUT=inference,
        SCORING_TIMEOUT=scoring,
    )


def refusal_counts(url: str) -> dict[str, float]:
    """Results that were left out so far, by reason."""
    lines = requests.get(f"{url}/metrics", timeout=300).text.splitlines()
    metric_lines = [line for line in lines if line.startswith("dynamic_scoring_api_results_refused_total{")]
    return {line.split('reason="')[1].split('"')[0]: float(line.split()[-1]) for line in metric_lines}


def counted(url: str, before: dict[str, float]) -> dict[str, float]:
    """Return the increase of these counts."""
    return {
        name: new_count for name, count in refusal_counts(url).items() if (new_count := count - before.get(name, 0.0))
    }


def unavailable(url: str) -> str:
    """Why there are no scores."""
    response = requests.post(f"{url}/scoring", json=TWO, timeout=300)
    assert response.status_code == 503, response.text
    assert "Retry-After" in response.headers
    detail: str = response.json()["detail"]
    return detail


def test_score_is_the_number_of_the_model(model: LanguageModel, scorer: str) -> None:
    model.says = " 2.25\n\nThe series rises."
    before = refusal_counts(scorer)
    assert ask("POST", f"{scorer}/scoring", TWO) == {
        "results": [{"metric": {"pod": "web"}, "score": 2.25}],
        "dropped": {"no_samples": 1},
    }
    assert counted(scorer, before) == {"no_samples": 1}
    (prompt,) = model.prompts
    assert '{"pod": "web"}' in prompt
    assert "\n1718600000, 1\n1718600060, 2\n" in prompt
    (request,) = model.server.requests
    assert request.json().keys() == {"model", "prompt", "max_tokens", "temperature"}
    assert request.json()["temperature"] == 0
    assert "Authorization" not in request.headers


@pytest.mark.parametrize(
    "says", ["I am not sure.", "", "NaN", "Infinity", "1718600060, 2", "<think> of the 2 samples", "```\nnone\n```"]
)
def test_responses_without_any_number_are_an_error(model: LanguageModel, scorer: str, says: str) -> None:
    model.says = says
    quoted = " ".join(says.split())
    assert unavailable(scorer) == f"the language model gave no usable number: the answer is no number: {quoted!r}"


def test_numbers_far_from_all_samples_are_an_error(model: LanguageModel, scorer: str) -> None:
    model.says = "1718600120"
    assert "1.7186e+09 is far from all samples" in unavailable(scorer)


@pytest.mark.parametrize("says", ["```\n1.5\n```", "<think>Of 2 samples\nthe last is 2.</think>\n\n1.5"])
def test_wrapped_numbers_are_scores(model: LanguageModel, scorer: str, says: str) -> None:
    model.says = says
    assert ask("POST", f"{scorer}/scoring", TWO)["results"] == [{"metric": {"pod": "web"}, "score": 1.5}]


def test_response_without_a_number_is_left_out_of_the_scores(model: LanguageModel, scorer: str) -> None:
    model.server.script(answer({"choices": [{"text": "I am not sure."}]}), model._handle)
    body = {"data": [series(["1"], pod=str(number)) for number in range(4)]}
    before = refusal_counts(scorer)
    assert len(ask("POST", f"{scorer}/scoring", body)["results"]) == 3
    assert counted(scorer, before) == {"no_number": 1}


def test_series_without_samples_are_no_error(model: LanguageModel, scorer: str) -> None:
    model.says = "I am not sure."
    body = {"data": [series(["NaN"], pod="lost")]}
    assert ask("POST", f"{scorer}/scoring", body) == {"results": [], "dropped": {"no_samples": 1}}


def test_error_text_and_retry_after_of_the_model_are_passed_on(
    llm_forecast: Start, model: LanguageModel, tokens: Path
) -> None:
    (tokens / "inference").write_text("model-token\n")
    url = llm_forecast(VLLM_ENDPOINT=model.url, MODEL_NAME=MODEL, INFERENCE_TOKEN_FILE=str(tokens / "inference"))
    error = {"error": {"message": "Rate limit of model-token\nreached", "code": 429}}
    model.server.script(answer(error, 429, Retry_After="17"))
    response = requests.post(f"{url}/scoring", json=TWO, timeout=300)
    detail = response.json()["detail"]
    assert (response.status_code, response.headers["Retry-After"]) == (503, "17")
    assert detail.endswith("HTTP 429: Rate limit of *** reached (Retry-After: 17)")


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (answer({"error": "x"}, 500), "HTTP 500"),
        (answer("", 302, Location="http://127.0.0.1:1/"), "HTTP 302"),
        (answer("[1]"), "not one of the completions protocol"),
        (answer('{"choices": []}'), "not one of the completions protocol"),
        (answer('{"choices": [{"text": null}]}'), "not one of the completions protocol"),
        (close_early, "RemoteProtocolError"),
        (send_half, "RemoteProtocolError"),
        (send_slowly, "no answer within 6 s"),
        (send_endless(None), "more than 1048576 bytes"),
    ],
)
def test_failing_model_produces_no_score(model: LanguageModel, scorer: str, handler: Any, reason: str) -> None:
    model.server.script(handler)
    assert reason in unavailable(scorer)


def test_unreachable_model_is_reported_and_the_scorer_stays_healthy(llm_forecast: Start) -> None:
    url = llm_forecast(INFERENCE_ENDPOINT="http://127.0.0.1:1/v1/completions")
    assert unavailable(url) == "the language model gave no usable number: ConnectError"
    # The model is down, but the scorer is healthy.
    assert ask("GET", f"{url}/healthz") == {"status": "ok"}
    assert ask("POST", f"{url}/scoring", {"data": []}) == {"results": []}


def test_unknown_model_is_reported(llm_forecast: Start, model: LanguageModel) -> None:
    url = llm_forecast(VLLM_ENDPOINT=model.server.url, MODEL_NAME="another")
    assert unavailable(url) == (
        "the language model gave no usable number: HTTP 404: The model `another` does not exist."
    )


def test_failed_response_does_not_affect_other_scores(model: LanguageModel, scorer: str) -> None:
    model.server.script(answer("busy", 429), model._handle)
    before = refusal_counts(scorer)
    body = {"data": [series(["1"], pod=str(number)) for number in range(4)]}
    assert len(ask("POST", f"{scorer}/scoring", body)["results"]) == 3
    assert counted(scorer, before) == {"llm_error": 1}


def test_concurrent_model_requests_are_limited(model: LanguageModel, scorer: str) -> None:
    # Long enough for three requests to coincide on a busy machine.
    model.seconds = 0.5
    body = {"data": [series(["1"], pod=str(number)) for number in range(12)]}
    assert len(ask("POST", f"{scorer}/scoring", body)["results"]) == 12
    assert model.most == 3


def test_series_beyond_the_deadline_are_left_out(llm_forecast: Start, model: LanguageModel) -> None:
    body = {"data": [series(["1"], pod=str(number)) for number in range(12)]}
    # Longer if the time was over before the first three responses, because the machine may be busy.
    for seconds in (2, 20):
        scorer = started(llm_forecast, model, inference="25", scoring=str(seconds))
        model.seconds = 0.35 * seconds
        before = refusal_counts(scorer)
        response = requests.post(f"{scorer}/scoring", json=body, timeout=300)
        results = response.json().get("results", [])
        if len(results) >= 3:
            break
    assert response.status_code == 200, response.text
    # Three forecasts run at a time, all the time.
    assert 3 <= len(results) <= 6
    assert counted(scorer, before) == {"deadline": 12 - len(results)}


def test_model_token_and_api_token_are_used(llm_forecast: Start, model: LanguageModel, tokens: Path) -> None:
    model.token = "model-token"
    url = llm_forecast(
        VLLM_ENDPOINT=model.url,
        MODEL_NAME=MODEL,
        INFERENCE_TOKEN_FILE=str(tokens / "inference"),
        API_TOKEN_FILE=str(tokens / "api"),
    )
    assert requests.post(f"{url}/scoring", json=TWO, timeout=300).status_code == 401
    assert not model.server.requests
    right = {"Authorization": "Bearer api-token"}
    assert len(ask("POST", f"{url}/scoring", TWO, headers=right)["results"]) == 1

    # A changed token is used at once, and no response contains it.
    (tokens / "inference").write_text("wrong\n")
    response = requests.post(f"{url}/scoring", json=TWO, headers=right, timeout=300)
    assert response.status_code == 503
    assert "HTTP 401" in response.json()["detail"]
    assert "wrong" not in response.text.replace("not the right one", "")
    (tokens / "inference").write_text("model-token\n")
    assert len(ask("POST", f"{url}/scoring", TWO, headers=right)["results"]) == 1
