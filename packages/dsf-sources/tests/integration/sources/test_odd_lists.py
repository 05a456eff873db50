"""Responses that a real API server does not send: lists of another shape."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from dsf.api.objectsource import ObjectSource
from dsf.errors import HttpError
from dsf.owncluster.kubelisting import KubeListing
from tests.integration.kube.stub import Exchange, StubServer

KIND = {"kind": "Deployment", "name": "deployments", "verbs": ["list"], "namespaced": True}
WANTED = ObjectSource.model_validate(
    {"apiVersion": "apps/v1", "kind": "Deployment", "fields": [{"name": "replicas", "path": "spec.replicas"}]},
    by_alias=True,
)


def list_all_pages(*pages: dict[str, Any], kinds: Any = (KIND,)) -> list[Any]:
    """Return all objects of these pages, from a server that lists these kinds."""
    remaining_pages = list(pages)

    def response(exchange: Exchange) -> None:
        exchange.answer({"resources": kinds} if exchange.path == "/apis/apps/v1" else remaining_pages.pop(0))

    deadline = time.monotonic() + 30
    with StubServer(response) as server, contextlib.closing(server.session()) as session:
        listing = KubeListing(session, ["deployments.apps"], WANTED, deadline)
        return [item for items, _ in listing.iterate_pages(1_000_000, deadline) for item in items]


def test_missing_list_fields_count_as_empty() -> None:
    assert list_all_pages({}) == []
    assert list_all_pages({"items": None, "metadata": None}) == []
    pages = ({"items": [{}, {"metadata": None}], "metadata": {"continue": "more"}}, {"items": [{"spec": 1}]})
    assert list_all_pages(*pages) == [{}, {"metadata": None}, {"spec": 1}]


@pytest.mark.parametrize(
    "page",
    [
        {"items": "all"},
        {"items": {"a": {}}},
        {"items": ["a"]},
        {"items": [{"metadata": ["name"]}]},
        {"items": [], "metadata": "more"},
    ],
)
def test_malformed_list_is_a_bad_answer(page: dict[str, Any]) -> None:
    with pytest.raises(HttpError, match=r"the list of deployments\.apps is no list of objects") as caught:
        list_all_pages(page)
    assert caught.value.reason == "bad_answer"


@pytest.mark.parametrize(
    "kinds",
    ["all", 7, ["a"], [{"kind": "Deployment"}], [KIND | {"verbs": None}], [KIND | {"name": 7}]],
)
def test_kinds_of_another_shape_are_a_bad_answer(kinds: Any) -> None:
    with pytest.raises(HttpError, match=r"the list of kinds in apps/v1 cannot be read") as caught:
        list_all_pages(kinds=kinds)
    assert caught.value.reason == "bad_answer"


@pytest.mark.parametrize(("status", "expected"), [(429, 7), (503, 7), (500, None), (400, None)])
def test_retry_after_of_a_busy_server_is_kept_for_later_cycles(status: int, expected: int | None) -> None:
    def response(exchange: Exchange) -> None:
        exchange.answer({"message": "too many requests"}, status, Retry_After="7")

    with (
        StubServer(response) as server,
        contextlib.closing(server.session()) as session,
        pytest.raises(HttpError) as caught,
    ):
        KubeListing(session, ["deployments.apps"], WANTED, time.monotonic() + 30)
    assert (caught.value.retry_after, caught.value.retryable) == (expected, status != 400)
