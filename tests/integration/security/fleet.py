"""The whole framework as in production: TLS, a separate user for each process, real tokens, two clusters.

The names of the clusters are chosen so that a careless pattern for `c1` would also match `c10`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import redis
import yaml
from joserfc.jwk import RSAKey
from typer.testing import Result

from dsf.keys import spoke_queue
from dsf.messages import SigningKey, derive_key, make_run_id
from dsf.redisacl.clusterusers import ClusterUsers
from dsf.redisacl.rules import cluster_user, hub_roles, hub_user
from dsf.settings import ENV_PREFIX, TARGETS, settings
from dsf.store.pairs import Pairs, PairState
from dsf.store.registry import Registry
from dsf.store.ticks import make_tick_message
from dsf.up.httpcheck import make_http_check
from dsf.worker import commands
from tests.integration.security import identities
from tests.support import commandline, forked
from tests.support.child import Child
from tests.support.httpserver import Handler, ScriptedServer, answer, matrix
from tests.support.redisserver import free_port
from tests.support.secureredis import SecureRedis
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for

SCORER = "sample"
#: Asks with every other method of authentication.
OTHER = "other-methods"
#: Asks with the keys of clouds.
CLOUDS = "cloud-methods"
CLUSTERS = ("c1", "c10")
_IMPATIENT_HUB = (
    "from dsf.hub import credentials as c; c.OVERLAP = 1; "
    "from dsf.process.launch import launch; launch('hub', 'dsf.services.process:run')"
)
_CLIENT_SECRET = "canary-client/c0a8+116f=%"
#: Secrets that must not be in anything that the framework writes, shows or sends. The master secret is one, too.
CANARIES = {
    "source token": "canary-source-4f1d0c93",
    "scorer token": "canary-scorer-b7720e5a",
    "header": "canary-header-03fd5c1e",
    "parameter": "canary-parameter-9e1b44d0",
    "password": "canary-password-77b1e09c",
    "client secret": _CLIENT_SECRET,
    # As they are sent.
    "quoted client secret": quote(_CLIENT_SECRET, safe=""),
    "header of the client": base64.b64encode(f"agents:{quote(_CLIENT_SECRET, safe='')}".encode()).decode(),
    "access token": "canary-access-5d20e7b3",
    # Tokens in a response that is not usable, and after a 401.
    "lost token": "canary-lost-e1c85d02",
    "newer token": "canary-newer-40b7f9a6",
    "amazon key": "canary-amazon-e60b7d15",
    "amazon session": "canary-session-19d4c2fa",
    "google token": "canary-google-8a3f60d1",
    **identities.CANARIES,
    **{f"password of {role}": f"canary-redis-{role}-91c4" for role in hub_roles()},
    "master secret": "ca4a5ec2" * 8,
}
MASTER = bytes.fromhex(CANARIES["master secret"])

_ROOT = Path(__file__).parents[3]
_SERIES = {"metric": {"__name__": "up", "node": "n1"}, "values": [[1718600000, "1"], [1718600060, "0.5"]]}
_RESULTS = {"results": [{"metric": {"node": "n1"}, "score": 12.5}]}


class Fleet:
    """Start once, use often: starting takes some ten seconds. Tests leave it as they found it."""

    def __init__(self, folder: Path, clusters: tuple[str, ...] = CLUSTERS, *, every_method: bool = False) -> None:
        """Prepare the fleet; `every_method` adds scorers of every method of authentication to the one with bearer
        tokens.
        """
        self.folder = folder
        self.clusters = clusters
        self.every_method = every_method
        self.manifests = folder / "manifests"
        self.out = folder / "out"
        self.logs = folder / "logs"
        #: Commands that Redis had denied before the test began.
        self.refused: list[str] = []
        self.flower_port, self.web_port = free_port(), free_port()
        self._stack = contextlib.ExitStack()
        self._children: dict[str, Child] = {}
        self._secret_file = folder / "master-secret"

    def start(self) -> Fleet:
        """Start everything and wait for the first scores."""
        self.logs.mkdir(parents=True)
        self._secret_file.write_text(CANARIES["master secret"])
        passwords: dict[str, str] = {r: CANARIES[f"password of {r}"] for r in hub_roles()}
        self.redis = self._stack.enter_context(SecureRedis(TestCa(self.folder / "ca"), passwords=passwords))
        self.admin = self.redis.client()
        # For actions in the hub's place, and for passwords; the hub process creates the users.
        self.users = ClusterUsers(self.redis.client(hub_user("controller"), passwords["controller"]), MASTER)
        self.source = self._stack.enter_context(ScriptedServer())
        self.give_series()
        self.scorer = self._stack.enter_context(ScriptedServer(answer("ok")))
        self.scorer.script(_asks_for(f"Bearer {CANARIES['scorer token']}", answer(_RESULTS)), path="/scoring")
        self._start_others()
        self.write_manifests()
        for cluster in self.clusters:
            self._write_secrets(cluster)
        self.run_hub()
        for name in ("beat", "results", "web"):
            self._run(name, (sys.executable, "-m", "dsf.hub"), backend="dir")
        self._run("flower", tuple(commands.make_flower_command("127.0.0.1", self.flower_port)))
        for cluster in self.clusters:
            self.run_agent(cluster)
        for cluster in self.clusters:
            self.until(lambda c=cluster: self.state(c).count("ok") >= 1, f"a score of {cluster}", 60)
            for name in (OTHER, CLOUDS, identities.NAME) if self.every_method else ():
                self.until(
                    lambda c=cluster, n=name: Pairs(self.admin).read_state(c, n).count("ok") >= 1,
                    f"a score of {name} of {cluster}",
                    60,
                )
        for page in (f"{self.flower_port}/healthcheck", f"{self.web_port}/readyz"):
            self.until(make_http_check(f"http://127.0.0.1:{page}"), f"{page} to answer", 60)
        return self

    def _start_others(self) -> None:
        """The servers of the scorer that uses all other methods: mTLS with a password, and a token of OAuth2."""
        ca = TestCa(self.folder / "servers")
        server_certificate = ca.issue("127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server_certificate.cert, server_certificate.key)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca.cert)
        self._ca, self._client = ca, ca.issue("agent")
        CANARIES["private key"] = self._client.key.read_text().splitlines()[1]
        user = base64.b64encode(f"reader:{CANARIES['password']}".encode()).decode()
        self.mutual = self._stack.enter_context(
            ScriptedServer(_asks_for(f"Basic {user}", matrix(_SERIES)), tls=context)
        )
        self.oauth = self._stack.enter_context(ScriptedServer())
        self.give_tokens()

        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        plain.load_cert_chain(server_certificate.cert, server_certificate.key)
        self._identities = identities.Identities(self._stack, matrix(_SERIES), plain)

        # Servers of clouds: one that requires Amazon's signature, and those of Google's tokens.
        self._google_key = RSAKey.generate_key(2048).as_pem(private=True).decode()
        CANARIES["google key"] = self._google_key.splitlines()[1]
        self.amazon = self._stack.enter_context(ScriptedServer(matrix(_SERIES)))
        self.google = self._stack.enter_context(
            ScriptedServer(answer({"access_token": CANARIES["google token"], "token_type": "Bearer", "expires_in": 5}))
        )
        self.scorer.script(_asks_for(f"Bearer {CANARIES['google token']}", answer(_RESULTS)), path="/clouds")

    def stop(self) -> None:
        """End everything."""
        for child in self._children.values():
            child.kill()
        self._stack.close()

    def __enter__(self) -> Fleet:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- processes -----------------------------------------------------------------------------------------------

    def run_hub(self) -> None:
        """Start the hub controller."""
        self._run(
            "controller",
            # Old credentials go after a second.
            (sys.executable, "-c", _IMPATIENT_HUB),
            backend="dir",
            health_interval=1,
            hub_resync=2,
            redis_manage_users=True,
            departure_grace=0,
        )

    def run_agent(self, cluster: str) -> None:
        """Start the agent of a cluster, with the hub's delivered data as mounted files."""
        folder = self.out / "clusters" / cluster
        self.until(
            lambda: (
                (folder / "agent-credentials" / "signing-key").exists()
                and self.password_file(cluster).exists()
                and (folder / "dynamic-scoring-config.yaml").exists()
            ),
            f"the hub to serve {cluster}",
            30,
        )
        self._run(
            f"agent-{cluster}",
            (sys.executable, "-m", identities.__name__ if self.every_method else "dsf.agent"),
            cluster=cluster,
            redis_username=cluster_user(cluster),
            redis_password_file=self.password_file(cluster),
            agent_config=folder / "dynamic-scoring-config.yaml",
            signing_key_file=self.key_file(cluster),
            agent_secrets_dir=folder / "secrets",
            agent_spool_dir=self.folder / "spool" / cluster,
            listen_host="127.0.0.1",
            listen_port=0,
            redis_polling_interval=1,
        )

    def _run(self, name: str, command: tuple[str, ...], **values: object) -> None:
        environment = self.environment(name, **values)
        self._children[name] = forked.child(command, self.logs / f"{name}.log", environment)

    def environment(self, name: str, **settings: object) -> dict[str, str]:
        """Return the environment of a process, or of a person's shell with the name `operator`."""
        role = "agent" if name.startswith("agent") else name
        proxied: dict[str, str] = {}
        values: dict[str, object] = {
            "role": "cli" if role == "operator" else role,
            "redis_url": self.redis.url(),
            "redis_ca_file": self.redis.ca.cert,
            "manifests": self.manifests,
            "out_dir": self.out,
            "namespace": "open-cluster-management",
            "log_level": "DEBUG",
        }
        if role in TARGETS:
            values |= {"role": "hub", "target": role, "probe_port": 0, "listen_port": self.web_port}
        if role != "agent":
            password_file = self.folder / f"password-{role}"
            password_file.write_text(CANARIES[f"password of {role}"])
            values |= {"redis_username": hub_user(role), "redis_password_file": password_file}  # type: ignore[arg-type]
        elif self.every_method:
            proxied = {"HTTP_PROXY": self._identities.proxy, "PYTHONPATH": str(_ROOT)}
        if role in ("controller", "results"):
            values["signing_secret_file"] = self._secret_file
        # Nor the proxies of this shell.
        variables = {n: v for n, v in os.environ.items() if not n.lower().endswith("_proxy")}
        environment = {n: v for n, v in variables.items() if not n.startswith(ENV_PREFIX)}
        environment |= proxied | {ENV_PREFIX + n.upper(): str(v) for n, v in (values | settings).items()}
        return environment | {"FLOWER_UNAUTHENTICATED_API": "true", "PYTHONUNBUFFERED": "1"}

    def operator_environment(self) -> dict[str, str]:
        """Return the environment of a person at the hub, who also has the files of the first agent."""
        folder = self.out / "clusters" / self.clusters[0]
        files = {"agent_config": folder / "dynamic-scoring-config.yaml", "agent_secrets_dir": folder / "secrets"}
        return self.environment("operator", **files)

    def run_command(self, *arguments: str) -> Result:
        """Run a command of a person at the hub, in this process. Raises the error that no command should raise."""
        with mock.patch.dict(os.environ, self.operator_environment(), clear=True):
            settings.cache_clear()
            try:
                result = commandline.dsf(*arguments)
            finally:
                settings.cache_clear()
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def end(self, name: str) -> None:
        """End a process for good."""
        self._children.pop(name).kill()

    def process(self, name: str) -> Child:
        """Return the process: controller, beat, results, web, flower or agent-<cluster>."""
        return self._children[name]

    def log(self, name: str) -> str:
        """Return the whole output of a process."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    # --- files ---------------------------------------------------------------------------------------------------

    def password_file(self, cluster: str) -> Path:
        """Return the cluster's password in Redis."""
        return self.out / "clusters" / cluster / "agent-credentials" / "redis-password"

    def key_file(self, cluster: str) -> Path:
        """Return the cluster's signing key."""
        return self.out / "clusters" / cluster / "agent-credentials" / "signing-key"

    def deliver(self, cluster: str, key_id: int) -> None:
        """Deliver password and signing key of this id, as OCM does."""
        replace(self.password_file(cluster), self.users.derive_password(cluster, key_id))
        replace(self.key_file(cluster), derive_key(MASTER, cluster, key_id).dump())

    def _write_secrets(self, cluster: str) -> None:
        folder = self.out / "clusters" / cluster / "secrets"
        for name in ("source", "scorer"):
            replace(folder / name / "token", CANARIES[f"{name} token"])
            replace(folder / name / "usable-for", "127.0.0.1")
        google = {"client_email": "agents@fleet.example", "private_key": self._google_key, "token_uri": "https://x"}
        replace(folder / "others" / "google", json.dumps(google))
        for key in ("header", "parameter", "password", "client secret", "amazon key", "amazon session"):
            replace(folder / "others" / key.replace(" ", "-"), CANARIES[key])
        replace(folder / "others" / "usable-for", "127.0.0.1")
        replace(folder / "client" / "tls.crt", self._client.cert.read_text())
        replace(folder / "client" / "tls.key", self._client.key.read_text())
        replace(folder / "client" / "usable-for", "127.0.0.1")
        replace(folder / "private-ca" / "ca.crt", self._ca.cert.read_text())

    def write_manifests(self, *without: str) -> None:
        """The objects on the hub; without the named clusters."""
        group = "dynamic-scoring.open-cluster-management.io/v1alpha1"
        clusters: list[dict[str, Any]] = [
            {
                "apiVersion": "cluster.open-cluster-management.io/v1",
                "kind": "ManagedCluster",
                "metadata": {"name": cluster},
                "spec": {"hubAcceptsClient": True},
            }
            for cluster in self.clusters
            if cluster not in without
        ]
        config = {
            "apiVersion": group,
            "kind": "DynamicScoringConfig",
            "metadata": {"name": "dynamic-scoring-config"},
            "spec": {"masks": []},
        }
        scorer = {
            "apiVersion": group,
            "kind": "DynamicScorer",
            "metadata": {"name": SCORER},
            "spec": {
                "description": "a sample",
                "configURL": f"{self.scorer.url}/config",
                "configSyncMode": "None",
                "scoreDimensionFormat": "${node}",
                "source": {
                    "type": "Prometheus",
                    "host": self.source.url,
                    "path": "/api/v1/query_range",
                    "params": {"query": "up", "range": 600, "step": 60},
                    "auth": {
                        "tokenSecretRef": {"name": "source", "key": "token"},
                        "headers": [{"name": "X-Api-Key", "secretRef": {"name": "others", "key": "header"}}],
                        "queryParameters": [{"name": "key", "secretRef": {"name": "others", "key": "parameter"}}],
                    },
                },
                "scoring": {
                    "host": self.scorer.url,
                    "path": "/scoring",
                    "params": {"name": "sample-score", "interval": 1},
                    "auth": {"tokenSecretRef": {"name": "scorer", "key": "token"}},
                },
            },
        }
        manifests = [*clusters, config, scorer]
        if self.every_method:
            manifests += [self._other(group), self._clouds(group), *self._identities.manifests(group, scorer)]
        replace(self.manifests / "all.yaml", yaml.safe_dump_all(manifests))

    def _clouds(self, group: str) -> dict[str, Any]:
        """Return the scorer that authenticates with keys of clouds."""
        aws = {
            "region": "eu-west-1",
            "accessKeyID": {"value": "AKIDEXAMPLE"},
            "secretAccessKey": {"name": "others", "key": "amazon-key"},
            "sessionToken": {"name": "others", "key": "amazon-session"},
        }
        gcp = {"key": {"name": "others", "key": "google"}, "tokenURL": f"{self.google.url}/token"}
        manifest = self._other(group)
        source, scoring = manifest["spec"]["source"], manifest["spec"]["scoring"]
        manifest["metadata"]["name"] = CLOUDS
        del source["tls"]
        source |= {"host": self.amazon.url, "auth": {"aws": aws}}
        scoring |= {"path": "/clouds", "auth": {"gcp": gcp}}
        scoring["params"] = {"name": "clouds-score", "interval": 1}
        return manifest

    def _other(self, group: str) -> dict[str, Any]:
        """Return the scorer that uses every other method."""
        basic = {"username": {"value": "reader"}, "password": {"name": "others", "key": "password"}}
        oauth2 = {
            "tokenURL": f"{self.oauth.url}/token",
            "clientID": {"value": "agents"},
            "clientSecret": {"name": "others", "key": "client-secret"},
        }
        return {
            "apiVersion": group,
            "kind": "DynamicScorer",
            "metadata": {"name": OTHER},
            "spec": {
                "description": "all other methods",
                "configURL": f"{self.scorer.url}/config",
                "configSyncMode": "None",
                "source": {
                    "type": "Prometheus",
                    "host": self.mutual.url,
                    "params": {"query": "up", "range": 600, "step": 60},
                    "auth": {"basic": basic, "clientCertificate": {"secretName": "client"}},
                    "tls": {"caRef": {"name": "private-ca"}},
                },
                "scoring": {
                    "host": self.scorer.url,
                    "path": "/other",
                    "params": {"name": "other-score", "interval": 1},
                    "auth": {"oauth2": oauth2},
                },
            },
        }

    def give_series(self) -> None:
        """The source answers who has its token."""
        self.source.script(_asks_for(f"Bearer {CANARIES['source token']}", matrix(_SERIES)))

    def give_tokens(self) -> None:
        """Let the server of tokens return good ones, and the scoring API of OTHER accept them."""
        self.oauth.script(gives("access token"))
        self.scorer.script(_asks_for(f"Bearer {CANARIES['access token']}", answer(_RESULTS)), path="/other")

    # --- reads and actions ---------------------------------------------------------------------------------------

    def state(self, cluster: str) -> PairState:
        """Return the state in Redis of the scorer on a cluster."""
        return Pairs(self.admin).read_state(cluster, SCORER)

    def key_id(self, cluster: str = "c1") -> int:
        """Return the id of a cluster's newest credentials."""
        return Registry(self.admin).read_cluster(cluster).key_ids[0]

    def signing_key(self, cluster: str = "c1") -> SigningKey:
        """With which a cluster's agent signs now."""
        return derive_key(MASTER, cluster, self.key_id(cluster))

    def spoke(self, cluster: str = "c1", key_id: int | None = None) -> redis.Redis:
        """Return a client with a cluster's credential, of another key than the newest one if it is given: a thief."""
        password = self.users.derive_password(cluster, key_id or self.key_id(cluster))
        return self.redis.client(cluster_user(cluster), password)

    def acl_log(self) -> list[str]:
        """Return refused commands, newest first: `user: reason context object`."""
        rows: list[dict[str, Any]] = self.admin.acl_log(500)
        return [f"{row['username']}: {row['reason']} {row['context']} {row['object']}" for row in rows]

    def tick(self, cluster: str, scorer: str = SCORER) -> str:
        """Push an unscheduled tick, and return its run id."""
        run_id = make_run_id()
        expires = float(run_id[:13]) / 1000 + 30
        self.admin.lpush(spoke_queue(cluster), make_tick_message(cluster, scorer, run_id, expires))
        return run_id

    def rejected(self, reason: str) -> int:
        """How many results were refused for this reason."""
        return int(self.admin.hget("dsf:rejected", reason) or 0)

    def get(self, port: int, path: str) -> str:
        """Return a page of one of the HTTP services, be it that of an error."""
        try:
            response = urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=300)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return str(response.read().decode(errors="replace"))

    def until(self, condition: Any, message: str = "", timeout: float = 15.0) -> Any:
        """Wait for a condition; a failure quotes the ends of the logs."""
        try:
            return wait_for(condition, timeout, message, interval=0.1)
        except AssertionError as error:
            tails = "\n".join(f"--- {name}\n{child.tail()[-1500:]}" for name, child in self._children.items())
            raise AssertionError(f"{error}\nACL LOG: {self.acl_log()[:20]}\n{tails}") from None


def replace(path: Path, text: str) -> None:
    """Write a file atomically, as Kubernetes does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(text)
    draft.rename(path)


def gives(canary: str, status: int = 200) -> Handler:
    """Return a token that is good for 5 s."""
    return answer({"access_token": CANARIES[canary], "token_type": "Bearer", "expires_in": 5}, status)


def _asks_for(authorization: str, then: Handler) -> Handler:
    refusal = answer("who are you?", 401)

    def handle(exchange: Any) -> None:
        is_authorized = exchange.request.headers.get("Authorization") == authorization
        (then if is_authorized else refusal)(exchange)

    return handle
