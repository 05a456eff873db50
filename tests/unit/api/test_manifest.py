from __future__ import annotations

import json
import re
from textwrap import dedent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.cluster import ManagedCluster
from dsf.api.manifest import KINDS, ManifestProblem, ParsedDocument, parse_documents
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import DynamicScoringConfig

SCORER = """\
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata:
  name: sample-scorer
spec:
  description: Mean of each series
  configURL: http://sample-scorer:8000/config
  configSyncMode: Full
"""
CONFIG = """\
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScoringConfig
metadata:
  name: dynamic-scoring-config
spec:
  masks:
  - clusterName: worker02
    scoreName: "*"
"""
CLUSTER = """\
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata:
  name: worker01
  labels: {region: eu}
spec:
  hubAcceptsClient: true
  leaseDurationSeconds: 60
  taints: []
status:
  version: {kubernetes: v1.36.2}
  clusterClaims:
  - {name: id.k8s.io, value: abc}
"""


# Seven lines expand to two million values once aliases are followed.
LAUGHS = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)


def problems(text: str) -> list[str]:
    documents = parse_documents(text, "f.yaml")
    assert all(isinstance(problem, ManifestProblem) for problem in documents), documents
    return [str(problem) for problem in documents]


def test_good_documents_with_their_lines() -> None:
    documents = parse_documents(f"# a comment\n\n{SCORER}---\n{CONFIG}---\n# another\n{CLUSTER}", "f.yaml")
    assert [
        (type(document.object), document.line) for document in documents if isinstance(document, ParsedDocument)
    ] == [
        (DynamicScorer, 3),
        (DynamicScoringConfig, 12),
        (ManagedCluster, 22),
    ]
    assert {document.source for document in documents} == {"f.yaml"}


def parse_single(text: str) -> DynamicScorer | DynamicScoringConfig | ManagedCluster:
    (document,) = parse_documents(text, "f.yaml")
    assert isinstance(document, ParsedDocument), str(document)
    return document.object


@pytest.mark.parametrize("is_json", [False, True])
def test_kubectl_list_is_parsed_item_by_item(is_json: bool) -> None:
    server_fields = {"uid": "1", "resourceVersion": "7", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"}
    items = [yaml.safe_load(text) for text in (SCORER, CONFIG)]
    for item in items:
        item["metadata"] |= {**server_fields, "namespace": "hub"}
    items[0]["status"] = {"healthStatus": "Active"}
    items += [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}]
    items += [{**items[0], "spec": {}}, {"apiVersion": "v1", "kind": "List", "items": items[:1]}]
    whole = {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}
    text = json.dumps(whole, indent=4) if is_json else yaml.safe_dump(whole)
    scorer, config, secret, *mistakes, nested = parse_documents(text, "f")
    assert isinstance(scorer, ParsedDocument)
    assert isinstance(config, ParsedDocument)
    assert (scorer.object.metadata.name, config.object.metadata.name) == ("sample-scorer", "dynamic-scoring-config")
    assert scorer.line < config.line
    assert isinstance(secret, ManifestProblem)
    assert isinstance(nested, ManifestProblem)
    assert (secret.severity, nested.severity) == ("note", "note")
    fields = {mistake.field for mistake in mistakes if isinstance(mistake, ManifestProblem)}
    assert "spec.description" in fields
    assert parse_documents("kind: List\nitems: 7", "f") == []


def test_managed_cluster_is_parsed() -> None:
    cluster = parse_single(CLUSTER)
    assert isinstance(cluster, ManagedCluster)
    assert cluster.is_served
    assert cluster.metadata.labels == {"region": "eu"}
    assert [(claim.name, claim.value) for claim in cluster.status.cluster_claims] == [("id.k8s.io", "abc")]


@pytest.mark.parametrize(
    ("accepted", "instead"),
    [
        ("hubAcceptsClient: true", "hubAcceptsClient: false"),
        ("hubAcceptsClient: true", "leaseDuration: 1"),
        ("  name: worker01", "  name: worker01\n  deletionTimestamp: 2026-01-01T00:00:00Z"),
    ],
)
def test_cluster_without_acceptance_is_not_served(accepted: str, instead: str) -> None:
    cluster = parse_single(CLUSTER.replace(accepted, instead))
    assert isinstance(cluster, ManagedCluster)
    assert not cluster.is_served


def test_timestamp_needs_no_quotes() -> None:
    scorer = parse_single(SCORER.replace("  name: s", "  creationTimestamp: 2026-01-01T00:00:00Z\n  name: s"))
    assert scorer.metadata.creation_timestamp is not None
    assert scorer.metadata.creation_timestamp.isoformat() == "2026-01-01T00:00:00+00:00"


