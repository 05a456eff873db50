"""Manifests that upstream's CRDs accept apply here too, except for those that docs/migration.md lists.

The strategies are the schemas of upstream's CRDs (commit 8fc014d): fields, types, required fields and enums; they have
no other rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import DynamicScoringConfig
from dsf.api.types import API_VERSION
from dsf.kube.resources import DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS, Resource
from dsf.kube.session import ApiServerError, Session
from tests.support.controlplane import ControlPlane

PAGE = (Path(__file__).parents[3] / "docs" / "migration.md").read_text()
#: Words of a refusal -> words of the row in the table of manifests to change.
LISTED: Final = {
    "spec.configURL in body should match": "a `configURL` that is not http or https",
    "spec.scoring.params.interval in body should be greater than or equal to 1": "an interval below 1",
    "spec.source.params.range in body should be greater than or equal to 0": "a negative range or step",
    "spec.source.params.step in body should be greater than or equal to 0": "a negative range or step",
    "should be less than or equal to 2147483647": "a whole number above 2147483647",
    "needs params.query, params.range and params.step": "`configSyncMode: None` with a source of type Prometheus",
    "should be at least 1 chars long": "a mask with an empty `clusterName` or `scoreName`",
}
_text = st.sampled_from(["", "a", "up;up", "${node};${pod}", "http://prometheus:9090", "/api/v1/query_range"])
_number = st.sampled_from([-1, 0, 1, 60, 2**31 - 1, 2**31, 2**62])


def _object(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


_TOKEN = _object({"tokenSecretRef": _object({"name": _text, "key": _text}, {})}, {})
_SCORER = _object(
    {
        "description": _text,
        "configURL": st.sampled_from(["http://s.test:8000/config", "https://s.test/config", "s.test/config", ""]),
        "configSyncMode": st.sampled_from(["Full", "None"]),
    },
    {
        "location": st.sampled_from(["Internal", "External"]),
        "scoreDestination": st.sampled_from(["AddOnPlacementScore", "None"]),
        "scoreDimensionFormat": _text,
        "source": _object(
            {},
            {
                "type": st.sampled_from(["Prometheus", "None"]),
                "host": _text,
                "path": _text,
                "auth": _TOKEN,
                "params": _object({"query": _text, "range": _number, "step": _number}, {}),
            },
        ),
        "scoring": _object(
            {},
            {
                "host": _text,
                "path": _text,
                "auth": _TOKEN,
                "params": _object({"name": _text, "interval": _number}, {}),
            },
        ),
    },
)
_NAME = st.sampled_from(["", "a", "*", "two words"])
_CONFIG = _object({}, {"masks": st.lists(_object({"clusterName": _NAME, "scoreName": _NAME}, {}), max_size=3)})
_generated = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@pytest.fixture(scope="module")
def namespace(control_plane: ControlPlane) -> str:
    return control_plane.namespace("upstream")


def _refusal(session: Session, resource: Resource, namespace: str, spec: dict[str, Any]) -> str:
    """Return the API server's refusal of this object; empty if it accepts the object. The request is a dry run."""
    manifest = {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "metadata": {"name": "generated", "namespace": namespace},
        "spec": spec,
    }
    model = DynamicScorer if resource is DYNAMIC_SCORERS else DynamicScoringConfig
    try:
        session.request("POST", resource.path(namespace), query={"dryRun": "All"}, body=manifest)
    except ApiServerError as error:
        return str(error)
    try:
        model.from_manifest(manifest)
    except ValidationError as error:
        pytest.fail(f"the API server takes what the hub cannot read: {error}")
    return ""


@_generated
@given(spec=_SCORER)
def test_scorers_that_upstream_accepts_apply_unless_listed(
    session: Session, namespace: str, spec: dict[str, Any]
) -> None:
    refusal = _refusal(session, DYNAMIC_SCORERS, namespace, spec)
    assert not refusal or any(listed_message in refusal for listed_message in LISTED), refusal


@_generated
@given(spec=_CONFIG)
def test_configurations_that_upstream_accepts_apply_unless_listed(
    session: Session, namespace: str, spec: dict[str, Any]
) -> None:
    refusal = _refusal(session, DYNAMIC_SCORING_CONFIGS, namespace, spec)
    assert not refusal or any(listed_message in refusal for listed_message in LISTED), refusal
    assert bool(refusal) == any("" in mask.values() for mask in spec.get("masks", ()))


@pytest.mark.parametrize("row", sorted(set(LISTED.values())))
def test_refusals_are_listed_in_the_migration_table(row: str) -> None:
    table = PAGE.partition("### Manifests to change")[2].partition("\n## ")[0]
    assert row in table
