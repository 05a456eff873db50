"""A scoring API that asks a large language model for the next value of each series; that value is the score.

The model is behind an endpoint that speaks OpenAI's completions protocol, as vLLM does. An answer that is not one
number, a number far from all samples, or no answer is no score: such a series is left out and counted, and never a 0.
When the model answers nothing at all, the request fails with 503, so that the last scores stay. Start it with
`uvicorn app:app --port 8000`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections import Counter
from pathlib import Path
from string import Template
from urllib.parse import urlsplit

import httpx2

from dsf.scorer import Bearer, Limits, Prometheus, Score, Scorer, ScorerError, Series, Skipped, Unavailable, env_number

log = logging.getLogger("llm-forecast-scorer")

FOLDER = Path(__file__).parent
MODEL_NAME = os.environ.get("MODEL_NAME") or "Qwen/Qwen2.5-14B-Instruct"
#: Sent as a bearer token. A mounted Secret, say; it is read for every scoring request, so that rotation takes effect.
TOKEN_FILE = os.environ.get("INFERENCE_TOKEN_FILE", "")
#: Seconds for one answer of the model, and for all of a scoring request. Agents wait 30 s by default.
INFERENCE_TIMEOUT = env_number("INFERENCE_TIMEOUT", 10, least=0.1)
SCORING_TIMEOUT = env_number("SCORING_TIMEOUT", 25, least=0.1)
#: Questions that wait for an answer at a time, of all scoring requests together.
CONCURRENCY = int(env_number("CONCURRENCY", 8, least=1, whole=True))
#: Newest samples that go into the prompt.
MAX_SAMPLES = int(env_number("MAX_SAMPLES", 120, least=1, whole=True))
#: Tokens of an answer: a number has less.
_MAX_TOKENS = 32
#: Bytes of an answer with all that is around the text.
_MAX_BYTES = 1024 * 1024
#: A line that is one number, perhaps after the last words of the prompt, in bold, or with a full stop. A number among
#: other words may be a time, a count or a unit's: `In 5 minutes: 0.7`, `1718600060, 0.52`, `12,000`.
_ANSWER = re.compile(
    r"(?:the next value is:?)?\s*(?P<mark>\*\*|`)?"
    r"(?P<number>[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:e[-+]?[0-9]+)?)(?(mark)(?P=mark))\.?",
    re.ASCII | re.IGNORECASE,
)


class NoAnswerError(Exception):
    """The model gave no answer that can be read. `reason` is a snake_case word, the message is for the log."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def endpoint() -> str:
    """The URL to ask, from VLLM_ENDPOINT or INFERENCE_ENDPOINT. Raises ScorerError when it is none."""
    variable = "VLLM_ENDPOINT" if os.environ.get("VLLM_ENDPOINT") else "INFERENCE_ENDPOINT"
    url = os.environ.get(variable) or "http://localhost:8000/v1/completions"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ScorerError(
            f"the environment variable {variable} is {url!r}; it must be the URL of a completions endpoint"
        )
    path = {"": "/v1/completions", "/v1": "/v1/completions"}.get(parts.path.rstrip("/"), parts.path)
    return parts._replace(path=path).geturl()


