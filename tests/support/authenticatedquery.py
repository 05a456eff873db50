"""Servers that check credentials, Secrets in a folder, and the fetch stage of an agent that uses them."""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsf.agent.secrets import FileSecrets, Release
from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, Stages
from dsf.errors import CycleError
from dsf.http.access import Access
from dsf.settings import Settings
from dsf.sources.base import RequestRecord
from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer, matrix
from tests.support.tlsca import Certificate, TestCa

SERIES = {"metric": {"node": "n1"}, "values": [[1, "1"]]}
GOOD = matrix(SERIES)


class SourceAccessHarness:
    """An agent's Secrets, and its requests to a source. A Secret may be sent to 127.0.0.1 and localhost by default."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self._settings = settings
        self.secrets = FileSecrets(folder, Release(settings))
        self.display_lines: tuple[str, ...] = ()
        #: Seconds for a stage; long, because the machine may be busy.
        self.seconds = 30
        #: HTTP method of range queries; None for the default.
        self.method: str | None = None
        self.stages = Stages(settings, self.secrets, observer=self)  # type: ignore[arg-type]

    def put(self, name: str, usable_for: str = "127.0.0.1, localhost", **keys: str | bytes) -> None:
        """Create or replace a Secret; `_` in a key stands for a dot."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        values: dict[str, str | bytes] = {"usable-for": usable_for, **keys}
        for key, value in values.items():
            draft = folder / ".draft"
            draft.write_bytes(value.encode() if isinstance(value, str) else value)
            draft.rename(folder / key.replace("_", "."))

    def put_certificate(self, name: str, certificate: Certificate) -> None:
        """Create a Secret of type kubernetes.io/tls."""
        self.put(name, tls_crt=certificate.cert.read_bytes(), tls_key=certificate.key.read_bytes())

    def summary(self, url: str, methods: dict[str, Any] | None, tls: dict[str, Any] | None = None) -> ScorerSummary:
        """Return the summary that the hub delivers for a scorer with this source."""
        access = {"methods": methods or {}, **({"tls": tls} if tls else {})}
        return ScorerSummary.model_validate(
            {
                "name": "one",
                "scoreName": "one",
                "sourceType": "Prometheus",
                "sourceQuery": "up",
                "sourceRange": 60,
                "sourceStep": 15,
                "sourceEndpoint": f"{url}/api/v1/query_range",
                "scoringEndpoint": f"{url}/scoring",
                "sourceAccess": access,
                "sourceMethod": self.method,
                "timeoutSeconds": self.seconds,
            }
        )

    def fetch(self, url: str, methods: dict[str, Any] | None = None, tls: dict[str, Any] | None = None) -> int:
        """Return the number of series from the source. Raises CycleError."""
        cycle = Cycle("one", "run", self.summary(url, methods, tls), math.inf)
        return self.stages.fetch(cycle).series

    def failure(self, url: str, methods: dict[str, Any] | None = None, tls: dict[str, Any] | None = None) -> CycleError:
        """Return the error of a request to the source, which must fail."""
        try:
            self.fetch(url, methods, tls)
        except CycleError as error:
            return error
        raise AssertionError("the source gave something")

    # --- as the stages' observer ------------------------------------------------------------------------------------

    def on_authenticated(self, stage: str, access: Access, source: str | None) -> None:
        """Record the requests as displayed to users."""
        self.display_lines = access.display_lines

    def on_query(self, stage: str, question: RequestRecord) -> None:
        """Ignore queries."""

    def on_timed(self, score_name: str, stage: str, seconds: float) -> None:
        """Ignore durations."""


def make_secret_ref(name: str, key: str = "token") -> dict[str, dict[str, str]]:
    """Return a reference to a value in a Secret."""
    return {"secretRef": {"name": name, "key": key}}


def server_context(certificate: Certificate, clients: TestCa | None = None) -> ssl.SSLContext:
    """Return a context for a server with this certificate. With `clients`, its client certificates are required."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.cert)
    return context


def require_header(header: str, value: Callable[[], str]) -> Handler:
    """Respond with series to requests with this header, and with 401 and the received headers to others."""

    def handle(exchange: Exchange) -> None:
        if exchange.request.headers.get(header) == value():
            GOOD(exchange)
        else:
            exchange.send(json.dumps(exchange.request.headers).encode(), 401)

    return handle


def refuse_with_echo(exchange: Exchange) -> None:
    """Refuse a request with a text that contains all received headers and the body."""
    request = exchange.request
    exchange.send(json.dumps({"headers": request.headers, "query": request.query}).encode(), 403)


class TokenServer:
    """An OAuth2 server that returns a new token, named by its number, for each valid request."""

    def __init__(self, secret: str = "s3cret-of-client", seconds: int = 3600) -> None:
        self.secret = secret
        self.seconds = seconds
        self.tokens_issued = 0
        #: Called before each response.
        self.before: Callable[[], None] = lambda: None
        self.server = ScriptedServer(self._give)

    @property
    def token(self) -> str:
        """The newest token."""
        return f"token-{self.tokens_issued}-of-server"

    def _give(self, exchange: Exchange) -> None:
        import base64
        from urllib.parse import parse_qs

        self.before()
        form = {name: values[0] for name, values in parse_qs(exchange.request.body.decode()).items()}
        header = exchange.request.headers.get("Authorization", "Basic Og==").removeprefix("Basic ")
        user, _, password = base64.b64decode(header).decode().partition(":")
        client, secret = form.get("client_id", user), form.get("client_secret", password)
        if (client, secret) != ("client", self.secret) or form.get("grant_type") != "client_credentials":
            answer({"error": "invalid_client", "error_description": f"not {secret}"}, 401)(exchange)
            return
        self.tokens_issued += 1
        answer({"access_token": self.token, "token_type": "Bearer", "expires_in": self.seconds})(exchange)
