"""Our CRDs on a real API server: accepted manifests, defaults, columns, and refusals with their messages."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api.crd import dump_crds
from dsf.api.meta import Condition
from dsf.api.remoteconfig import RemoteConfig
from dsf.api.scorer import ClusterNumbers, DynamicScorer, DynamicScorerStatus, FailedCycle
from dsf.api.scoringauthentication import ScoringAuthentication
from dsf.api.types import HealthStatus
from dsf.backends.kube_scores import write_status
from dsf.errors import BackendError
from dsf.hub.cycleoutcomes import CycleOutcomes
from dsf.kube.resources import DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS, SCORING_AUTHENTICATIONS
from dsf.kube.session import Session
from dsf.store.entries import Pace, Pauses, ScheduleOverride
from dsf.store.pairs import PairState, Unwritten
from tests.support.controlplane import ControlPlane
from tests.support.controlplane_crds import create_crds
from tests.support.manifests import CONFIG_URL, config, scorer
from tests.support.wait import wait_for
from tests.unit.auth.test_methods import AUTHENTICATIONS, MANIFESTS, PAGE
from tests.unit.hub.test_conditions import INACTIVE
from tests.unit.hub.test_conditions import status as scorer_status

_RESOURCES = {
    resource.kind: resource for resource in (DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS, SCORING_AUTHENTICATIONS)
}
#: The schema of objects that were stored long ago.
FIRST = Path(__file__).with_name("crds-first.yaml")
OLD_GROUP = "first.example.com"
# As the upstream project's samples are written, every field of theirs used.
UPSTREAM = f"""
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata:
  name: manual
  namespace: NAMESPACE
spec:
  description: Every field of the original project
  configURL: {CONFIG_URL}
  configSyncMode: None
  location: External
  scoreDestination: AddOnPlacementScore
  scoreDimensionFormat: "${{node}}-${{pod}}"
  source:
    type: Prometheus
    host: http://prometheus.monitoring.svc:9090
    path: /api/v1/query_range
    params:
      query: sum by (node) (rate(node_cpu_seconds_total[5m])); up
      range: 3600
      step: 60
    auth:
      tokenSecretRef:
        name: source-token
        key: token
  scoring:
    host: http://sample-scorer.dynamic-scoring.svc:8000
    path: /scoring
    params:
      name: manual_score
      interval: 30
    auth:
      tokenSecretRef:
        name: scoring-token
        key: token
---
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScoringConfig
metadata:
  name: dynamic-scoring-config
  namespace: NAMESPACE
spec:
  mask:
  - clusterName: cluster1
    scoreName: manual_score
"""


def _refusal(session: Session, manifest: dict[str, Any]) -> str:
    """Return the API server's refusal of a new object in a dry run; empty if it accepts the object."""
    path = _RESOURCES[manifest["kind"]].path(manifest["metadata"]["namespace"])
    try:
        session.request("POST", path, query={"dryRun": "All", "fieldValidation": "Strict"}, body=manifest)
    except BackendError as error:
        # Kubernetes 1.31 has another wording.
        message = str(error).replace('Invalid value: "object": ', "Invalid value: ")
        return message.replace("may not be longer than", "may not be more than")
    return ""


def _apply(control_plane: ControlPlane, manifest: dict[str, Any]) -> str:
    return control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def test_crds_are_structural_and_unchanged_by_the_api_server(control_plane: ControlPlane) -> None:
    text = control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=dump_crds())
    assert text.count("serverside-applied") == 3
    for plural in ("dynamicscorers", "dynamicscoringconfigs", "scoringauthentications"):
        name = f"{plural}.dynamic-scoring.open-cluster-management.io"
        status = json.loads(control_plane.kubectl("get", "crd", name, "-o", "json"))["status"]
        conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
        # NonStructuralSchema would be a third one.
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert control_plane.kubectl("diff", "-f", "-", stdin=dump_crds()) == "", (
        "the server fills in what it wants as we do"
    )


