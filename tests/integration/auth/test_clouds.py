"""Workload identities: servers that play those of the clouds and check the signature of the ServiceAccount's token."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from dsf.auth.secrets import AccountToken
from tests.integration.auth import test_aws
from tests.integration.auth.bed import GOOD, Bed, asks_for, server_context
from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer, hang
from tests.support.tlsca import TestCa

ACCOUNT = "system:serviceaccount:dynamic-scoring:dynamic-scoring-agent"
POOL = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/fleet/providers/cluster1"
ROLE = "arn:aws:iam::123456789012:role/scoring"
KEY_OF = "scoring@fleet.iam.gserviceaccount.com"
AWS_KEY = ("ASIAEXAMPLE", test_aws.KEY, "sessi0n-of-role")


class Cluster:
    """The managed cluster's API server as far as it signs tokens of ServiceAccounts."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048)
        self.given: list[str] = []

    def token(self, audience: str, seconds: int) -> AccountToken:
        """A new token."""
        now = int(time.time())
        claims = {"iss": "https://cluster1", "sub": ACCOUNT, "aud": [audience], "exp": now + seconds}
        self.given.append(jwt.encode({"alg": "RS256"}, claims, self.key))
        return AccountToken(self.given[-1], float(seconds))

    def good(self, token: str, audience: str) -> bool:
        """Whether this is a token of the agent's account for this audience, by its signature."""
        try:
            claims = jwt.decode(token, self.key).claims
            jwt.JWTClaimsRegistry().validate(claims)
        except (JoseError, ValueError):
            return False
        return bool(claims["sub"] == ACCOUNT and claims["aud"] == [audience])


