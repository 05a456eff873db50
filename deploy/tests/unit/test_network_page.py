"""docs/network.md names every port that the chart's NetworkPolicies admit, every process and every exposure type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import chart

PAGE = (chart.ROOT / "docs" / "network.md").read_text(encoding="utf-8")
#: All that may be reached: in both modes with the optimiser, and with OTLP on the agent.
EVERY_SERVER: chart.Values = {
    "optimizer": {"enabled": True},
    "networkPolicy": {"optimizerFrom": [{"podSelector": {}}], "flowerFrom": [{"podSelector": {}}]},
    "spokeSetting": {"agent": {"sources": {"otlp": {"enabled": True}}}},
}


def _rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def _numbers(cell: str) -> set[int]:
    return {int(number) for number in re.findall(r"\b\d+\b", cell)}


def _iterate_admitted(objects: list[chart.Object]) -> Iterator[tuple[str, int]]:
    """Yield the process and port of each rule for incoming connections."""
    for policy in chart.of_kind(objects, "NetworkPolicy"):
        component = policy["metadata"]["name"].removeprefix("dynamic-scoring-").removesuffix("-otlp")
        for rule in policy["spec"].get("ingress") or []:
            for port in rule["ports"]:
                yield component, port["port"]


@pytest.mark.parametrize("mode", chart.MODES)
def test_each_port_that_a_policy_admits_has_a_row(mode: str) -> None:
    objects = chart.render(EVERY_SERVER | {"mode": mode})
    admitted = set(_iterate_admitted(objects)) | set(_iterate_admitted(chart.agent_objects(objects)))
    assert {"redis", "flower", "optimizer", "agent"} <= {component for component, _ in admitted}
    rows = [*_rows("On the hub"), *_rows("On each managed cluster")]
    for component, port in sorted(admitted):
        name = component if component == "agent" else f"`{component}`"
        assert any(name in row[1] and port in _numbers(row[2]) for row in rows), f"no row for {component}:{port}"


@pytest.mark.parametrize("mode", chart.MODES)
def test_each_port_that_a_process_may_connect_to_has_a_row(mode: str) -> None:
    rows = _rows("On the hub")
    for policy in chart.of_kind(chart.render(EVERY_SERVER | {"mode": mode}), "NetworkPolicy"):
        component = policy["metadata"]["name"].removeprefix("dynamic-scoring-")
        rules: list[dict[str, Any]] = policy["spec"]["egress"] or []
        for port in {port["port"] for rule in rules for port in rule.get("ports", [])}:
            senders = [row[0] for row in rows if port in _numbers(row[2])]
            assert any(f"`{component}`" in cell or cell.startswith("all of them") for cell in senders), (
                component,
                port,
            )


def test_each_exposure_type_has_a_row() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
    types = schema["properties"]["redis"]["properties"]["exposure"]["properties"]["type"]["enum"]
    assert {name for row in _rows("From managed clusters to the hub") for name in re.findall(r"`(\w+)`", row[0])} == {
        name for name in types if name
    }


def test_default_node_port_is_on_the_page() -> None:
    (row,) = [row for row in _rows("From managed clusters to the hub") if row[0] == "`NodePort`"]
    service = chart.find_object(
        chart.render({"redis": {"exposure": {"type": "NodePort", "host": "node.example.com"}}}),
        "Service",
        "dynamic-scoring-redis-external",
    )
    assert {port["nodePort"] for port in service["spec"]["ports"]} == _numbers(row[3])


def test_no_webhook_is_installed() -> None:
    kinds = {resource["kind"] for resource in chart.render(chart.EVERYTHING)}
    assert not {kind for kind in kinds if "Webhook" in kind}
    definitions = "".join(path.read_text(encoding="utf-8") for path in chart.CHART.rglob("crds.yaml"))
    assert "kind: CustomResourceDefinition" in definitions
    assert "webhook" not in definitions.lower()
