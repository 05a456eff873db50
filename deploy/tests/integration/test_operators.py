"""A real API server with the CRDs of other operators accepts the objects for these operators."""

from __future__ import annotations

import contextlib
import json

import pytest
import yaml

from tests.support import chart
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_crds import create_crds
from tests.support.controlplane_fixtures import programs_needed

#: Skupper's CRDs are not in the module proxy; docs/skupper.md lists the checks.
KINDS = chart.FOREIGN_KINDS - {"Connector"}


@pytest.fixture(scope="session")
def operators(control_plane: ControlPlane) -> ControlPlane:
    """The shared API server with these CRDs. Without their files the tests are skipped; in CI they fail."""
    with programs_needed(), contextlib.closing(control_plane.session()) as session:
        manifests = [yaml.load(path.read_text(), Loader=yaml.CSafeLoader) for path in find("operators").glob("*.yaml")]
        assert {manifest["spec"]["names"]["kind"] for manifest in manifests} == KINDS
        create_crds(session, manifests)
    return control_plane


@pytest.mark.parametrize("name", [name for name, kinds in chart.FOREIGN.items() if kinds & KINDS])
def test_chart_objects_are_accepted_by_the_crds_of_other_operators(operators: ControlPlane, name: str) -> None:
    _apply(operators, _render_objects(name))


def test_manifests_beside_the_chart_are_accepted_by_the_crds_of_other_operators(operators: ControlPlane) -> None:
    objects = [
        document
        for path in sorted((chart.ROOT / "deploy").rglob("*.yaml"))
        if not path.is_relative_to(chart.CHART)
        for document in yaml.safe_load_all(path.read_text())
        if document and document.get("kind") in KINDS
    ]
    assert {o["kind"] for o in objects} == {"ServiceMonitor", "PrometheusRule"}
    _apply(operators, objects)


def test_unknown_field_is_refused_by_the_crds_of_other_operators(operators: ControlPlane) -> None:
    # Without this test the others would prove nothing.
    objects = [o for name in chart.FOREIGN for o in _render_objects(name)]
    objects_with_typos = [chart.of_kind(objects, kind)[0] for kind in sorted(KINDS)]
    for obj in objects_with_typos:
        obj["spec"]["misspelt"] = "1"
    output = _apply(operators, objects_with_typos, is_taken=False)
    assert output.count(".spec.misspelt: field not declared in schema") == len(KINDS), output


def _render_objects(name: str) -> list[chart.Object]:
    objects = chart.render(chart.MATRIX[name])
    return chart.of_kind([*objects, *chart.agent_objects(objects)], *KINDS)


def _apply(plane: ControlPlane, objects: list[chart.Object], *, is_taken: bool = True) -> str:
    """Apply objects in a separate namespace, and return kubectl's output.

    The objects are sent as single documents, because kubectl validates a List by itself.
    """
    namespace = plane.namespace("operators")
    manifests = [json.dumps(o | {"metadata": o["metadata"] | {"namespace": namespace}}) for o in objects]
    arguments = ("apply", "--server-side", "--validate=strict", "-f", "-")
    output = plane.kubectl(*arguments, stdin="\n".join(manifests), check=is_taken)
    assert output.count("serverside-applied") == (len(objects) if is_taken else 0), output
    assert "Warning" not in output
    return output
