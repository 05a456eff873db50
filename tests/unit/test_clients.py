"""Several cells asked as one."""

from __future__ import annotations

from typing import Any, cast

from dsf.client import Client
from dsf.clients import Clients
from dsf.errors import HttpError


def test_a_cell_that_answers_again_is_not_silent_any_more() -> None:
    told: list[str] = []
    answers: dict[Any, object] = {"a": 1, "b": HttpError("refused", "nobody listens")}

    def question(client: Client) -> object:
        found = answers[client]
        if isinstance(found, HttpError):
            raise found
        return found

    fleet = Clients({name: cast("Client", name) for name in ("a", "b")}, told.append)
    assert fleet.ask(question) == fleet.ask(question) == [1]
    assert fleet.silent == {"b": "nobody listens"}
    assert len(told) == 1
    answers["b"] = 2
    assert fleet.ask(question) == [1, 2]
    assert fleet.silent == {}