class Clouds:
    """All three. Tokens are named by their number."""

    def __init__(self, cluster: Cluster, context: Any) -> None:
        self.cluster = cluster
        self.given = 0
        self.seconds = 3600
        self.server = ScriptedServer(self._give, tls=context)

    @property
    def token(self) -> str:
        """The newest."""
        return f"cl0ud-token-{self.given}"

    def _give(self, exchange: Exchange) -> None:
        form = {name: values[0] for name, values in parse_qs(exchange.request.body.decode()).items()}
        path = exchange.request.path
        if path == "/tenant/oauth2/v2.0/token":
            found = self._azure(form)
        elif path == "/key/token":
            found = self._google_key(form)
        elif path == "/v1/token":
            found = self._google(form)
        elif path == "/v1/projects/-/serviceAccounts/scoring@fleet.iam.gserviceaccount.com:generateAccessToken":
            found = self._impersonated(exchange)
        elif form.get("Action") == "AssumeRoleWithWebIdentity":
            found = self._amazon(form)
        else:
            found = None
        if found is None:
            # As a careless server does: with all that was sent.
            exchange.send(exchange.request.body + str(exchange.request.headers).encode(), 400)
        elif isinstance(found, bytes):
            exchange.send(found, Content_Type="text/xml")
        else:
            answer(found)(exchange)

    def _azure(self, form: dict[str, str]) -> Any:
        wanted = {
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_id": "app",
            "scope": "https://prometheus.monitor.azure.com/.default",
        }
        good = self.cluster.good(form.get("client_assertion", ""), "api://AzureADTokenExchange")
        if not good or not wanted.items() <= form.items():
            return None
        self.given += 1
        return {"token_type": "Bearer", "access_token": self.token, "expires_in": self.seconds}

    def _google(self, form: dict[str, str]) -> Any:
        wanted = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": POOL}
        good = self.cluster.good(form.get("subject_token", ""), f"https:{POOL}")
        if not good or not wanted.items() <= form.items():
            return None
        self.given += 1
        kind = "urn:ietf:params:oauth:token-type:access_token"
        more = {"issued_token_type": kind, "token_type": "Bearer", "expires_in": self.seconds}
        return {"access_token": self.token, **more}

    def _google_key(self, form: dict[str, str]) -> Any:
        try:
            claims = jwt.decode(form["assertion"], self.cluster.key).claims
            jwt.JWTClaimsRegistry().validate(claims)
        except (JoseError, ValueError):
            return None
        if (claims["iss"], claims["aud"]) != (KEY_OF, "https://oauth2.googleapis.com/token"):
            return None
        self.given += 1
        return {"access_token": self.token, "token_type": "Bearer", "expires_in": self.seconds}

    def _impersonated(self, exchange: Exchange) -> Any:
        scopes = exchange.request.json()["scope"]
        if exchange.request.headers.get("Authorization") != f"Bearer {self.token}" or len(scopes) != 1:
            return None
        self.given += 1
        ends = datetime.now(UTC) + timedelta(seconds=self.seconds)
        return {"accessToken": self.token, "expireTime": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def _amazon(self, form: dict[str, str]) -> Any:
        good = self.cluster.good(form.get("WebIdentityToken", ""), "sts.amazonaws.com")
        if not good or form["RoleArn"] != ROLE:
            return None
        self.given += 1
        key, secret, session = AWS_KEY
        ends = (datetime.now(UTC) + timedelta(seconds=self.seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return (
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key}</AccessKeyId>"
            f"<SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{session}</SessionToken>"
            f"<Expiration>{ends}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
            "</AssumeRoleWithWebIdentityResponse>"
        ).encode()


class World(NamedTuple):
    """One agent, and the clouds behind one address."""

    bed: Bed
    clouds: Clouds
    tls: dict[str, Any]

    def methods(self, cloud: str, url: str = "", **more: Any) -> dict[str, Any]:
        """The method of a cloud; `url` is where tokens are given."""
        url = url or self.clouds.server.url
        told: dict[str, dict[str, Any]] = {
            "azure": {"tenantID": "tenant", "clientID": "app", "authorityURL": url},
            "gcp": {"audience": POOL, "tokenURL": f"{url}/v1/token", "credentialsURL": url},
            "aws": {"region": "eu-west-1", "roleARN": ROLE, "stsURL": url},
        }
        return {cloud: {**told[cloud], **more}}


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Its key takes a while."""
    return Cluster()


@pytest.fixture
def world(bed: Bed, ca: TestCa, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Clouds that a private CA vouches for."""
    monkeypatch.setattr(bed.secrets, "account_token", cluster.token)
    cluster.given.clear()
    bed.put("ca", ca_crt=ca.cert.read_bytes())
    clouds = Clouds(cluster, server_context(ca.issue("127.0.0.1")))
    with clouds.server:
        yield World(bed, clouds, {"caRef": {"kind": "Secret", "name": "ca"}})


def signed(exchange: Exchange) -> None:
    """As `test_aws.checks`, for the role's key."""
    said = exchange.request.headers["Authorization"]
    names = said.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    wanted = test_aws.expected(exchange, "eu-west-1", "aps", names)
    session = exchange.request.headers.get("X-Amz-Security-Token")
    good = said.endswith(f"Signature={wanted}") and f"Credential={AWS_KEY[0]}/" in said and session == AWS_KEY[2]
    (GOOD if good else answer(said, 403))(exchange)


def source(world: World, cloud: str, context: Any = None) -> ScriptedServer:
    """Takes the newest token only, or requests that are signed with the role's key."""
    newest = asks_for("Authorization", lambda: f"Bearer {world.clouds.token}")
    return ScriptedServer(signed if cloud == "aws" else newest, tls=context)


CLOUDS = ("azure", "gcp", "aws")


@pytest.mark.parametrize("cloud", CLOUDS)
def test_one_token_for_many_cycles(world: World, cloud: str) -> None:
    bed, methods = world.bed, world.methods(cloud)
    with source(world, cloud) as server:
        assert [bed.fetch(server.url, methods, world.tls) for _ in range(3)] == [1, 1, 1]
    assert (world.clouds.given, len(world.clouds.cluster.given)) == (1, 1)
    shown = "\n".join(bed.shown)
    for secret in (*world.clouds.cluster.given, world.clouds.token, *AWS_KEY[1:]):
        assert secret not in shown
    assert "***" in shown


def test_a_service_account_of_google(world: World) -> None:
    methods = world.methods("gcp", serviceAccount=KEY_OF)
    with source(world, "gcp") as server:
        assert world.bed.fetch(server.url, methods, world.tls) == 1
    assert world.clouds.given == 2


def test_a_key_of_google(world: World) -> None:
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
        assert world.clouds.given == 1
        broken = {"gcp": {"key": {"name": "google", "key": "broken"}, "tokenURL": url}}
        error = bed.failure(server.url, broken, world.tls)
        assert (error.reason, "n0-key" in error.message) == ("secret_invalid", False)
        # The careless server repeats what was signed, and nobody else.
        info["client_email"] = "other@fleet.iam.gserviceaccount.com"
        bed.put("google", **{"key.json": json.dumps(info)})
        error = bed.failure(server.url, methods, world.tls)
        assert (error.reason, "eyJ" in error.message) == ("auth_failed", False)
        # The Secret has to be released for the server of tokens, too.
        bed.put("google", usable_for=f"127.0.0.1:{server.port}")
        assert bed.failure(server.url, methods, world.tls).reason == "secret_refused"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_renewed_before_its_end(world: World, cloud: str) -> None:
    world.clouds.seconds = 2
    with source(world, cloud) as server:
        until = time.monotonic() + 60
        while world.clouds.given < 2:
            assert time.monotonic() < until
            assert world.bed.fetch(server.url, world.methods(cloud), world.tls) == 1


@pytest.mark.parametrize("cloud", ["azure", "gcp"])
def test_after_a_401_it_is_got_anew_once(world: World, cloud: str) -> None:
    bed, methods = world.bed, world.methods(cloud)
    with source(world, cloud) as server:
        assert bed.fetch(server.url, methods, world.tls) == 1
        world.clouds.given += 10
        assert bed.fetch(server.url, methods, world.tls) == 1
        server.script(answer("no such audience", 401))
        error = bed.failure(server.url, methods, world.tls)
    assert (error.reason, world.clouds.given) == ("unauthorized", 13)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_token_that_is_not_the_clusters(world: World, cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = Cluster()
    monkeypatch.setattr(world.bed.secrets, "account_token", forged.token)
    with source(world, cloud) as server:
        error = world.bed.failure(server.url, world.methods(cloud), world.tls)
        assert server.requests == []
    assert error.reason == "auth_failed"
    assert "HTTP 400" in error.message
    (token,) = forged.given
    # The careless server repeats it, and nobody else.
    assert token not in error.message
    assert token.split(".")[1] not in error.message


BAD: dict[str, Handler] = {
    "HTML": answer("<html>log in</html>", Content_Type="text/html"),
    "other JSON": answer([1]),
    "no token": answer({"expires_in": 3}),
    "too large": answer(b"x" * 300_000),
    "redirect": answer("", 302, Location="http://127.0.0.1:1/"),
    "hangs": hang,
}


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("what", BAD)
def test_a_server_that_gives_none(world: World, cloud: str, what: str, ca: TestCa) -> None:
    world.bed.seconds = 1 if what == "hangs" else 30
    context = server_context(ca.issue("127.0.0.1"))
    with ScriptedServer(BAD[what], tls=context) as server, ScriptedServer(answer("never asked")) as never:
        error = world.bed.failure(never.url, world.methods(cloud, server.url), world.tls)
        assert never.requests == []
    assert (error.reason, "no token from" in error.message) == ("auth_failed", True)
    for token in world.clouds.cluster.given:
        assert token not in error.message


def test_a_ca_that_did_not_sign(world: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = TestCa(tmp_path_factory.mktemp("other-ca"))
    world.bed.put("ca", ca_crt=other.cert.read_bytes())
    for cloud in CLOUDS:
        error = world.bed.failure("http://127.0.0.1:1", world.methods(cloud), world.tls)
        assert (error.reason, "certificate" in error.message) == ("auth_failed", True)
    assert world.clouds.server.requests == []


@pytest.mark.parametrize(
    ("cloud", "modules"), [("azure", ["azure.identity"]), ("gcp", ["google.auth"]), ("aws", ["botocore.auth"])]
)
def test_without_its_library(world: World, cloud: str, modules: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    error = world.bed.failure("http://127.0.0.1:1", world.methods(cloud), world.tls)
    assert error.reason == "auth_unsupported"
    assert f"dynamic-scoring-framework[{cloud}]" in error.message
