"""Workload identities, with servers that imitate the clouds' and check the signature of the ServiceAccount's token."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsf.auth import tokencache
from dsf.auth.secrets import SecretError, Token
from dsf.http import addresses
from tests.support import amazon
from tests.support.authenticatedquery import GOOD, SourceAccessHarness, require_header
from tests.support.cloudservers import (
    AWS_KEY,
    KEY_OF,
    POD,
    POD_TOKEN,
    AgentAndClouds,
    Clouds,
    Cluster,
    as_pod,
    serve_pod_keys,
)
from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer, hang, with_clock_offset
from tests.support.tlsca import TestCa


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Its key takes a while."""
    return Cluster()


@pytest.fixture
def world(
    bed: SourceAccessHarness, ca: TestCa, local: ssl.SSLContext, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentAndClouds]:
    """Clouds that a private CA vouches for."""
    monkeypatch.setattr(bed.secrets, "request_account_token", cluster.token)
    cluster.issued_tokens.clear()
    cluster.ahead = 0
    bed.put("ca", ca_crt=ca.cert.read_bytes())
    clouds = Clouds(cluster, local)
    with clouds.server:
        yield AgentAndClouds(bed, clouds, {"caRef": {"kind": "Secret", "name": "ca"}})


def signed(exchange: Exchange) -> None:
    """As `checks` of test_aws.py, for the role's key."""
    authorization = exchange.request.headers["Authorization"]
    names = authorization.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    signature = amazon.compute_signature(exchange, "eu-west-1", "aps", names)
    session = exchange.request.headers.get("X-Amz-Security-Token")
    is_valid = (
        authorization.endswith(f"Signature={signature}")
        and f"Credential={AWS_KEY[0]}/" in authorization
        and session == AWS_KEY[2]
    )
    (GOOD if is_valid else answer(authorization, 403))(exchange)


def source(world: AgentAndClouds, cloud: str) -> ScriptedServer:
    """Takes the newest token only, or requests that are signed with the role's key."""
    newest = require_header("Authorization", lambda: f"Bearer {world.clouds.token}")
    return ScriptedServer(signed if cloud == "aws" else newest)


CLOUDS = ("azure", "gcp", "aws")


@pytest.mark.parametrize("cloud", CLOUDS)
def test_cloud_token_is_reused_for_several_cycles(world: AgentAndClouds, cloud: str) -> None:
    bed, methods = world.bed, world.methods(cloud)
    with source(world, cloud) as server:
        assert [bed.fetch(server.url, methods, world.tls) for _ in range(3)] == [1, 1, 1]
    assert (world.clouds.tokens_issued, len(world.clouds.cluster.issued_tokens)) == (1, 1)
    messages = "\n".join(bed.display_lines)
    for secret in (*world.clouds.cluster.issued_tokens, world.clouds.token, *AWS_KEY[1:]):
        assert secret not in messages
    assert "***" in messages


def test_google_service_account_is_impersonated(world: AgentAndClouds) -> None:
    methods = world.methods("gcp", serviceAccount=KEY_OF)
    with source(world, "gcp") as server:
        assert world.bed.fetch(server.url, methods, world.tls) == 1
    assert world.clouds.tokens_issued == 2


def test_google_key_ignores_its_token_uri_and_a_broken_key_is_reported(world: AgentAndClouds) -> None:
    bed, url = world.bed, f"{world.clouds.server.url}/key/token"
    private = world.clouds.cluster.key.as_pem(private=True).decode()
    info = {
        "type": "service_account",
        "client_email": KEY_OF,
        "private_key": private,
        "token_uri": "https://evil.example",
    }
    bed.put("google", **{"key.json": json.dumps(info)}, broken=json.dumps({**info, "private_key": "n0-key"}))
    methods = {"gcp": {"key": {"name": "google", "key": "key.json"}, "tokenURL": url}}
    with source(world, "gcp") as server:
        assert [bed.fetch(server.url, methods, world.tls) for _ in range(2)] == [1, 1]
        assert world.clouds.tokens_issued == 1
        broken = {"gcp": {"key": {"name": "google", "key": "broken"}, "tokenURL": url}}
        error = bed.failure(server.url, broken, world.tls)
        assert (error.reason, "n0-key" in error.message) == ("secret_invalid", False)
        # Only the careless server repeats the signed token.
        info["client_email"] = "other@fleet.iam.gserviceaccount.com"
        bed.put("google", **{"key.json": json.dumps(info)})
        error = bed.failure(server.url, methods, world.tls)
        assert (error.reason, "eyJ" in error.message) == ("auth_failed", False)
        # The Secret has to be released for the server of tokens, too.
        bed.put("google", usable_for=f"127.0.0.1:{server.port}")
        assert bed.failure(server.url, methods, world.tls).reason == "secret_refused"


