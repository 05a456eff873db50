"""The source Object: its manifest, paths, values, and series from objects, without an API server."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api.objectsource import DENIED, DENIED_RULE, ObjectSource
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.summary import ScorerSummary, parse_summaries
from dsf.api.types import ResolveReason
from dsf.errors import HttpError, ResolutionError
from dsf.owncluster.background import OwnCluster
from dsf.owncluster.kubelisting import format_selector
from dsf.owncluster.objects import PLUGIN, RefusedValueError, get_value, parse_number
from dsf.settings import Settings
from dsf.sources.base import FetchContext, RequestRecord
from dsf.sources.memory import SourceMemory
from dsf.sources.plugin import query_plugin
from dsf.sources.window import WindowBudget
from tests.unit.api.test_resolution import summary as resolved

OBJECT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "fields": [{"name": "ready", "path": "status.ready"}],
}


def object_source(**changes: Any) -> ObjectSource:
    return ObjectSource.model_validate(OBJECT | changes, by_alias=True, by_name=False)


def cluster_object(name: str, namespace: str = "shop", **rest: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": {"a/b.c": "x"}}, **rest}


class View:
    """A cluster with these objects, one per page, and a listing of them."""

    url = "/apis/apps/v1/deployments?limit=100 of this cluster"

    def __init__(self, *objects: Mapping[str, Any]) -> None:
        self.objects = objects
        self.listed_sources: list[ObjectSource] = []

    def make_listing(self, source: ObjectSource, deadline: float) -> View:
        self.listed_sources.append(source)
        return self

    def iterate_pages(self, max_bytes: int, deadline: float) -> Iterator[tuple[Sequence[Mapping[str, Any]], int]]:
        for cluster_item in self.objects:
            yield [cluster_item], 100


class Running(OwnCluster):
    """The memory of an agent, without a connection."""

    def __init__(self, view: View) -> None:
        self.cluster = view  # type: ignore[assignment]
        self.outcome_counts = Counter()
        self._lock = threading.Lock()

    def tidy(self) -> None:
        """Start no watch."""


class Agent:
    """An agent with one scorer; without a view it runs outside of Kubernetes."""

    def __init__(self, view: View | None, source: Mapping[str, Any] = OBJECT, **fields: Any) -> None:
        self.summary = ScorerSummary(
            name="s",
            score_name="s",
            source_type="Object",
            scoring_interval=30,
            source_query=json.dumps(source),
            **fields,
        )
        self.memory = SourceMemory(WindowBudget(100, 1000), lambda: {"s": self.summary})
        self.memory.settings = Settings(agent_kube=False)
        self.running = Running(view) if view is not None else None
        self.plugin = PLUGIN if view is None else replace(PLUGIN, start=lambda *_: self.running)  # type: ignore[arg-type]
        self.questions: list[RequestRecord] = []

    @property
    def values(self) -> dict[str, int]:
        """Return the outcomes of fields."""
        assert self.running is not None
        return self.running.outcome_counts

    def query(self, now: float = 1000.0) -> dict[tuple[str, ...], list[list[Any]]]:
        """Return values by the labels' values, the metric's name first."""
        context = FetchContext(time.monotonic() + 60, 100_000, now, memory=self.memory, observe=self.questions.append)
        payload = query_plugin(self.plugin, "Object", self.summary, context)
        data = json.loads(b"".join(payload.pieces))["data"]
        assert len(data) == payload.series
        return {tuple(series["metric"].values()): series["values"] for series in data}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status.ready", 2),
        (".status.ready", 2),
        ("status.allocatable['nvidia.com/gpu']", "4"),
        ("items[1].cpu", "1"),
        ("items[7].cpu", None),
        ("items.cpu", None),
        ("status[0]", None),
        ("status.text[0]", None),
        ("status.none.ready", None),
    ],
)
def test_path_reads_one_value(path: str, value: object) -> None:
    assert object_source(fields=[{"name": "a", "path": path}]).fields[0].path == path
    document = {
        "status": {"ready": 2, "allocatable": {"nvidia.com/gpu": "4"}, "text": "word", "none": None},
        "items": [{"cpu": "0"}, {"cpu": "1"}],
    }
    assert get_value(document, path) == value


@pytest.mark.parametrize(
    "path", ["", "a..b", "a[*]", "a[?(@.b==1)]", "a['b'", "{.a}", "a b", "a.", "${cluster}", "a\n"]
)
def test_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        object_source(fields=[{"name": "a", "path": path}])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (0.5, 0.5),
        (True, 1),
        (False, 0),
        ("True", 1),
        ("false", 0),
        ("500m", 0.5),
        ("2Gi", 2 * 2**30),
        ("1e3", 1000),
    ],
)
def test_numbers_quantities_and_booleans(value: object, expected: float) -> None:
    assert parse_number(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("Running", "no_number"),
        ("", "no_number"),
        ("1" * 100, "no_number"),
        ("2026-01-01T00:00:00Z", "no_number"),
        ([1], "no_single_value"),
        ({}, "no_single_value"),
        (10**400, "infinite"),
        ("1e999", "infinite"),
    ],
)
def test_anything_else_is_refused(value: object, reason: str) -> None:
    with pytest.raises(RefusedValueError, match=f"^{reason}$"):
        parse_number(value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(
            ({"apiVersion": f"{group}/v1" if group else "v1", "kind": kind}, DENIED_RULE)
            for group, kinds in DENIED.items()
            for kind in kinds
        ),
        ({"fields": []}, "must not be empty"),
        ({"fields": OBJECT["fields"] * 2}, "the name 'ready' is there twice"),
        (
            {"fields": [{**OBJECT["fields"][0], "labels": [{"name": "namespace", "path": "a"}]}]},
            "has __name__, namespace",
        ),
        ({"selector": {"matchLabels": {"a": "b,c=d"}}}, "keys and values have letters"),
        ({"selector": {}}, "set matchLabels or matchExpressions"),
        ({"namespace": "../secrets"}, "pattern"),
        ({"apiVersion": "../v1"}, "pattern"),
        ({"kind": "deployments/scale"}, "pattern"),
    ],
)
def test_invalid_object_request_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        object_source(**changes)
    assert words in str(caught.value)


def test_secret_kind_of_another_group_is_allowed() -> None:
    assert object_source(apiVersion="example.com/v1", kind="Secret").group == "example.com"


def test_selector_is_written_for_the_api_server() -> None:
    expressions = [
        {"key": "a", "operator": "In", "values": ["b", "c"]},
        {"key": "d", "operator": "NotIn", "values": ["e"]},
        {"key": "f/g", "operator": "Exists"},
        {"key": "h", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"x": "y"}, "matchExpressions": expressions}
    parsed_selector = object_source(selector=selector).selector
    assert parsed_selector is not None
    assert format_selector(parsed_selector) == "x=y,a in (b,c),d notin (e),f/g,!h"


def test_object_field_requires_the_type_object() -> None:
    for source in ({"type": "Object"}, {"object": OBJECT}, {"type": "Kubernetes", "object": OBJECT}):
        with pytest.raises(ValidationError, match="object goes with type Object and only with it"):
            resolved(**source)


def test_object_is_delivered_to_agents_as_a_query() -> None:
    summary = resolved(
        type="Object", host="http://ignored", object=OBJECT, params={"query": "q", "range": 60, "step": 30}
    )
    assert (summary.source_type, summary.source_endpoint) == ("Object", "")
    assert json.loads(summary.source_query) == OBJECT
    assert (summary.source_range, summary.source_step) == (60, 30)
    assert (
        parse_summaries(json.dumps([summary.model_dump(mode="json", by_alias=True)]))[0].source_query
        == summary.source_query
    )


def test_config_cannot_say_what_is_read() -> None:
    scorer = DynamicScorer.from_manifest(
        {
            "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
            "kind": "DynamicScorer",
            "metadata": {"name": "s"},
            "spec": {"description": "d", "configURL": "http://scorer/config", "configSyncMode": "Full"},
            "status": {
                "lastSyncedConfig": {
                    "source": {"type": "Object", "object": OBJECT, "params": {"query": json.dumps(OBJECT)}},
                    "scoring": {"params": {"name": "n", "interval": 30}},
                }
            },
        }
    )
    with pytest.raises(ResolutionError, match=r"source\.object is not set; /config cannot say it") as caught:
        resolve(scorer)
    assert caught.value.reason == ResolveReason.MissingObject


def test_each_object_and_field_gives_a_series() -> None:
    fields = [
        {"name": "ready", "path": "status.ready", "default": 0},
        {
            "name": "cpu",
            "path": "spec.cpu",
            "labels": [
                {"name": "app", "path": "metadata.labels['a/b.c']"},
                {"name": "paused", "path": "spec.paused"},
                {"name": "none", "path": "metadata.labels"},
            ],
        },
    ]
    view = View(
        cluster_object("cart", spec={"cpu": "500m", "paused": True}),
        cluster_object("web", "", status={"ready": 3}),
        cluster_object("odd", status={"ready": "many"}),
    )
    agent = Agent(view, OBJECT | {"fields": fields})
    assert agent.query() == {
        ("ready", "shop", "cart"): [[1000, "0"]],
        ("cpu", "shop", "cart", "x", "true"): [[1000, "0.5"]],
        ("ready", "web"): [[1000, "3"]],
    }
    assert agent.values == {"kept": 3, "absent": 2, "no_number": 1}
    (question,) = agent.questions
    assert (question.url, question.received, question.series) == (View.url, 300, 3)


def test_object_with_too_long_labels_does_not_affect_others() -> None:
    label = {"name": "app", "path": "spec.text"}
    ready = {"name": "ready", "path": "status.ready", "labels": [label]}
    view = View(
        cluster_object("cart", status={"ready": 1}),
        cluster_object("web", spec={"text": "x" * 5000}, status={"ready": 2}),
    )
    agent = Agent(view, OBJECT | {"fields": [ready]})
    assert agent.query() == {("ready", "shop", "cart"): [[1000, "1"]]}
    assert agent.values == {"kept": 1, "labels": 1}


def test_cycles_fill_the_range() -> None:
    view = View(cluster_object("cart", status={"ready": 1}))
    agent = Agent(view, source_range=60, source_step=30)
    agent.query(1000)
    view.objects = (cluster_object("cart", status={"ready": 2}),)
    assert agent.query(1030) == {("ready", "shop", "cart"): [[1000, "1"], [1030, "2"]]}
    view.objects = ()
    agent.query(1060)
    assert agent.query(1090) == {("ready", "shop", "cart"): [[1030, "2"]]}


def test_field_without_any_number_fails_the_cycle() -> None:
    agent = Agent(View(cluster_object("cart", status={"ready": "many"})))
    with pytest.raises(
        HttpError, match=r"status\.ready is no number in any object .* shop/cart \(no_number\)"
    ) as caught:
        agent.query()
    assert caught.value.reason == "bad_answer"
    assert agent.values == {"no_number": 1}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "apiVersion: is required"),
        (OBJECT | {"newer": 1}, "newer: is not a known field"),
        (OBJECT | {"apiVersion": "v1", "kind": "Secret"}, DENIED_RULE),
    ],
)
def test_agent_validates_the_query_of_a_summary(source: dict[str, Any], words: str) -> None:
    view = View(cluster_object("cart"))
    with pytest.raises(HttpError) as caught:
        Agent(view, source).query()
    assert caught.value.reason == "bad_query"
    assert words in str(caught.value)
    assert view.listed_sources == []


def test_outside_of_kubernetes_it_is_refused() -> None:
    with pytest.raises(HttpError, match="DSF_AGENT_KUBE") as caught:
        Agent(None).query()
    assert caught.value.reason == "unsupported_source"