def test_upstream_manifests_apply_unchanged(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    text = UPSTREAM.replace("NAMESPACE", namespace)
    assert control_plane.kubectl("apply", "-f", "-", stdin=text).count("created") == 2
    assert control_plane.kubectl("apply", "-f", "-", stdin=text).count("unchanged") == 2
    stored_scorer = session.get(DYNAMIC_SCORERS.path(namespace, "manual"))
    read = DynamicScorer.from_manifest(stored_scorer)
    assert read.spec.source.params is not None
    assert read.spec.source.params.query.endswith("; up")
    assert read.spec.scoring.auth is not None
    masks = session.get(DYNAMIC_SCORING_CONFIGS.path(namespace, "dynamic-scoring-config"))["spec"]
    assert masks == {"mask": [{"clusterName": "cluster1", "scoreName": "manual_score"}]}


def test_objects_of_the_first_crds_are_read_and_changed_under_current_crds(
    control_plane: ControlPlane, session: Session
) -> None:
    """Apply CRDs with a different group, so that they are new to this API server."""
    plane, namespace = control_plane, control_plane.namespace()
    scorers, configs = (replace(resource, group=OLD_GROUP) for resource in (DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS))
    create_crds(session, _of_old_group(FIRST.read_text()))
    manifests = UPSTREAM.replace("NAMESPACE", namespace).replace(DYNAMIC_SCORERS.group, OLD_GROUP)
    assert plane.kubectl("apply", "-f", "-", stdin=manifests).count("created") == 2
    todays = {"apiVersion": "v1", "kind": "List", "items": _of_old_group(dump_crds())}
    path = scorers.path(namespace, "manual")
    status = {
        "healthStatus": "Active",
        "lastSyncedConfig": {"name": "manual", "scoring": {"params": {"name": "manual_score", "interval": 30}}},
        "scoreName": "manual_score",
        "interval": 30,
        "clusters": {"desired": 2, "succeeding": 1, "failing": 1},
    }
    assert session.merge(f"{path}/status", {"status": status})["status"] == status
    tls = {"caRef": {"name": "private-ca"}}
    before = session.merge(path, {"spec": {"source": {"tls": tls}}})
    assert "tls" not in before["spec"]["source"], "the first schema knows no such field"

    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(todays))
    # The server serves the new schema a moment after it took it.
    wait_for(lambda: "tls" in session.merge(path, {"spec": {"source": {"tls": tls}}})["spec"]["source"])
    session.merge(path, {"spec": {"source": {"tls": None}}})
    after = session.get(path)
    assert after["status"] == status
    # All fields survive, and new ones get their defaults.
    read = _read(after)
    assert read.spec == _read(before).spec
    assert read.status.clusters.succeeding == 1
    # Changes by the manifest's owners, by others, and by the hub.
    assert plane.kubectl("apply", "-f", "-", stdin=manifests).count("unchanged") == 2
    changes = {"description": "changed", "scoring": {"params": {"interval": 60}}}
    changed = _read(session.merge(path, {"spec": changes})).spec
    assert (changed.description, changed.source) == ("changed", read.spec.source)
    old_status = read.status.model_copy(update={"declared_interval": 60}).to_manifest()
    assert write_status(session, scorers, namespace, "manual", old_status)["status"] == old_status
    masks = configs.path(namespace, "dynamic-scoring-config")
    assert len(session.merge(masks, {"spec": {"masks": [{"clusterName": "c", "scoreName": "s"}]}})["spec"]) == 2


def _of_old_group(crds: str) -> list[dict[str, Any]]:
    """Return these CRDs for OLD_GROUP, without the short names, which belong to our group."""
    old_crds = list(yaml.safe_load_all(crds.replace(DYNAMIC_SCORERS.group, OLD_GROUP)))
    for crd in old_crds:
        crd["spec"]["names"].pop("shortNames", None)
    return old_crds


def _read(manifest: dict[str, Any]) -> DynamicScorer:
    return DynamicScorer.from_manifest({**manifest, "apiVersion": DYNAMIC_SCORERS.api_version})


