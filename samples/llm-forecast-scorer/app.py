"""A scoring API that asks a large language model for the next value of each series, which becomes the score.

The model is behind an endpoint that speaks OpenAI's completions protocol, as vLLM does. A response that is not one
number, a number far from all samples, or no response is no score: such a series is left out and counted, and never a 0.
When the model has a usable number for no series, the request fails with 503, so that the last scores stay. Start it
with `uvicorn app:app --port 8000`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from pathlib import Path
from string import Template
from urllib.parse import urlsplit

import httpx2

from dsf.scorer import Bearer, Limits, Prometheus, Score, Scorer, ScorerError, Series, Skipped, Unavailable, env_number

log = logging.getLogger("llm-forecast-scorer")

FOLDER = Path(__file__).parent
MODEL_NAME = os.environ.get("MODEL_NAME") or "Qwen/Qwen2.5-14B-Instruct"
#: Path of a file with a bearer token, such as a mounted Secret. It is read for every scoring request, so that a
#: rotated token takes effect.
TOKEN_FILE = os.environ.get("INFERENCE_TOKEN_FILE", "")
#: Seconds for one response of the model, and for a whole scoring request. Agents wait 30 s by default.
INFERENCE_TIMEOUT = env_number("INFERENCE_TIMEOUT", 10, least=0.1)
SCORING_TIMEOUT = env_number("SCORING_TIMEOUT", 25, least=0.1)
#: Maximum concurrent requests to the model, of all scoring requests together.
CONCURRENCY = int(env_number("CONCURRENCY", 8, least=1, whole=True))
#: Number of newest samples in the prompt.
MAX_SAMPLES = int(env_number("MAX_SAMPLES", 120, least=1, whole=True))
#: Maximum tokens of a response: a number has fewer. Models that reason before the result need some thousands.
MAX_TOKENS = int(env_number("MAX_TOKENS", 32, least=1, whole=True))
#: Maximum bytes of a response, including the JSON around the text.
_MAX_BYTES = 1024 * 1024
_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:e[-+]?[0-9]+)?"
#: A line that is one number, perhaps after the last words of the prompt, in quotes, in bold, in a box of LaTeX, in an
#: object or array of JSON, or with a full stop. A number among other words may be a time, a count or a unit's:
#: `In 5 minutes: 0.7`, `1718600060, 0.52`, `12,000`.
_ANSWER = re.compile(
    rf"""
    (?:(?:the\ )?(?:(?:next|predicted|forecast|final)\ )?(?:value|answer|prediction|forecast)\ ?(?:is\ ?:?|[:=])?)?\s*
    (?:
        (?P<mark>\*\*|\*|`|"|'|\$)?
        (?P<plain>{_NUMBER}|\\boxed\{{\s*{_NUMBER}\s*\}})
        (?(mark)(?P=mark))
        | \[\s*(?P<item>{_NUMBER})\s*\]
        | \{{\s*"[a-z_ ]{{1,40}}"\s*:\s*(?P<quote>"?)(?P<field>{_NUMBER})(?P=quote)\s*\}}
    )\.?
    """,
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
#: The end of the reasoning of a model that prints it; the prompt of some models contains its beginning.
_THOUGHTS_END = re.compile(r".*</(?:think|thinking|thought|reasoning)>", re.DOTALL | re.IGNORECASE)
#: A block of code, possibly after a line of text, and possibly not closed.
_FENCE = re.compile(
    r"(?:[^\n`]*\n)?\s*(?:```|~~~)[a-z]*\s*\n?(?P<inside>.*?)(?:```.*|~~~.*|\Z)", re.DOTALL | re.IGNORECASE
)
#: Maximum characters of a response or an error in a message.
_EXCERPT = 200


