"""A language model behind OpenAI's completions protocol, as vLLM serves it, with scripted responses."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from tests.support.httpserver import Exchange, ScriptedServer, answer

MODEL = "test/model-1b"


class LanguageModel:
    """Responds to prompts. A context manager.

    `says` is the text of each response, `seconds` its delay, `token` the required token.
    """

    def __init__(self) -> None:
        self.says = "1.5"
        self.seconds = 0.0
        self.token = ""
        #: Prompts so far, and the most that were thought about at a time.
        self.prompts: list[str] = []
        self.most = 0
        self._running = 0
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self.server = ScriptedServer(self._handle)

    @property
    def url(self) -> str:
        """The completions endpoint."""
        return f"{self.server.url}/v1/completions"

    def _handle(self, exchange: Exchange) -> None:
        request = exchange.request
        expected_authorization = f"Bearer {self.token}" if self.token else None
        if (request.method, request.path) != ("POST", "/v1/completions"):
            self._error(exchange, 404, "Not Found")
        elif expected_authorization and request.headers.get("Authorization") != expected_authorization:
            self._error(exchange, 401, "Unauthorized")
        else:
            self._complete(exchange, request.json())

    def _complete(self, exchange: Exchange, request: dict[str, Any]) -> None:
        if request.get("model") != MODEL:
            self._error(exchange, 404, f"The model `{request.get('model')}` does not exist.")
            return
        if not isinstance(request.get("prompt"), str) or not isinstance(request.get("max_tokens"), int):
            self._error(exchange, 400, "prompt must be text and max_tokens a whole number")
            return
        with self._lock:
            self.prompts.append(request["prompt"])
            self._running += 1
            self.most = max(self.most, self._running)
        exchange.closing.wait(self.seconds)
        with self._lock:
            self._running -= 1
        tokens = self.says.split()[: request["max_tokens"]]
        choice = {"index": 0, "text": self.says, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        usage = {"prompt_tokens": 9, "completion_tokens": len(tokens), "total_tokens": 9 + len(tokens)}
        document = {
            "id": f"cmpl-{next(self._ids)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
        }
        answer(document)(exchange)

    @staticmethod
    def _error(exchange: Exchange, status: int, message: str) -> None:
        error = {"object": "error", "message": message, "type": "Error", "param": None, "code": status}
        answer({"error": error}, status)(exchange)

    def __enter__(self) -> LanguageModel:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()