def test_aliases_and_merge_keys_are_read() -> None:
    text = CONFIG + "  - &a {clusterName: worker03, scoreName: x}\n  - {<<: *a, scoreName: z}\n"
    config = parse_single(text)
    assert isinstance(config, DynamicScoringConfig)
    assert [(mask.cluster_name, mask.score_name) for mask in config.spec.masks[1:]] == [
        ("worker03", "x"),
        ("worker03", "z"),
    ]


def test_windows_line_ends() -> None:
    assert isinstance(parse_single(SCORER.replace("\n", "\r\n")), DynamicScorer)


def test_all_errors_of_a_document_are_reported_with_lines() -> None:
    text = dedent("""\
        apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
        kind: DynamicScorer
        metadata:
          name: sample-scorer
        spec:
          configURL: ftp://h/config
          configSyncMode: full
          locaton: Internal
          source:
            type: prometheus
            params:
              range: -1
          scoring:
            params: {name: x, interval: "30"}
            auth:
              tokenSecretRef:
                name: a
          execution:
            rateLimit: 10/d
        """)
    assert problems(text) == [
        "f.yaml:5: spec.description: is required",
        "f.yaml:6: spec.configURL: 'ftp://h/config' is not a URL that starts with http:// or https://",
        "f.yaml:7: spec.configSyncMode: 'full' is not one of Full, None",
        (
            "f.yaml:8: spec.locaton: is not a known field; allowed are description, configURL, configSyncMode, "
            "location, scoreDestination, scoreDimensionFormat, scoreDimensionFormats, aggregate, clusterSelector, "
            "exposition, source, sources, scoring, "
            "execution; "
            "did you mean location?"
        ),
        (
            "f.yaml:10: spec.source.type: 'prometheus' is not one of Prometheus, OpenTelemetry, Kubernetes, Object, "
            "Scores, None; that of a plug-in has a dot, as csv.example.com"
        ),
        "f.yaml:12: spec.source.params.range: -1 is less than 0",
        "f.yaml:14: spec.scoring.params.interval: '30' is not a whole number",
        "f.yaml:16: spec.scoring.auth.tokenSecretRef.key: is required",
        (
            "f.yaml:19: spec.execution.rateLimit: '10/d' is not a rate: write a whole number from 1 on and /s, /m "
            "or /h, such as 10/s or 30/m"
        ),
    ]


def test_errors_in_a_list_are_reported() -> None:
    assert problems(CONFIG + "  - clusterName: worker03\n  - 5\n  - {clusterName: '', scoreName: x, z: 1}\n") == [
        "f.yaml:9: spec.masks[1].scoreName: is required",
        "f.yaml:10: spec.masks[2]: 5 is not a mapping of fields",
        "f.yaml:11: spec.masks[3].clusterName: must not be empty",
        "f.yaml:11: spec.masks[3].z: is not a known field; allowed are clusterName, clusterSelector, scoreName",
    ]