# This machine's clock may be late, so Amazon's keys are renewed before they expire.
@pytest.mark.parametrize(("cloud", "lifetime"), [("azure", 100), ("gcp", 100), ("aws", 50), ("pod", 50)])
@pytest.mark.usefixtures("pod")
def test_cloud_token_is_renewed_before_its_end(
    world: AgentAndClouds, cloud: str, lifetime: int, later: Callable[[float], None]
) -> None:
    world.clouds.seconds = 100
    methods, tls = (POD, None) if cloud == "pod" else (world.methods(cloud), world.tls)
    with source(world, "aws" if cloud == "pod" else cloud) as server:
        # Times of ends have no parts of seconds.
        for seconds, expected_tokens in ((0, 1), (0.8 * lifetime - 2, 1), (0.8 * lifetime + 1, 2)):
            later(seconds)
            assert (world.bed.fetch(server.url, methods, tls), world.clouds.tokens_issued) == (1, expected_tokens)


@pytest.mark.parametrize("cloud", [*CLOUDS, "account"])
def test_valid_token_is_used_while_the_api_server_is_away(
    world: AgentAndClouds, cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokencache, "_RENEWAL_SHARE", 0.0)
    world.clouds.seconds = 30
    requested_audiences: list[str] = []

    def down(audience: str, seconds: int, _: float) -> Token:
        requested_audiences.append(audience)
        raise SecretError("the API server is away", "auth_failed")

    def account_token(audience: str, seconds: int, _: float) -> Token:
        return Token(world.clouds.cluster.token(audience, 600).value, 30.0)

    monkeypatch.setattr(world.bed.secrets, "request_account_token", account_token)
    is_account = cloud == "account"
    methods = {"serviceAccountToken": {"audience": "thanos"}} if is_account else world.methods(cloud)
    with ScriptedServer(GOOD) if is_account else source(world, cloud) as server:
        assert world.bed.fetch(server.url, methods, None if is_account else world.tls) == 1
        monkeypatch.setattr(world.bed.secrets, "request_account_token", down)
        assert world.bed.fetch(server.url, methods, None if is_account else world.tls) == 1
        assert len(requested_audiences) == 1
        if cloud != "aws":
            # A refused token is discarded.
            server.script(answer("no", 401))
            assert world.bed.failure(server.url, methods, None if is_account else world.tls).reason == "auth_failed"


