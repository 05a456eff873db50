"""Whatever is wrong with a source, its authentication or its plug-in is said in the status and by `dsf status`.

All of it at once on one cluster, beside a scorer that works: it does not notice, and no secret is seen anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.fleet import BY_HAND, GROUP, SERIES, Fleet, scores
from tests.integration.auth.bed import TokenServer, server_context
from tests.support.httpserver import Exchange, ScriptedServer, answer, hang, matrix
from tests.support.plugins import install
from tests.support.tlsca import TestCa

pytestmark = pytest.mark.xdist_group("faults-sources")

#: Seconds between two cycles of those that fail: all of them are on one agent.
INTERVAL = 4
CANARY = "canary-of-"
#: A value of the cluster that would end a string of PromQL and go on with another query.
INJECTION = 'x"} or secret_metric{a="'
PLUGINS = {
    "breaks": "raise RuntimeError('no such library')",
    "raises": (
        "from dsf.sources.plugin import Options, Plugin\n"
        "def fetch(request):\n    raise KeyError('power')\n"
        "it = Plugin(1, Options, fetch)"
    ),
    "shapeless": (
        "from dsf.sources.plugin import Options, Plugin\nit = Plugin(1, Options, lambda request: [{'power': 1}])"
    ),
}


class World(Fleet):
    """The stack with servers that want to know who asks, and an agent with plug-ins of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.packages = folder / "packages"
        for name, module in PLUGINS.items():
            install(self.packages, f"dsf_{name}", {f"{name}.example.com": f"dsf_{name}:it"}, module)
        self.ca, self.other_ca = TestCa(folder / "ca"), TestCa(folder / "other", "other CA")
        self.tokens = TokenServer(f"{CANARY}client")
        self.web = ScriptedServer(answer("<html>log in</html>", Content_Type="text/html"))
        self.hanging = ScriptedServer(hang)
        self.once = ScriptedServer(matrix(SERIES), answer("who are you", 401))
        server = self.ca.issue("127.0.0.1")
        self.private = ScriptedServer(matrix(SERIES), tls=server_context(server))
        self.mutual = ScriptedServer(matrix(SERIES), tls=server_context(server, self.other_ca))
        self.source.script(self._matrix_or_echo)

    def start(self) -> None:
        """With all servers, Secrets and the values of the cluster."""
        self.secret("token", token=f"{CANARY}token")
        self.secret("client", secret=f"{CANARY}client")
        self.secret("two-lines", token=f"{CANARY}line\r\nInjected: 1")
        self.secret("ca", **{"ca.crt": self.ca.cert.read_text()})
        self.secret("other-ca", **{"ca.crt": self.other_ca.cert.read_text()})
        ended = self.other_ca.issue("agent", start=timedelta(days=-3), end=timedelta(days=-1))
        self.secret("expired", **{"tls.crt": ended.cert.read_text(), "tls.key": ended.key.read_text()})
        for server in (self.tokens.server, self.web, self.hanging, self.once, self.private, self.mutual):
            self._servers.enter_context(server)
        super().start()
        # An API server would refuse such labels; ClusterClaims may be like that there.
        labels = {"evil": INJECTION, "lines": "a\r\nInjected: 1"}
        manifest = yaml.safe_load((self.manifests / "cluster-c1.yaml").read_text())
        draft = self.manifests / ".cluster-c1.new"
        draft.write_text(yaml.safe_dump({**manifest, "metadata": {"name": "c1", "labels": labels}}))
        draft.rename(self.manifests / "cluster-c1.yaml")

    def environment(self, name: str) -> dict[str, str]:
        """The agent's image has the plug-ins, nobody else's."""
        found = super().environment(name)
        if name.startswith("agent"):
            found["PYTHONPATH"] += os.pathsep + str(self.packages)
        return found

    def secret(self, name: str, **keys: str) -> None:
        """A Secret of the managed cluster, released for this machine."""
        folder = self.folder / "secrets" / "c1" / name
        folder.mkdir(parents=True)
        for key, value in {**keys, "usable-for": "127.0.0.1"}.items():
            (folder / key).write_bytes(value.encode())

    def apply(self, name: str, **sources: Any) -> None:
        """A DynamicScorer with this `source`, or these `sources`."""
        body = {
            "description": "a test's",
            "configURL": f"{self.api.url}/config",
            "configSyncMode": "None",
            "scoreDimensionFormat": "${node}",
            "scoring": {"path": "/scored", "params": {"name": f"{name}-score", "interval": INTERVAL}},
            "execution": {"timeoutSeconds": 2, "maxRetries": 0},
            **sources,
        }
        self.write(f"scorer-{name}", GROUP, "DynamicScorer", name, body)

    def prometheus(self, server: ScriptedServer | None = None, query: str = "up", **more: Any) -> dict[str, Any]:
        """A source."""
        url = (server or self.source).url
        return {"type": "Prometheus", "host": url, "params": {"query": query, "range": 60, "step": 5}, **more}

    def oauth2(self, server: ScriptedServer) -> dict[str, Any]:
        """Its authentication by a token of this server."""
        secret = {"name": "client", "key": "secret"}
        return {"oauth2": {"tokenURL": f"{server.url}/token", "clientID": {"value": "client"}, "clientSecret": secret}}

    @staticmethod
    def _matrix_or_echo(exchange: Exchange) -> None:
        """A source that repeats in its refusal whatever secret it got."""
        if CANARY in str(exchange.request.headers):
            exchange.send(json.dumps(exchange.request.headers).encode(), 403)
        else:
            matrix(SERIES)(exchange)