class NoAnswerError(Exception):
    """The model gave no usable response. `reason` is a snake_case word, the message is for the log.

    `retry_after` is the number of seconds that the server asks clients to wait.
    """

    def __init__(self, reason: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


def endpoint() -> str:
    """Return the model's URL from VLLM_ENDPOINT or INFERENCE_ENDPOINT. Raises ScorerError if it is invalid."""
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
    """Return the prompt from the file that PROMPT_FILE names. Raises ScorerError."""
    file = Path(os.environ.get("PROMPT_FILE") or FOLDER / "prompt.txt")
    try:
        template = Template(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScorerError(f"cannot read the prompt {file}: {error}") from None
    fields = {"labels", "context", "samples"}
    if not template.is_valid() or not {"samples"} <= set(template.get_identifiers()) <= fields:
        raise ScorerError(
            f"the prompt {file} must have $samples and may have $labels and $context, and no other $name; "
            "a dollar sign is $$"
        )
    return template


def read_context() -> str:
    """Return further facts for the model from the file that CONTEXT_FILE names. Raises ScorerError."""
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
        query=(
            # Each container once, however many jobs scrape the kubelets.
            "sum by (node, namespace, pod) (max by (node, namespace, pod, container) ("
            'rate(container_cpu_usage_seconds_total{container!="", pod!=""}[5m])))'
        ),
        range=3600,
        step=60,
    ),
    # With a token, because every caller of this service uses the model's time.
    token=Bearer(file=os.environ["API_TOKEN_FILE"]) if os.environ.get("API_TOKEN_FILE") else None,
    # More series than any model handles in time; each waits for its turn in memory.
    limits=Limits(series=10_000),
    env="",
)

_semaphore = asyncio.Semaphore(CONCURRENCY)


@app.score
async def predict(series: list[Series]) -> list[Score | Skipped]:
    """Return the next value of each series. Raises Unavailable if the model has a usable number for none of them."""
    headers = authorization()
    deadline = asyncio.get_running_loop().time() + SCORING_TIMEOUT
    failures: dict[str, list[NoAnswerError]] = {}
    limits = httpx2.Limits(max_connections=CONCURRENCY)
    async with httpx2.AsyncClient(headers=headers, timeout=INFERENCE_TIMEOUT, limits=limits) as client:

        async def score_series(item: Series) -> Score | Skipped:
            finite = item.finite()
            if finite.is_empty:
                return item.skip("no_samples")
            try:
                async with asyncio.timeout_at(deadline), _semaphore:
                    return item.score(usable_value(await answer(client, prompt(finite)), finite))
            except TimeoutError:
                error = NoAnswerError("deadline", f"not done within {SCORING_TIMEOUT:g} s")
            except NoAnswerError as failure:
                error = failure
            failures.setdefault(error.reason, []).append(error)
            return item.skip(error.reason)

        scores = await asyncio.gather(*map(score_series, series))
    for reason, errors in failures.items():
        log.warning("no number endpoint=%s times=%d reason=%s: %s", ENDPOINT, len(errors), reason, errors[0])
    if failures and not any(isinstance(score, Score) for score in scores):
        error = max(failures.values(), key=len)[0]
        waits = [error.retry_after or 1 for errors in failures.values() for error in errors]
        raise Unavailable(f"the language model gave no usable number: {error}", retry_after=max(waits))
    return scores


def authorization() -> dict[str, str]:
    """Return the header with the token. Raises Unavailable if the token is missing."""
    if not TOKEN_FILE:
        return {}
    try:
        token = Path(TOKEN_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"cannot read the token for the language model: {type(error).__name__}") from None
    if not token:
        raise Unavailable("the token for the language model is empty")
    return {"Authorization": f"Bearer {token}"}


def prompt(samples: Series) -> str:
    """Return the prompt for a series without NaN."""
    times, values = samples.times[-MAX_SAMPLES:].tolist(), samples.values[-MAX_SAMPLES:].tolist()
    lines = (f"{time:.0f}, {value:.6g}" for time, value in zip(times, values, strict=True))
    return PROMPT.substitute(
        # As JSON, so that a label with a line break stays on one line.
        labels=json.dumps(samples.labels, ensure_ascii=False),
        context=CONTEXT,
        samples="\n".join(lines),
    )