@pytest.mark.parametrize("cloud", ["azure", "gcp"])
def test_cloud_token_is_renewed_once_after_a_401(world: AgentAndClouds, cloud: str) -> None:
    bed, methods = world.bed, world.methods(cloud)
    with source(world, cloud) as server:
        assert bed.fetch(server.url, methods, world.tls) == 1
        world.clouds.tokens_issued += 10
        assert bed.fetch(server.url, methods, world.tls) == 1
        server.script(answer("no such audience", 401))
        error = bed.failure(server.url, methods, world.tls)
    assert (error.reason, world.clouds.tokens_issued) == ("unauthorized", 13)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_forged_cluster_token_is_refused_by_the_cloud(
    world: AgentAndClouds, cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = Cluster()
    monkeypatch.setattr(world.bed.secrets, "request_account_token", forged.token)
    with source(world, cloud) as server:
        error = world.bed.failure(server.url, world.methods(cloud), world.tls)
        assert server.requests == []
    assert error.reason == "auth_failed"
    assert "HTTP 400" in error.message
    (token,) = forged.issued_tokens
    # Only the careless server repeats it.
    assert token not in error.message
    assert token.split(".")[1] not in error.message


@pytest.mark.parametrize("ahead", [7200, -7200])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_cluster_clock_difference_is_reported_by_a_cloud_token_failure(
    world: AgentAndClouds, cloud: str, ahead: int
) -> None:
    """Its tokens are not valid yet, or have expired. The agent uses the cluster's clock; the cloud's clock differs."""
    world.clouds.cluster.ahead = ahead
    world.clouds.server.script(with_clock_offset(-ahead, world.clouds.give))
    with source(world, cloud) as server:
        error = world.bed.failure(server.url, world.methods(cloud), world.tls)
        assert server.requests == []
    assert (error.reason, world.clouds.tokens_issued) == ("auth_failed", 0)
    assert "HTTP 400" in error.message
    assert f"s {'behind' if ahead > 0 else 'ahead of'} that of who asks" in error.message
    assert "eyJ" not in error.message


@pytest.mark.parametrize("ahead", [7200, -7200])
def test_cluster_clock_difference_is_reported_for_a_projected_token(world: AgentAndClouds, ahead: int) -> None:
    cluster = world.clouds.cluster
    methods = {"serviceAccountToken": {"audience": "thanos"}}

    def check(exchange: Exchange) -> None:
        token = exchange.request.headers["Authorization"].removeprefix("Bearer ")
        challenge = 'Bearer error="invalid_token"'
        (GOOD if cluster.is_valid_token(token, "thanos") else answer("", 401, WWW_Authenticate=challenge))(exchange)

    with ScriptedServer(with_clock_offset(-ahead, check)) as server:
        assert world.bed.fetch(server.url, methods) == 1
        cluster.ahead = ahead
        # The cached token is valid; a new one is not.
        assert world.bed.fetch(server.url, methods) == 1
        error = world.bed.failure(server.url, {"serviceAccountToken": {"audience": "thanos", "expirationSeconds": 700}})
        assert len(cluster.issued_tokens) == 3
    assert error.reason == "unauthorized"
    assert 'error="invalid_token"' in error.message
    assert f"s {'behind' if ahead > 0 else 'ahead of'} that of who asks" in error.message
    assert "it was asked with a token that was got anew for it" in error.message
    assert not [token for token in cluster.issued_tokens if token in error.message]


BAD: dict[str, Handler] = {
    "HTML": answer("<html>log in</html>", Content_Type="text/html"),
    "other JSON": answer([1]),
    "no token": answer({"expires_in": 3}),
    "too large": answer(b"x" * 300_000),
    "redirect": answer("", 302, Location="http://127.0.0.1:1/"),
    "hangs": hang,
}


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("response_kind", BAD)
def test_cloud_server_without_a_token_fails_as_auth_failed(
    world: AgentAndClouds, cloud: str, response_kind: str, local: ssl.SSLContext
) -> None:
    world.bed.seconds = 1 if response_kind == "hangs" else 30
    with ScriptedServer(BAD[response_kind], tls=local) as server, ScriptedServer(answer("never asked")) as never:
        error = world.bed.failure(never.url, world.methods(cloud, server.url), world.tls)
        assert never.requests == []
    assert (error.reason, "no token from" in error.message) == ("auth_failed", True)
    for token in world.clouds.cluster.issued_tokens:
        assert token not in error.message


#: A fresh token that the agent cannot use, so that it is not known for masking.
NEW = "eyJuZXctdG9rZW4iOiJvZi1jbG91ZCJ9"


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    ("invalid_response", "expected_message"),
    [
        (answer({"access_token": NEW, "error_codes": [NEW]}, 201), "HTTP 201: only status 200 counts as a response"),
        (answer(f"<SessionToken>{NEW}</SessionToken>", 500), "that is not shown, as it may hold a token"),
    ],
)
def test_token_in_an_invalid_cloud_response_is_not_shown(
    world: AgentAndClouds, cloud: str, invalid_response: Handler, expected_message: str
) -> None:
    world.clouds.server.script(invalid_response)
    error = world.bed.failure("http://127.0.0.1:1", world.methods(cloud), world.tls)
    assert (error.reason, NEW[:8] in error.message) == ("auth_failed", False)
    assert expected_message in error.message


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": {"code": 403, "message": "no such pool", "status": "PERMISSION_DENIED"}},
        {"error": "403", "error_description": "no such pool", "trace": NEW},
        f"<Error><Type>Sender</Type><Code>403</Code><Message>no such pool</Message></Error><T>{NEW}</T>",
    ],
)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_cloud_error_message_is_shown(world: AgentAndClouds, cloud: str, refusal: object) -> None:
    world.clouds.server.script(answer(refusal, 403))
    error = world.bed.failure("http://127.0.0.1:1", world.methods(cloud), world.tls)
    assert "HTTP 403: 403: no such pool" in error.message
    assert NEW[:8] not in error.message