def test_defaults_are_filled_in(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    _apply(control_plane, scorer(namespace, execution={"whenFailing": {}, "rateLimit": "30/m"}))
    spec = session.get(DYNAMIC_SCORERS.path(namespace, "sample"))["spec"]
    assert (spec["location"], spec["scoreDestination"]) == ("Internal", "AddOnPlacementScore")
    execution = spec["execution"]
    assert (execution["timeoutSeconds"], execution["maxRetries"], execution["suspend"]) == (30, 2, False)
    assert execution["whenFailing"] == {"behavior": "Keep", "failureThreshold": 3}


def test_config_without_spec_is_accepted(control_plane: ControlPlane) -> None:
    manifest = config(control_plane.namespace())
    del manifest["spec"]
    assert "created" in _apply(control_plane, manifest)


def test_kubectl_get_shows_the_readiness(control_plane: ControlPlane, session: Session) -> None:
    namespace, now = control_plane.namespace(), datetime.now(UTC)
    _apply(control_plane, scorer(namespace))
    status = DynamicScorerStatus(
        health_status=HealthStatus.Active,
        last_synced_config=RemoteConfig(name="sample"),
        observed_generation=1,
        conditions=[
            Condition(type=kind, status="False", reason="CyclesFail", message="bad query", last_transition_time=now)
            for kind in ("Scoring", "Ready")
        ],
        score_name="sample_score",
        interval=30,
        clusters=ClusterNumbers(desired=3, succeeding=1, failing=2),
        failures=[FailedCycle(cluster="cluster1", stage="fetch", reason="bad_query", message="parse error", time=now)],
    )
    status_manifest = status.to_manifest()
    response = write_status(session, DYNAMIC_SCORERS, namespace, "sample", status_manifest)
    assert response["status"] == status_manifest, "nothing of a status is dropped or filled in"
    head, row = (line.split() for line in control_plane.kubectl("get", "dscorer", "-n", namespace).splitlines())
    assert head == ["NAME", "HEALTH", "SCORE", "INTERVAL", "READY", "SUCCEEDING", "DESIRED", "REASON", "AGE"]
    assert row[:-1] == ["sample", "Active", "sample_score", "30", "False", "1", "3", "CyclesFail"]
    assert "bad query" in control_plane.kubectl("get", "dscorer", "-n", namespace, "-o", "wide")
    assert "sample" in control_plane.kubectl("get", "ocm", "-n", namespace)
    described = control_plane.kubectl("describe", "dscorer", "sample", "-n", namespace)
    assert "parse error" in described
    _apply(control_plane, config(namespace))
    head = control_plane.kubectl("get", "dscfg", "-n", namespace).splitlines()[0].split()
    assert head == ["NAME", "DISTRIBUTED", "CLUSTERS", "SCORERS", "IGNORED", "READY", "AGE"]


def test_columns_never_contradict_ready(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    unwritten_text = Unwritten(reason="ScoresNotWritten", message="403: no", since=1).model_dump_json()
    good, unwritten = (
        CycleOutcomes.from_states(
            [PairState(cluster, "s", last_success=1, valid_until=9, unwritten_text=text) for cluster in "ab"], 0
        )
        for text in (None, unwritten_text)
    )
    statuses = {
        "good": scorer_status(cycles=good),
        "paused": scorer_status(cycles=good, pace=Pace(30, 0, Pauses(2, "a", ScheduleOverride(by="somebody")))),
        "unhealthy": scorer_status(health=replace(INACTIVE, failures=3), cycles=good),
        "unwritten": scorer_status(cycles=unwritten),
    }
    for name, status in statuses.items():
        _apply(control_plane, scorer(namespace, name))
        write_status(session, DYNAMIC_SCORERS, namespace, name, status.to_manifest())
    rows = (line.split() for line in control_plane.kubectl("get", "dscorer", "-n", namespace).splitlines()[1:])
    # READY, SUCCEEDING, DESIRED, REASON
    assert {row[0]: row[-5:-1] for row in rows} == {
        "good": ["True", "2", "2", "CyclesSucceed"],
        "paused": ["False", "2", "2", "Paused"],
        "unhealthy": ["False", "2", "2", "Timeout"],
        "unwritten": ["False", "0", "2", "ScoresNotWritten"],
    }


def test_explain_describes_a_field(control_plane: ControlPlane) -> None:
    text = control_plane.kubectl("explain", "dscorer.spec.execution.whenFailing.behavior")
    assert "the last score until it expires" in text.replace("\n", " ")


OBJECT = {"apiVersion": "apps/v1", "kind": "Deployment", "fields": [{"name": "a", "path": "spec.replicas"}]}
WITHOUT_API = {"configURL": None, "configSyncMode": None}
SCORES = [{"scorer": "a", "as": "cpu"}]
TOKEN_WITHOUT_KEY = {"auth": {"tokenSecretRef": {"name": "a"}}}


@pytest.mark.parametrize(
    ("spec", "expected_message"),
    [
        (
            {"scoring": {"params": {"name": "a", "interval": -5}}},
            "Invalid value: -5: spec.scoring.params.interval in body should be greater than or equal to 1",
        ),
        ({"scoring": {"params": {"name": "a", "interval": "30"}}}, "must be of type integer"),
        ({"scoring": {"params": {"interval": 30}}}, "spec.scoring.params.name: Required value"),
        (
            {"configSyncMode": "full"},
            'spec.configSyncMode: Unsupported value: "full": supported values: "Full", "None"',
        ),
        (
            {"source": {"type": "prometheus"}},
            "must be one of Prometheus, OpenTelemetry, Kubernetes, Object, Scores, None; that of a plug-in has a dot",
        ),
        ({"source": {"type": "csv..com"}}, "that of a plug-in has a dot"),
        ({"sources": [{"name": "a", "type": "Csv.example.com"}]}, "spec.sources[0].type: Invalid value"),
        (
            {"source": {"type": "csv.example.com", "options": ["a"]}},
            "spec.source.options in body must be of type object",
        ),
        ({"source": {"type": "Object"}}, "spec.source: Invalid value: object goes with type Object and only with it"),
        (
            {"source": {"params": {"range": 5}}},
            "spec.source: Invalid value: params.query is required, but for the types",
        ),
        (
            {"source": {"type": "Object", "object": OBJECT | {"apiVersion": "v1", "kind": "Secret"}}},
            "spec.source.object: Invalid value: objects of this kind hold secrets and are never read",
        ),
        (
            {"source": {"type": "Object", "object": OBJECT | {"fields": [{"name": "a", "path": "a[*]"}]}}},
            "spec.source.object.fields[0].path in body should match",
        ),
        ({"scoring": TOKEN_WITHOUT_KEY}, "spec.scoring.auth.tokenSecretRef.key: Required value"),
        ({"source": TOKEN_WITHOUT_KEY}, "spec.source.auth.tokenSecretRef.key: Required value"),
        ({"source": {"auth": {}}}, "names no method: set authenticationRef"),
        (
            {"execution": {"whenFailing": {"value": 3}}},
            "spec.execution.whenFailing: Invalid value: value goes with behavior Value and only with it",
        ),
        (
            {"execution": {"whenEmpty": {"behavior": "Value"}}},
            "spec.execution.whenEmpty: Invalid value: behavior Value goes with either value or items, and only it does",
        ),
        (
            {"execution": {"whenEmpty": {"items": [{"name": "${cluster}", "value": 1}]}}},
            "spec.execution.whenEmpty: Invalid value: behavior Value goes with either value or items, and only it does",
        ),
        (
            {"execution": {"whenEmpty": {"behavior": "Value", "items": [{"name": "${node};a", "value": 1}]}}},
            "Invalid value: only ${cluster} and ${scoreName} are known without results; write the labels out",
        ),
        (
            {"execution": {"whenFailing": {"behavior": "Value", "value": 101}}},
            "spec.execution.whenFailing.value in body should be less than or equal to 100",
        ),
        ({"execution": {"rateLimit": "fast"}}, "spec.execution.rateLimit in body should match"),
        ({"execution": {"hold": {"forSeconds": 60}}}, "spec.execution.hold.minChange: Required value"),
        (
            {"execution": {"hold": {"minChange": 0}}},
            "spec.execution.hold.minChange in body should be greater than or equal to 1",
        ),
        (
            {"execution": {"hold": {"minChange": 201}}},
            "spec.execution.hold.minChange in body should be less than or equal to 200",
        ),
        ({"execution": {"hold": {"minChange": 1.5}}}, "spec.execution.hold.minChange in body must be of type integer"),
        (
            {"execution": {"hold": {"minChange": 5, "forSeconds": -1}}},
            "spec.execution.hold.forSeconds in body should be greater than or equal to 0",
        ),
        ({"execution": {"timeoutSeconds": 0}}, "should be greater than or equal to 1"),
        ({"configURL": "ftp://a"}, "spec.configURL in body should match"),
        ({"configURL": None}, "configURL and configSyncMode are required, unless there is scoring.expression"),
        ({"configSyncMode": None}, "configURL and configSyncMode are required, unless there is scoring.expression"),
        ({"scoring": {"expression": "last"}}, "scoring.expression takes the place of a scoring API: leave out"),
        (
            WITHOUT_API | {"scoring": {"expression": "last", "host": "http://a"}},
            "scoring.expression takes the place of a scoring API: leave out",
        ),
        (
            WITHOUT_API | {"scoring": {"expression": "last", "auth": {"tokenSecretRef": {"name": "a", "key": "b"}}}},
            "scoring.expression takes the place of a scoring API: leave out",
        ),
        (WITHOUT_API | {"scoring": {"expression": "x" * 5000}}, "may not be more than 4096"),
        ({"source": {"type": "Scores", "scores": SCORES}}, "a source of type Scores needs scoring.expression"),
        ({"source": {"type": "Scores"}}, "scores goes with type Scores and only with it"),
        ({"source": {"type": "Prometheus", "scores": SCORES}}, "scores goes with type Scores and only with it"),
        ({"source": {"type": "Scores", "scores": SCORES, "host": "http://a"}}, "the type Scores asks no server"),
        ({"sources": [{"name": "a", "type": "Scores", "scores": SCORES}]}, "the type Scores stands in source"),
        ({"source": {"type": "Scores", "scores": SCORES * 2}}, "Duplicate value"),
        ({"source": {"type": "Scores", "scores": [{"scorer": "a", "as": "labels"}]}}, "as is none of cluster,"),
        ({"description": None}, "spec.description: Required value"),
        ({"intervall": 30}, 'unknown field "spec.intervall"'),
        ({"aggregate": {"by": ["rack"], "with": "max"}}, 'spec.aggregate.by[0]: Unsupported value: "rack"'),
        ({"aggregate": {"by": ["node"]}}, "spec.aggregate.with: Required value"),
        (
            {"scoreDimensionFormats": ["${node}", ""]},
            "spec.scoreDimensionFormats[1] in body should be at least 1 chars",
        ),
        ({"sources": []}, "spec.sources in body should have at least 1 items"),
        ({"sources": [{"name": f"s{i}"} for i in range(9)]}, "must have at most 8 items"),
        ({"sources": [{"name": "a"}, {"name": "a"}]}, "Duplicate value"),
        ({"sources": [{"name": "a b"}]}, "spec.sources[0].name in body should match"),
        ({"sources": [{}]}, "spec.sources[0].name: Required value"),
        ({"sources": [{"name": "a"}], "source": {"host": "http://a"}}, "either source or sources"),
        *(
            ({"configSyncMode": "None", **source}, "a source of type Prometheus needs params.query, params.range")
            for params in (
                {"query": "up", "step": 5},
                {"query": "up", "range": 5},
                {"query": "up", "range": 5, "step": 0},
            )
            for source in ({"source": {"params": params}}, {"sources": [{"name": "a", "params": params}]})
        ),
        (
            {"source": {"method": "PUT"}},
            'spec.source.method: Unsupported value: "PUT": supported values: "GET", "POST"',
        ),
        ({"source": {"type": "OpenTelemetry", "method": "POST"}}, "spec.source: Invalid value: method goes with type"),
        ({"sources": [{"name": "a", "type": "Kubernetes", "method": "GET"}]}, "method goes with type Prometheus only"),
        (
            {"configSyncMode": "None", "source": {"type": "Prometheus"}},
            "a source of type Prometheus needs params.query",
        ),
    ],
)
def test_invalid_scorer_is_refused_with_a_helpful_message(
    session: Session, spec: dict[str, Any], expected_message: str
) -> None:
    assert expected_message in _refusal(session, scorer("default", **spec))


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"type": "None"},
        {"type": "Kubernetes"},
        {"params": {"query": "up", "range": 60, "step": 5}},
        {"type": "Prometheus", "method": "POST", "params": {"query": "up", "range": 60, "step": 5}},
        None,
    ],
)
@pytest.mark.parametrize("mode", ["None", "Full"])
def test_complete_scorer_is_accepted(session: Session, mode: str, source: dict[str, Any] | None) -> None:
    spec = {"configSyncMode": mode} | ({} if source is None else {"source": source})
    assert _refusal(session, scorer("default", **spec)) == ""


