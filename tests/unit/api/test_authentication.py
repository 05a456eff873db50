"""Authentication in manifests: accepted forms, and errors for the others."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api.authentication import Auth, CaKind, Methods, Reference, Tls, find_references
from dsf.api.problems import explain
from dsf.api.resolve import resolve
from dsf.api.summary import dump_summaries, parse_summaries
from dsf.errors import ResolutionError
from tests.unit.auth.test_methods import scorer

REF = {"name": "s", "key": "k"}
BASIC = {"username": {"value": "u"}, "password": REF}
AZURE = {"tenantID": "t", "clientID": "c"}
ROLE = "arn:aws:iam::123456789012:role/scoring"
SOURCE = {"type": "Prometheus", "params": {"query": "up", "range": 60, "step": 15}}


@pytest.mark.parametrize("name", [field.alias or name for name, field in Methods.model_fields.items()])
def test_crd_validates_each_authentication_method(name: str) -> None:
    """CEL validates by name each field that Python validates generically."""
    rules = {rule.message.partition(":")[0]: rule.cel for rule in Auth.rules}
    assert f"self.{name})" in rules["names no method"]
    assert f"self.{name})" in rules["authenticationRef excludes other methods"]


def mistakes(auth: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as raised:
        Auth.model_validate(auth, by_alias=True, by_name=False)
    return "; ".join(str(mistake) for mistake in explain(raised.value, Auth, auth))


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        ({}, "names no method: set authenticationRef"),
        ({"kerberos": {}}, "kerberos: is not a known field; allowed are tokenSecretRef, basic, oauth2"),
        ({"basic": BASIC, "tokenSecretRef": REF}, "at most one of tokenSecretRef, basic, oauth2,"),
        ({"basic": {"username": {}, "password": REF}}, "basic.username: either value or secretRef"),
        ({"basic": {"username": {"value": "u", "secretRef": REF}, "password": REF}}, "either value or secretRef"),
        ({"basic": {"password": REF}}, "basic.username: is required"),
        ({"headers": [{"name": "X-A", "value": "a\r\nX-B: b"}]}, "headers[0].value: is not printable ASCII"),
        ({"headers": [{"name": "X-A: b\r\nX-C", "value": "a"}]}, "headers[0].name: 'X-A: b\\r\\nX-C' is not the name"),
        ({"headers": [{"name": "Host", "value": "a"}]}, "the header Host is set by HTTP itself"),
        ({"headers": [{"name": "transfer-encoding", "value": "chunked"}]}, "is set by HTTP itself"),
        ({"headers": [{"name": "a", "value": "1"}, {"name": "A", "value": "2"}]}, "headers: a name is there twice"),
        ({"headers": [{"name": "Authorization", "value": "1"}], "basic": BASIC}, "Authorization is set by another"),
        ({"headers": [{"name": f"a{n}", "value": "1"} for n in range(33)]}, "has more than 32 items"),
        ({"oauth2": {"tokenURL": "ftp://x", "clientID": {"value": "c"}, "clientSecret": REF}}, "is not a URL"),
        ({"serviceAccountToken": {"audience": ""}}, "serviceAccountToken.audience"),
        ({"aws": {"region": "r"}}, "aws: either roleARN, or accessKeyID and secretAccessKey"),
        ({"aws": {"region": "r", "roleARN": ROLE, "secretAccessKey": REF}}, "aws: either roleARN, or accessKeyID"),
        ({"aws": {"region": "r", "roleARN": ROLE, "podIdentity": True}}, "aws: either roleARN, or accessKeyID"),
        ({"aws": {"region": "r", "podIdentity": False}}, "aws: either roleARN, or accessKeyID"),
        ({"aws": {"region": "r", "podIdentity": True, "sessionToken": REF}}, "aws: either roleARN, or accessKeyID"),
        ({"aws": {"region": "r", "roleARN": ROLE, "stsURL": "sts"}}, "aws.stsURL: 'sts' is not a URL"),
        ({"azure": {"tenantID": "t"}}, "azure.clientID: is required"),
        ({"azure": {**AZURE, "authorityURL": "http://a.example"}}, "is not a URL of the form https://"),
        ({"azure": {**AZURE, "clientID": "a\nb"}}, "azure.clientID: is not printable ASCII"),
        ({"gcp": {}}, "gcp: either audience or key"),
        ({"gcp": {"audience": "pool"}}, "gcp.audience"),
        ({"gcp": {"key": REF, "serviceAccount": "a@b"}}, "gcp: serviceAccount goes with audience alone"),
        ({"gcp": {"audience": "//p", "serviceAccount": "a@b/../c"}}, "gcp.serviceAccount"),
        ({"azure": AZURE, "gcp": {"audience": "//p"}}, "at most one of tokenSecretRef, basic, oauth2,"),
    ],
)
def test_mistakes_are_named(auth: dict[str, Any], problem: str) -> None:
    assert problem in mistakes(auth)


def test_references_lists_every_object_that_authentication_names() -> None:
    auth = Auth.model_validate(
        {
            "headers": [{"name": "X-A", "value": "1"}, {"name": "X-B", "secretRef": {"name": "headers", "key": "b"}}],
            "queryParameters": [{"name": "p", "secretRef": {"name": "parameters", "key": "b"}}],
            "clientCertificate": {"secretName": "certificate"},
            "oauth2": {
                "tokenURL": "https://sso.example/token",
                "clientID": {"secretRef": {"name": "client", "key": "id"}},
                "clientSecret": {"name": "secret", "key": "s"},
                "parameters": [{"name": "p", "secretRef": {"name": "more", "key": "m"}}],
            },
        }
    )
    assert {path: reference.name for path, reference in find_references(auth)} == {
        "headers[1].secretRef.name": "headers",
        "queryParameters[0].secretRef.name": "parameters",
        "clientCertificate.secretName": "certificate",
        "oauth2.clientID.secretRef.name": "client",
        "oauth2.clientSecret.name": "secret",
        "oauth2.parameters[0].secretRef.name": "more",
    }
    tls = Tls.model_validate({"caRef": {"name": "ca"}})
    assert list(find_references(tls)) == [("caRef.name", Reference(CaKind.ConfigMap, "ca"))]


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        (
            {"basic": {**BASIC, "password": {"name": "../x", "key": "k"}}},
            "spec.source.auth.basic.password.name: '../x'",
        ),
        (
            {"clientCertificate": {"secretName": "dynamic-scoring-agent-credentials"}},
            "spec.source.auth.clientCertificate.secretName: dynamic-scoring-agent-credentials is the agents' own",
        ),
        ({"serviceAccountToken": {"audience": "a"}}, "needs a ScoringAuthentication"),
        ({"azure": AZURE}, "spec.source.auth.azure: a token of the agent's own account needs a ScoringAuthentication"),
        ({"gcp": {"audience": "//p"}}, "spec.source.auth.gcp.audience: a token of the agent's own account"),
        ({"aws": {"region": "r", "roleARN": ROLE}}, "spec.source.auth.aws.roleARN: a token of the agent's own account"),
    ],
)
def test_unusable_auth_is_refused(auth: dict[str, Any], problem: str) -> None:
    with pytest.raises(ResolutionError, match=problem.replace(".", r"\.")):
        resolve(scorer({**SOURCE, "auth": auth}))


def test_token_secret_ref_is_sent_in_the_upstream_fields() -> None:
    summary = resolve(scorer({**SOURCE, "auth": {"tokenSecretRef": REF}})).summary
    assert (summary.source_endpoint_auth_name, summary.source_endpoint_auth_key) == ("s", "k")
    assert summary.source_access is None
    assert "Access" not in dump_summaries([summary])


def test_source_access_survives_dump_and_parse() -> None:
    source = {**SOURCE, "auth": {"basic": BASIC, "headers": [{"name": "X-Scope-OrgID", "value": "a"}]}}
    summary = resolve(scorer({**source, "tls": {"insecureSkipVerify": True}})).summary
    assert parse_summaries(dump_summaries([summary])) == [summary]
    assert hash(summary) == hash(parse_summaries(dump_summaries([summary]))[0])


def test_unknown_access_fields_are_reported_as_a_problem() -> None:
    text = '[{"name":"a","scoreName":"s","sourceAccess":{"methods":{"new":1}}},{"name":"b","scoreName":"t"}]'
    first, second = parse_summaries(text)
    assert first.source_access is not None
    assert "methods.new: is not a known field" in first.source_access.problem
    assert second.source_access is None