def test_untrusted_ca_of_a_cloud_server_fails_as_auth_failed(
    world: AgentAndClouds, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = TestCa(tmp_path_factory.mktemp("other-ca"))
    world.bed.put("ca", ca_crt=other.cert.read_bytes())
    for cloud in CLOUDS:
        error = world.bed.failure("http://127.0.0.1:1", world.methods(cloud), world.tls)
        assert (error.reason, "certificate" in error.message) == ("auth_failed", True)
    assert world.clouds.server.requests == []


@pytest.mark.parametrize(
    ("cloud", "modules"), [("azure", ["azure.identity"]), ("gcp", ["google.auth"]), ("aws", ["botocore.auth"])]
)
def test_missing_cloud_library_is_named(
    world: AgentAndClouds, cloud: str, modules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"dsf.clouds.{cloud}", raising=False)
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    error = world.bed.failure("http://127.0.0.1:1", world.methods(cloud), world.tls)
    assert error.reason == "auth_unsupported"
    assert f"dynamic-scoring-framework[{cloud}]" in error.message


@pytest.fixture
def pod(world: AgentAndClouds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedServer]:
    """The agent's pod, and EKS's agent."""
    with ScriptedServer(serve_pod_keys(world.clouds)) as running:
        as_pod(monkeypatch, running, tmp_path / "eks-pod-identity-token")
        yield running


def test_eks_pod_identity_key_is_fetched_once_and_not_shown(
    world: AgentAndClouds, pod: ScriptedServer, tmp_path: Path
) -> None:
    with source(world, "aws") as server:
        assert [world.bed.fetch(server.url, POD) for _ in range(3)] == [1, 1, 1]
        assert (world.clouds.tokens_issued, pod.paths()) == (1, ["/v1/credentials"])
        messages = "\n".join(world.bed.display_lines)
        assert not [secret for secret in (POD_TOKEN, *AWS_KEY[1:]) if secret in messages]
        # Only the careless server repeats a token, which has expired by then; the cached key is valid.
        (tmp_path / "eks-pod-identity-token").write_text("0ther-token-of-eks")
        assert world.bed.fetch(server.url, POD) == 1
        error = world.bed.failure(server.url, {"aws": {**POD["aws"], "service": "other"}})
    assert (error.reason, "0ther-token" in error.message) == ("auth_failed", False)
    assert "no key from EKS Pod Identity: HTTP 400" in error.message


def test_pod_without_eks_identity_is_reported_and_no_other_url_is_queried(
    world: AgentAndClouds, pod: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
    # Only EKS's agent is queried, whatever the environment contains.
    for url in ("http://169.254.169.254/latest", "http://192.0.2.1/v1", "file:///etc/passwd", "http://eks.example/"):
        monkeypatch.setenv(name, url)
        error = world.bed.failure("http://127.0.0.1:1", POD)
        assert (error.reason, url in error.message) == ("secret_refused", False)
    monkeypatch.delenv(name)
    error = world.bed.failure("http://127.0.0.1:1", POD)
    assert (error.reason, "make an association of ServiceAccount" in error.message) == ("secret_missing", True)
    assert pod.requests == []


@pytest.mark.parametrize("body", ["<html>", {"AccessKeyId": "a"}, [1]])
def test_eks_pod_identity_response_without_a_key_fails_as_auth_failed(
    world: AgentAndClouds, pod: ScriptedServer, body: object
) -> None:
    pod.script(answer(body))
    error = world.bed.failure("http://127.0.0.1:1", POD)
    assert (error.reason, "its response cannot be used" in error.message) == ("auth_failed", True)


def test_key_in_an_invalid_eks_pod_identity_response_is_not_shown(world: AgentAndClouds, pod: ScriptedServer) -> None:
    pod.script(answer({"AccessKeyId": "a", "SecretAccessKey": AWS_KEY[1], "Token": AWS_KEY[2]}, 201))
    error = world.bed.failure("http://127.0.0.1:1", POD)
    assert (error.reason, "HTTP 201" in error.message) == ("auth_failed", True)
    assert not [secret for secret in AWS_KEY[1:] if secret[:8] in error.message]


def test_hanging_eks_pod_identity_times_out(world: AgentAndClouds, pod: ScriptedServer) -> None:
    pod.script(hang)
    # Longer if the server was not called in that time, because the machine may be busy.
    for seconds in (1, 5, 20):
        world.bed.seconds = seconds
        error = world.bed.failure("http://127.0.0.1:1", POD)
        if pod.requests:
            break
    assert (error.reason, "no complete response within" in error.message) == ("auth_failed", True)


def test_metadata_address_is_queried_for_the_key_only(
    world: AgentAndClouds, pod: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EKS's agent has a link-local address. A scorer with this address as its source gets no response and no
    signature.
    """
    monkeypatch.setattr(addresses, "is_link_local_or_metadata", lambda _: True)
    for _ in range(2):
        assert world.bed.failure(pod.url, POD).reason == "address_refused"
    assert (world.clouds.tokens_issued, pod.paths()) == (1, ["/v1/credentials"])


@pytest.mark.parametrize(
    ("text", "renewed"), [(b"The security token included in the request is expired", 1), (b"AccessDenied", 0)]
)
def test_expired_aws_session_is_renewed(world: AgentAndClouds, pod: ScriptedServer, text: bytes, renewed: int) -> None:
    """With 403: only its words tell it from a missing permission."""
    with source(world, "aws") as server:
        assert world.bed.fetch(server.url, POD) == 1
        tokens_before = world.clouds.tokens_issued
        server.script(answer(text.decode(), 403))
        assert world.bed.failure(server.url, POD).reason == "unauthorized"
        assert world.clouds.tokens_issued - tokens_before == renewed