@pytest.mark.parametrize(
    "source",
    [
        None,
        {"type": "Prometheus", "host": "http://a", "params": {"query": "up"}},
        {"host": "http://a", "params": {"query": "up", "range": 60, "step": 5}},
        {"type": "Scores", "scores": [*SCORES, {"scorer": "b", "as": "watts", "default": -100}]},
    ],
)
def test_scorer_with_an_expression_is_accepted(session: Session, source: dict[str, Any] | None) -> None:
    scoring = {"expression": "1", "params": {"name": "free", "interval": 30}}
    assert _refusal(session, scorer("default", **WITHOUT_API, scoring=scoring, source=source)) == ""


def test_source_fields_may_come_from_config(session: Session) -> None:
    assert _refusal(session, scorer("default", configSyncMode="Full", source={"type": "Prometheus"})) == ""


@pytest.mark.parametrize(
    ("masks", "expected_message"),
    [
        ([{"clusterName": "a"}], "[0].scoreName: Required value"),
        ([{"clusterName": "", "scoreName": "a"}], "[0].clusterName in body should be at least 1 chars long"),
    ],
)
@pytest.mark.parametrize("spelling", ["mask", "masks"])
def test_invalid_mask_is_refused(session: Session, spelling: str, masks: list[Any], expected_message: str) -> None:
    assert f"spec.{spelling}{expected_message}" in _refusal(session, config("default", **{spelling: masks}))