async def answer(client: httpx2.AsyncClient, text: str) -> str:
    """Return the text of the model's response. Raises NoAnswerError."""
    # Temperature 0 selects the likeliest number. The server's computation may still vary for equal prompts.
    request = {"model": MODEL_NAME, "prompt": text, "max_tokens": MAX_TOKENS, "temperature": 0}
    try:
        # The client's own timeouts are for single reads and writes; this one is for all of them.
        async with asyncio.timeout(INFERENCE_TIMEOUT):
            response, body = await exchange(client, request)
    except TimeoutError:
        raise NoAnswerError("llm_timeout", f"no answer within {INFERENCE_TIMEOUT:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NoAnswerError("llm_unreachable", type(error).__name__) from None
    if response.status_code in (401, 403):
        raise NoAnswerError(
            "llm_unauthorized", f"HTTP {response.status_code}: the token is missing or not the right one"
        )
    if response.status_code != 200:
        raise refusal(response, body, client.headers.get("Authorization", ""))
    try:
        text = json.loads(body)["choices"][0]["text"]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise NoAnswerError("llm_bad_answer", "the answer is not one of the completions protocol")
    return text


def refusal(response: httpx2.Response, body: bytes, authorization: str) -> NoAnswerError:
    """Return the error for a status other than 200, with the server's text and Retry-After, but without the token."""
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError, RecursionError):
        text = body.decode(errors="replace")
    token = authorization.removeprefix("Bearer ")
    text = str(text).replace(token, "***") if token else str(text)
    wait = response.headers.get("Retry-After", "").strip()
    message = ": ".join(filter(None, (f"HTTP {response.status_code}", excerpt(text))))
    return NoAnswerError(
        "llm_error",
        message + (f" (Retry-After: {excerpt(wait)})" if wait else ""),
        retry_after=int(wait) if wait.isascii() and wait.isdigit() and len(wait) < 6 else None,
    )


def excerpt(text: str) -> str:
    """Return the first characters of a text in one line."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 10 * _EXCERPT]).split())
    return line if len(line) <= _EXCERPT else f"{line[:_EXCERPT]}..."


async def exchange(client: httpx2.AsyncClient, request: dict[str, object]) -> tuple[httpx2.Response, bytes]:
    """Return response and body. Raises NoAnswerError if the body is too large, and the client's errors."""
    async with client.stream("POST", ENDPOINT, json=request) as response:
        body = b""
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _MAX_BYTES:
                raise NoAnswerError("llm_bad_answer", f"the answer has more than {_MAX_BYTES} bytes")
    return response, body


def usable_value(text: str, finite: Series) -> float:
    """Return the number in a response about a series without NaN. Raises NoAnswerError (no_number, out_of_range)."""
    value = next_value(text)
    if value is None:
        raise NoAnswerError("no_number", f"the answer is no number: {excerpt(text)!r}")
    if not is_near(value, finite):
        raise NoAnswerError("out_of_range", f"{value:g} is far from all samples")
    return value


def next_value(text: str) -> float | None:
    """Return the number that is all of the first line of a response; None if that line is something else.

    Thoughts before it and a block of code around it do not count. The rest of the text is ignored: a model that was
    trained to continue texts goes on until it is stopped.
    """
    if thoughts := _THOUGHTS_END.match(text):
        text = text[thoughts.end() :]
    text = text.strip()
    if fence := _FENCE.match(text):
        text = fence["inside"].strip()
    answer = _ANSWER.fullmatch(text.partition("\n")[0].strip())
    if answer is None and text.startswith("{"):
        # JSON on several lines.
        answer = _ANSWER.fullmatch(" ".join(text.split()))
    if answer is None:
        return None
    number = answer["plain"] or answer["item"] or answer["field"]
    return float(number.removeprefix("\\boxed{").removesuffix("}"))


def is_near(value: float, samples: Series) -> bool:
    """Whether a value is in the range of the samples in the prompt, or beyond it by its width or their size at most.

    A model that lost its way says any number: a time, a label's, one of the prompt.
    """
    recent_values = samples.values[-MAX_SAMPLES:]
    low, high = float(recent_values.min()), float(recent_values.max())
    width = max(high - low, abs(low), abs(high))
    return low - width <= value <= high + width
