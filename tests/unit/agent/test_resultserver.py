"""Who gets the last results from the agent's HTTP port."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsf.agent.resultserver import PATH, add_results
from dsf.api.summary import ScorerSummary
from dsf.cycle.composite import LastResults


async def _deny(scope: Any, receive: Any, send: Any) -> None:
    del receive
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})


def get_status(client: Any, path: str = PATH) -> int:
    results = LastResults()
    results.put(ScorerSummary(name="cpu", score_name="cpu"), [({}, 1.0)], 60.0)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"scorer=cpu", "client": client}
    asyncio.run(add_results(_deny, results)(scope, None, send))  # type: ignore[arg-type]
    return int(messages[0]["status"])


@pytest.mark.parametrize("client", [("127.0.0.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1)])
def test_last_results_are_answered_to_clients_on_this_machine(client: tuple[str, int]) -> None:
    assert get_status(client) == 200
    assert get_status(client, "/other") == 404


@pytest.mark.parametrize("client", [("10.1.2.3", 1), ("::ffff:10.1.2.3", 1), ("fe80::1", 1), ("testclient", 1), None])
def test_last_results_are_hidden_from_other_clients(client: Any) -> None:
    assert get_status(client) == 404