def test_bad_document_stops_no_other() -> None:
    documents = parse_documents(f"{SCORER}---\nspec: [unclosed\n---\nkind: 5\n---\n{CLUSTER}", "f.yaml")
    assert [str(item) if isinstance(item, ManifestProblem) else type(item.object).__name__ for item in documents] == [
        "DynamicScorer",
        "f.yaml:10: is not YAML: did not find expected ',' or ']'",
        f"f.yaml:12: kind: is required; kinds that are read are {', '.join(KINDS)}",
        "ManagedCluster",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: {c: 1\nd: [", "f.yaml:3: is not YAML: did not find expected ',' or '}'"),
        ("a:\n\tb: 1\n", "f.yaml:2: is not YAML: found character that cannot start any token"),
        ("a: 1\nkind: x\na: 2", "f.yaml:3: a: is there twice"),
        ("spec:\n  b: 1\n  b: 2", "f.yaml:3: spec.b: is there twice"),
        ("just text", "f.yaml:1: is not a mapping of fields (apiVersion, kind, metadata, spec)"),
        ("---\n- a\n- b", "f.yaml:2: is not a mapping of fields (apiVersion, kind, metadata, spec)"),
        ("\x00", "f.yaml:1: is not YAML: control characters are not allowed"),
        ("a: 1\nb: \ud800", "f.yaml:2: is not valid Unicode text"),
        ("a: 1\nb: *c", "f.yaml:2: is not YAML: found undefined alias"),
        ("a: !!bool maybe", "f.yaml:1: is not YAML: a value is not what its tag says ('maybe')"),
        (
            "a: 1\nb: !!python/object:os.system x",
            (
                "f.yaml:2: is not YAML: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/object:os.system'"
            ),
        ),
        ("? [a]\n: b", "f.yaml:1: has a key that is neither text nor a number"),
        ("[" * 100_000, "f.yaml:1: is nested too deeply"),
        ("&a [*a]", "f.yaml:1: is too large once its aliases are followed"),
        (
            LAUGHS,
            "f.yaml:1: is too large once its aliases are followed",
        ),
        (
            SCORER.replace("/v1alpha1", "/v1"),
            (
                "f.yaml:1: apiVersion: 'dynamic-scoring.open-cluster-management.io/v1' is not "
                "dynamic-scoring.open-cluster-management.io/v1alpha1"
            ),
        ),
        (
            SCORER.replace("apiVersion", "# apiVersion"),
            "f.yaml:2: apiVersion: None is not dynamic-scoring.open-cluster-management.io/v1alpha1",
        ),
        (
            SCORER.replace("name: sample", "name: ../sample"),
            (
                "f.yaml:4: metadata.name: '../sample-scorer' is not a name: lower-case letters, digits, - and . "
                "(at most 253)"
            ),
        ),
        (SCORER.replace("  name: sample-scorer", "  namespace: a"), "f.yaml:3: metadata.name: is required"),
        (
            SCORER + "  source:\n    params: {range: 60}\n",
            "f.yaml:9: spec.source: params.query is required, but for the types Kubernetes and Object",
        ),
        (SCORER.replace("metadata:\n  name: sample-scorer\n", ""), "f.yaml:1: metadata: is required"),
        (
            (
                "apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1\nkind: ScoringAuthentication\n"
                "metadata: {name: a}\nspec:\n  basic: {username: {value: u}}\n  allowedHosts:\n  - x\n  - ftp://x\n"
            ),
            "f.yaml:8: spec.allowedHosts[1]: 'ftp://x' is not a server of the form host, host:port or https://host[:port]",
        ),
    ],
)
def test_parser_reports_the_problem_with_its_line(text: str, problem: str) -> None:
    assert problems(text) == [problem]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("apiVersion: v1\nkind: Secret\n", "'Secret' of apiVersion 'v1' is not read here; ignored"),
        (
            "apiVersion: infrastructure.cluster.x-k8s.io/v1\nkind: ManagedCluster\n",
            "'ManagedCluster' of apiVersion 'infrastructure.cluster.x-k8s.io/v1' is not read here; ignored",
        ),
    ],
)
def test_other_kinds_are_noted(text: str, note: str) -> None:
    assert parse_documents(text, "f.yaml") == [ManifestProblem("f.yaml", 2, "kind", note, "note")]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "---\n---\n", "# only a comment\n", "---\n# nothing\n---\n", "null", "%YAML 1.1\n---\n"]
)
def test_empty_documents_are_skipped(text: str) -> None:
    assert parse_documents(text, "f.yaml") == []


ODD_LINES = """\
---
...
%YAML 1.1
? a
: b
- *a
  x: &a 1
1: 2
<<: *a
!!int x: y
[1]: 2
{
spec: |
  null: ~
metadata: {1: 2}
"""
LINES = st.lists(st.sampled_from(f"{SCORER}{CONFIG}{CLUSTER}{ODD_LINES}\t".splitlines()), max_size=25).map("\n".join)


@given(st.text(alphabet=st.characters()) | st.text(alphabet="-:?[]{}&*!|>%@`\"'#, \n\tabn~<") | LINES)
def test_parser_never_raises_and_reports_lines_of_the_text(text: str) -> None:
    for document in parse_documents(text, "f.yaml"):
        # YAML 1.1 has five line breaks.
        assert 1 <= document.line <= len(re.findall("[\r\n\x85\u2028\u2029]", text)) + 1


def test_list_of_a_whole_fleet_is_parsed() -> None:
    """A list as `kubectl get managedclusters -o yaml` writes it: one document without aliases."""
    labels = {f"label-{number}": f"value-{number}" for number in range(120)}
    clusters = [
        {
            "apiVersion": "cluster.open-cluster-management.io/v1",
            "kind": "ManagedCluster",
            "metadata": {"name": f"cluster-{number}", "labels": labels},
        }
        for number in range(200)
    ]
    text = yaml.safe_dump(json.loads(json.dumps({"apiVersion": "v1", "kind": "List", "items": clusters})))
    documents = parse_documents(text, "clusters.yaml")
    assert [document.object.metadata.name for document in documents if isinstance(document, ParsedDocument)] == [
        f"cluster-{number}" for number in range(200)
    ]