@pytest.mark.parametrize("heading", MANIFESTS)
def test_documented_methods_apply(control_plane: ControlPlane, session: Session, heading: str) -> None:
    namespace = control_plane.namespace()
    stored_scorer = session.create(
        DYNAMIC_SCORERS.path(namespace), scorer(namespace, source=MANIFESTS[heading]["source"])
    )
    assert DynamicScorer.from_manifest(stored_scorer).spec.source.params is not None


def test_documented_several_sources_apply(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    text = PAGE.partition("## Several sources")[2].partition("```yaml\n")[2].partition("```")[0]
    assert "created" in _apply(control_plane, scorer(namespace, **yaml.safe_load(text)["spec"]))
    read = DynamicScorer.from_manifest(session.get(DYNAMIC_SCORERS.path(namespace, "sample"))).spec.sources
    assert read is not None
    assert [source.name for source in read] == ["load", "power", "free"]


def test_documented_plugin_applies_with_all_its_options(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    text = PAGE.partition("## Plug-ins")[2].partition("```yaml\n")[2].partition("```")[0]
    source = yaml.safe_load(text)["source"]
    source["options"]["nested"] = [{"anything": [1, True, {"x": "y"}]}]
    assert "created" in _apply(control_plane, scorer(namespace, source=source))
    read = DynamicScorer.from_manifest(session.get(DYNAMIC_SCORERS.path(namespace, "sample"))).spec.source
    assert (read.type, read.options) == ("csv.example.com", source["options"])


@pytest.mark.parametrize("name", AUTHENTICATIONS)
def test_documented_authentications_apply(control_plane: ControlPlane, session: Session, name: str) -> None:
    manifest = AUTHENTICATIONS[name]
    namespace = control_plane.namespace()
    named_manifest = {**manifest, "metadata": {"name": name, "namespace": namespace}}
    read = ScoringAuthentication.from_manifest(session.create(SCORING_AUTHENTICATIONS.path(namespace), named_manifest))
    assert read.spec == ScoringAuthentication.from_manifest(manifest).spec


_REF = {"name": "s", "key": "k"}


@pytest.mark.parametrize(
    ("auth", "expected_reason"),
    [
        ({}, "names no method"),
        ({"tokenSecretRef": _REF, "basic": {"username": {"value": "u"}, "password": _REF}}, "at most one of"),
        ({"basic": {"username": {}, "password": _REF}}, "either value or secretRef"),
        ({"headers": [{"name": "X-A", "value": "a", "secretRef": _REF}]}, "either value or secretRef"),
        ({"headers": [{"name": "X A", "value": "a"}]}, "should match"),
        ({"headers": [{"name": "X-A", "value": "a\r\nX-B: c"}]}, "headers[0].value in body should match"),
        ({"headers": [{"name": "hOst", "value": "a"}]}, "set by HTTP itself"),
        ({"headers": [{"name": "X-A", "value": "a"}, {"name": "X-A", "value": "b"}]}, "Duplicate value"),
        ({"headers": [{"name": "authorization", "value": "a"}], "tokenSecretRef": _REF}, "set by another method"),
        ({"queryParameters": [{"name": "a", "value": "a\nb"}]}, "queryParameters[0].value in body should match"),
        ({"authenticationRef": {"name": "a"}, "tokenSecretRef": _REF}, "excludes other methods"),
        ({"clientCertificate": {}}, "secretName: Required"),
        ({"aws": {"region": "r"}}, "either roleARN, or accessKeyID and secretAccessKey"),
        ({"aws": {"region": "r", "podIdentity": True, "sessionToken": _REF}}, "secretAccessKey, or podIdentity"),
        ({"gcp": {}}, "either audience or key"),
    ],
)
def test_invalid_source_authentication_is_refused_with_a_reason(
    session: Session, auth: dict[str, Any], expected_reason: str
) -> None:
    assert expected_reason in _refusal(session, scorer("default", source={"auth": auth}))


_HOST = {"allowedHosts": ["thanos.example"]}
_BASIC = {"username": {"value": "u"}, "password": _REF}


@pytest.mark.parametrize(
    ("spec", "expected_reason"),
    [
        ({"allowedHosts": ["ftp://x"]}, "spec.allowedHosts[0] in body should match"),
        ({"allowedHosts": ["thanos.example/path"]}, "spec.allowedHosts[0] in body should match"),
        (_HOST | {"proxyURL": "https://proxy.example:3128"}, "spec.proxyURL in body should match"),
        (_HOST | {"overrides": [{"tokenSecretRef": _REF}]}, "names no cluster"),
        (_HOST | {"overrides": [{"clusters": ["a"], "host": "thanos.example"}]}, "overrides[0].host in body should"),
        (_HOST | {"overrides": [{"clusters": ["a"], "tokenSecretRef": _REF, "basic": _BASIC}]}, "at most one of"),
        (
            _HOST | {"basic": _BASIC, "headers": [{"name": "Authorization", "value": "a"}]},
            "Authorization is set by another method already",
        ),
    ],
)
def test_invalid_scoring_authentication_is_refused_with_a_reason(
    session: Session, spec: dict[str, Any], expected_reason: str
) -> None:
    manifest = {**AUTHENTICATIONS["thanos"], "metadata": {"name": "bad", "namespace": "default"}, "spec": spec}
    assert expected_reason in _refusal(session, manifest)