@dataclass(frozen=True)
class Bad:
    """What is wrong with a scorer, and what is to be said of it."""

    #: `source=` or `sources=` of its spec.
    source: Callable[[World], dict[str, Any]]
    reason: str
    words: tuple[str, ...]
    #: The condition that says it; empty where cycles end with it.
    condition: str = ""


def one(**auth: Any) -> Callable[[World], dict[str, Any]]:
    """One source with this authentication."""
    return lambda world: {"source": world.prometheus(auth=auth)}


def ref(name: str, key: str = "token") -> dict[str, str]:
    """A key of a Secret."""
    return {"name": name, "key": key}


def tls(world: World, server: ScriptedServer, ca: str, **more: Any) -> dict[str, Any]:
    """A source over TLS, with this CA."""
    return {"source": world.prometheus(server, tls={"caRef": {"kind": "Secret", "name": ca, "key": "ca.crt"}}, **more)}


def plugin(kind: str) -> Callable[[World], dict[str, Any]]:
    """A source of this plug-in's type."""
    return lambda world: {"source": {**world.prometheus(), "type": kind}}


#: What is refused before it is an object: field of the manifest, and what is said of it.
REFUSED: dict[str, tuple[Callable[[World], dict[str, Any]], str, str]] = {
    "an-unknown-method": (
        one(kerberos={"realm": "X"}),
        "spec.source.auth.kerberos",
        "is not a known field; allowed are tokenSecretRef, basic, oauth2",
    ),
    "a-header-of-two-lines": (
        one(headers=[{"name": "X-Scope", "value": "a\r\nInjected: 1"}]),
        "spec.source.auth.headers[0].value",
        "is not printable ASCII",
    ),
    "a-thousand-sources": (
        lambda world: {"sources": [{"name": f"s{number}", **world.prometheus()} for number in range(1000)]},
        "spec.sources",
        "has more than 8 items",
    ),
    "two-of-one-name": (
        lambda world: {"sources": [{"name": "same", **world.prometheus()}, {"name": "same", **world.prometheus()}]},
        "spec.sources",
        "two sources have the name 'same'; give each its own",
    ),
}
BAD = {
    # --- what the hub cannot make a summary of
    "an-unknown-label": Bad(
        lambda world: {"source": world.prometheus(query='up{r="${label:region}"}')},
        "MissingClusterValue",
        ("spec.source.params.query", "ManagedCluster 'c1' has no label 'region' for ${label:region}"),
        "Distributed",
    ),
    "an-unknown-template": Bad(
        lambda world: {"source": world.prometheus(query='up{r="${region}"}')},
        "UnknownTemplate",
        ("spec.source.params.query", "${region} is not one of ${cluster}, ${label:KEY}"),
        "Distributed",
    ),
    "a-value-that-is-a-query": Bad(
        lambda world: {"source": world.prometheus(query="up or ${label:evil}")},
        "UnsafeClusterValue",
        ("spec.source.params.query", "${label:evil}"),
        "Distributed",
    ),
    "a-value-of-two-lines": Bad(
        one(headers=[{"name": "X-Scope", "value": "${label:lines}"}]),
        "UnsafeClusterValue",
        ("${label:lines}",),
        "Distributed",
    ),
    # --- what the agent finds
    "a-missing-secret": Bad(one(tokenSecretRef=ref("nowhere")), "secret_missing", ("Secret 'nowhere'",)),
    "a-missing-key": Bad(
        one(tokenSecretRef=ref("token", "other")), "secret_missing", ("key 'other' of Secret 'token'",)
    ),
    "a-secret-of-two-lines": Bad(
        one(headers=[{"name": "X-Api-Key", "secretRef": ref("two-lines")}]), "secret_invalid", ("'two-lines'",)
    ),
    "a-refused-token": Bad(one(tokenSecretRef=ref("token")), "unauthorized", ("HTTP 403",)),
    "an-expired-certificate": Bad(
        lambda world: tls(world, world.mutual, "ca", auth={"clientCertificate": {"secretName": "expired"}}),
        "secret_invalid",
        ("key 'tls.crt' of Secret 'expired': the client certificate expired at 2",),
    ),
    "a-ca-that-does-not-sign": Bad(
        lambda world: tls(world, world.private, "other-ca"), "connection_failed", ("TLS failed", "certificate")
    ),
    "tokens-that-hang": Bad(
        lambda world: {"source": world.prometheus(auth=world.oauth2(world.hanging))},
        "auth_failed",
        ("no token from the OAuth2 server", "no complete answer"),
    ),
    "tokens-in-html": Bad(
        lambda world: {"source": world.prometheus(auth=world.oauth2(world.web))},
        "auth_failed",
        ("no token from the OAuth2 server", "HTTP 200, not JSON: an answer (text/html"),
    ),
    "refused-after-success": Bad(
        lambda world: {
            "source": world.prometheus(world.once, auth=world.oauth2(world.tokens.server)),
            # The one good answer must not come too late.
            "scoring": {"path": "/scored", "params": {"name": "refused-after-success-score", "interval": 10}},
            "execution": {"timeoutSeconds": 10, "maxRetries": 0},
        },
        "unauthorized",
        ("HTTP 401: who are you", "it was asked with a token that was got anew for it"),
    ),
    "nobodys-type": Bad(
        plugin("nobody.example.com"), "unsupported_source", ("nobody.example.com", "install the package", "raises.")
    ),
    "a-plug-in-that-breaks": Bad(
        plugin("breaks.example.com"),
        "plugin_failed",
        ("dsf_breaks 1.0, dsf_breaks:it cannot be loaded: RuntimeError: no such library",),
    ),
    "a-plug-in-that-raises": Bad(
        plugin("raises.example.com"), "plugin_failed", ("KeyError in dsf_raises.py:3: 'power'",)
    ),
    "a-plug-in-without-shape": Bad(plugin("shapeless.example.com"), "plugin_failed", ("dsf_shapeless 1.0", "'dict'")),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """All of them registered, beside one that is good and one whose query has a value that would like to be more."""
    with World(tmp_path_factory.mktemp("sources") / "stack") as made:
        made.api.script(scores(10), path="/scored")
        made.scorer("steady", scores(60), interval=BY_HAND, query="up")
        made.first_score("steady")
        for name, bad in BAD.items():
            made.apply(name, **bad.source(made))
        for name, (source, _, _) in REFUSED.items():
            made.apply(name, **source(made))
        made.apply("escaped", source=made.prometheus(query='up{cluster="${label:evil}"}', path="/escaped"))
        yield made


@pytest.mark.parametrize("name", REFUSED)
def test_a_manifest_that_is_refused_is_said(world: World, name: str) -> None:
    _, field, words = REFUSED[name]

    def problem() -> dict[str, Any] | None:
        said = world.data("status")["problems"]
        return next((one for one in said if one["file"] == f"scorer-{name}.yaml"), None)

    found = world.until(problem, f"{name} in `dsf status`", timeout=60) or {}
    assert found["field"] == field
    assert words in found["message"]


@pytest.mark.parametrize("name", BAD)
def test_it_is_said(world: World, name: str) -> None:
    bad = BAD[name]
    if not bad.condition:
        world.check_failure(name, "fetch", bad.reason, *bad.words, timeout=300)
        return

    def condition() -> tuple[str, str, str]:
        return world.condition(name, bad.condition)

    world.until(lambda: condition()[:2] == ("False", bad.reason), f"{bad.reason} in {world.status(name)}", timeout=60)
    for words in bad.words:
        assert words in condition()[2]
    done = world.dsf("status", name, "-o", "json")
    assert done.returncode == 1, done.stdout + done.stderr
    said = {(one["type"], one["reason"]): one["message"] for one in json.loads(done.stdout)["conditions"]}
    assert said[bad.condition, bad.reason] == condition()[2]


def test_it_did_well_before(world: World) -> None:
    """The one that is refused after a success: its first cycle was good, and each later one tries one renewal."""
    world.until(lambda: world.state("refused-after-success").count("error") >= 2, "two refusals", timeout=60)
    assert world.state("refused-after-success").count("ok") == 1
    tokens = [request.headers["Authorization"] for request in world.once.requests[:4]]
    # Good; refused, and again with a token that was got for it.
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_value_in_a_string_stays_in_it(world: World) -> None:
    world.wait_success("escaped", timeout=300)
    asked = [request.query["query"] for request in world.source.requests if request.path == "/escaped"]
    assert asked[-1] == 'up{cluster="x\\"} or secret_metric{a=\\""}'


def test_nobody_else_notices_and_nothing_leaks(world: World) -> None:
    with world.unaffected("steady"):
        world.wait_success("steady", more=2)
    assert world.failed_since("steady") == {"error": 0, "lost": 0}
    assert [request.headers for request in world.source.requests if "Injected" in request.headers] == []
    # It was sent, to a server that repeats it.
    assert any(request.headers.get("Authorization") == f"Bearer {CANARY}token" for request in world.source.requests)
    places = list(_places(world))
    # What is looked through has what was said.
    assert {"redis", "logs", "dsf status"} <= {place for place, text in places if "a-refused-token" in text}
    assert [place for place, text in places if CANARY in text] == []


def _places(world: World) -> Iterator[tuple[str, str]]:
    """(place, text) of all that is written and shown; not the Secrets themselves."""
    for folder in (world.logs, world.out, world.folder / "spool"):
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and not {".hub", "agent-credentials"} & set(path.parts):
                    yield folder.name, path.read_text(errors="replace")
    # Every command that it was ever given.
    for path in world.redis_server.dir.rglob("*.aof"):
        yield "redis", path.read_text(errors="replace")
    for page in ("/metrics", "/api/v1/scorers", "/api/v1/scores"):
        yield page, world.page("exporter", page).text
    yield "agent", world.page("agent c1", "/metrics").text
    yield "dsf status", world.dsf("status").stdout
    for name in ("a-refused-token", "refused-after-success", "a-secret-of-two-lines"):
        yield f"dsf history {name}", world.dsf("history", name).stdout