def read_template() -> Template:
    """The prompt, from the file that PROMPT_FILE names. Raises ScorerError."""
    file = Path(os.environ.get("PROMPT_FILE") or FOLDER / "prompt.txt")
    try:
        template = Template(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScorerError(f"cannot read the prompt {file}: {error}") from None
    known = {"labels", "context", "samples"}
    if not template.is_valid() or not {"samples"} <= set(template.get_identifiers()) <= known:
        raise ScorerError(
            f"the prompt {file} must have $samples and may have $labels and $context, and no other $name; "
            "a dollar sign is $$"
        )
    return template


def read_context() -> str:
    """What else the model should know, from the file that CONTEXT_FILE names. Raises ScorerError."""
    file = Path(os.environ.get("CONTEXT_FILE") or FOLDER / "context.txt")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ScorerError(f"cannot read the context {file}: {error}") from None


ENDPOINT = endpoint()
PROMPT = read_template()
CONTEXT = read_context()

app = Scorer(
    name="llm-forecast-scorer",
    description="A sample score for time series data with LLM-based forecasting",
    score_name="llm_forecast_score",
    interval=60,
    source=Prometheus(
        host="http://kube-prometheus-kube-prome-prometheus.monitoring.svc:9090",
        path="/api/v1/query_range",
        query='sum by (node, namespace, pod) (rate(container_cpu_usage_seconds_total{container!="", pod!=""}[1m]))',
        range=3600,
        step=60,
    ),
    # Every caller of this service uses the model's time.
    token=Bearer(file=os.environ["API_TOKEN_FILE"]) if os.environ.get("API_TOKEN_FILE") else None,
    # Far more than any model answers for in time; each waits for its turn in memory.
    limits=Limits(series=10_000),
    env="",
)

_turns = asyncio.Semaphore(CONCURRENCY)


@app.score
async def predict(series: list[Series]) -> list[Score | Skipped]:
    """The next value of each series. Raises Unavailable when there is none because of the model."""
    headers = authorization()
    deadline = asyncio.get_running_loop().time() + SCORING_TIMEOUT
    failures: Counter[str] = Counter()
    limits = httpx2.Limits(max_connections=CONCURRENCY)
    async with httpx2.AsyncClient(headers=headers, timeout=INFERENCE_TIMEOUT, limits=limits) as client:

        async def one_score(one: Series) -> Score | Skipped:
            known = one.finite()
            if known.is_empty:
                return one.skip("no_samples")
            try:
                async with asyncio.timeout_at(deadline), _turns:
                    text = await answer(client, prompt(known))
            except TimeoutError:
                failures[f"not done within {SCORING_TIMEOUT:g} s"] += 1
                return one.skip("deadline")
            except NoAnswerError as error:
                failures[str(error)] += 1
                return one.skip(error.reason)
            value = next_value(text)
            if value is None:
                return one.skip("no_number")
            return one.score(value) if is_near(value, known) else one.skip("out_of_range")

        given = await asyncio.gather(*map(one_score, series))
    for message, times in failures.items():
        log.warning("no answer of the model endpoint=%s times=%d reason=%s", ENDPOINT, times, message)
    if failures and not any(isinstance(one, Score) for one in given):
        raise Unavailable(f"the language model gave no answer: {failures.most_common(1)[0][0]}")
    return given


def authorization() -> dict[str, str]:
    """The header with the token. Raises Unavailable when there should be one and is none."""
    if not TOKEN_FILE:
        return {}
    try:
        token = Path(TOKEN_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"cannot read the token for the language model: {type(error).__name__}") from None
    if not token:
        raise Unavailable("the token for the language model is empty")
    return {"Authorization": f"Bearer {token}"}


def prompt(known: Series) -> str:
    """What the model is asked about a series without NaN."""
    times, values = known.times[-MAX_SAMPLES:].tolist(), known.values[-MAX_SAMPLES:].tolist()
    lines = (f"{time:.0f}, {value:.6g}" for time, value in zip(times, values, strict=True))
    return PROMPT.substitute(
        # As JSON: a label with a line break stays within its line.
        labels=json.dumps(known.labels, ensure_ascii=False),
        context=CONTEXT,
        samples="\n".join(lines),
    )


async def answer(client: httpx2.AsyncClient, text: str) -> str:
    """What the model says. Raises NoAnswerError."""
    # Temperature 0: the likeliest number. Equal prompts may differ in it all the same, by how the server computes them.
    request = {"model": MODEL_NAME, "prompt": text, "max_tokens": _MAX_TOKENS, "temperature": 0}
    try:
        # Of the client's own time-outs each is for one read or write; this one is for all of them.
        async with asyncio.timeout(INFERENCE_TIMEOUT):
            status, body = await exchange(client, request)
    except TimeoutError:
        raise NoAnswerError("llm_timeout", f"no answer within {INFERENCE_TIMEOUT:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NoAnswerError("llm_unreachable", type(error).__name__) from None
    if status in (401, 403):
        raise NoAnswerError("llm_unauthorized", f"HTTP {status}: the token is missing or not the right one")
    if status != 200:
        raise NoAnswerError("llm_error", f"HTTP {status}")
    try:
        said = json.loads(body)["choices"][0]["text"]
    except (ValueError, LookupError, TypeError, RecursionError):
        said = None
    if not isinstance(said, str):
        raise NoAnswerError("llm_bad_answer", "the answer is not one of the completions protocol")
    return said


async def exchange(client: httpx2.AsyncClient, request: dict[str, object]) -> tuple[int, bytes]:
    """Status and body. Raises NoAnswerError when the body is too large, and what the client raises."""
    async with client.stream("POST", ENDPOINT, json=request) as response:
        body = b""
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _MAX_BYTES:
                raise NoAnswerError("llm_bad_answer", f"the answer has more than {_MAX_BYTES} bytes")
    return response.status_code, body


def next_value(said: str) -> float | None:
    """The number that is all of the first line of an answer; None when that line is something else.

    What follows is not looked at: a model that was trained to continue texts goes on until it is stopped.
    """
    found = _ANSWER.fullmatch(said.strip().partition("\n")[0].strip())
    return float(found["number"]) if found else None


def is_near(value: float, known: Series) -> bool:
    """Whether a value is in the range of the samples in the prompt, or beyond it by its width or their size at most.

    A model that lost its way says any number: a time, a label's, one of the prompt.
    """
    shown = known.values[-MAX_SAMPLES:]
    low, high = float(shown.min()), float(shown.max())
    width = max(high - low, abs(low), abs(high))
    return low - width <= value <= high + width
