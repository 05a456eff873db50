"""CPU of fetch + score with a client certificate and with OAuth2, against a bearer token over the same TLS.

    python -m bench.authentication [--quick] [--strict] [--json FILE]

The methods of authentication take turns in one process, whose CPU time is measured. Source, scoring API and token
server are in a second process, whose CPU time is not counted. Cycles differ only in the agent's authentication. They
reuse connections, because one TLS handshake would cost more CPU than a whole cycle.
"""

from __future__ import annotations

import functools
import json
import socketserver
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import ROOT, Figure, Measurement, format_spread, make_parser, report
from bench.peers import POINTS, Peer, make_response, make_summary
from bench.stages import measure_call
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.authentication import ServerAccess
from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, Stages
from dsf.settings import Settings
from tests.support.tlsca import TestCa

SERIES, RESULTS = 100, 10
#: Maximum CPU time of a cycle, relative to a cycle with a bearer token.
MAX_RELATIVE_CPU = 1.3
_TOKEN_RESPONSE = json.dumps({"access_token": "a-token", "token_type": "Bearer", "expires_in": 3600}).encode()


def make_methods(url: str) -> dict[str, dict[str, Any]]:
    """Return the fields of `methods` in a ServerAccess, by the name of the method of authentication.

    `url` is the address of the token server.
    """
    secret = {"name": "secrets", "key": "secret"}
    oauth2 = {"tokenURL": f"{url}/token", "clientID": {"value": "bench"}, "clientSecret": secret}
    return {
        "bearer": {"tokenSecretRef": {"name": "secrets", "key": "token"}},
        "mTLS": {"clientCertificate": {"secretName": "client"}},
        "OAuth2": {"oauth2": oauth2},
    }


def make_scorer(url: str, method_fields: dict[str, Any]) -> ScorerSummary:
    """Return the scorer of the benches, which uses this method of authentication for its source and its scoring API."""
    access_fields = {"methods": method_fields, "tls": {"caRef": {"name": "secrets"}}}
    access = ServerAccess.model_validate(access_fields, by_alias=True, by_name=False)
    return make_summary("bench", url, SERIES, RESULTS).model_copy(
        update={"source_access": access, "scoring_access": access}
    )


def write_secrets(folder: Path, ca: TestCa) -> FileSecrets:
    """Write the Secrets of all methods into `folder`, released for 127.0.0.1, and return their reader."""
    client = ca.issue("agent")
    values_by_secret = {
        "secrets": {"secret": b"a-secret", "token": b"a-token", "ca.crt": ca.cert.read_bytes()},
        "client": {"tls.crt": client.cert.read_bytes(), "tls.key": client.key.read_bytes()},
    }
    for name, values in values_by_secret.items():
        (folder / name).mkdir(parents=True)
        for key, value in {**values, "usable-for": b"127.0.0.1"}.items():
            (folder / name / key).write_bytes(value)
    return FileSecrets(folder, Release(Settings()))


def measure(quick: bool) -> Measurement:
    """Measure one method after the other in each round, so that a slow moment of the machine affects all of them."""
    rounds, seconds = (7, 0.3) if quick else (15, 0.8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ca = TestCa(folder / "ca")
        with _run_tls_server(ca) as url:
            stages = Stages(Settings(), write_secrets(folder / "secrets", ca))
            scorers = {
                method_name: make_scorer(url, method_fields) for method_name, method_fields in make_methods(url).items()
            }

            def fetch_and_score(scorer_summary: ScorerSummary) -> None:
                cycle = Cycle(scorer_summary.name, "run", scorer_summary, float("inf"))
                stages.score(cycle, b"".join(stages.fetch(cycle).pieces))

            # The first cycle of each scorer opens its connections, and is not measured.
            for scorer_summary in scorers.values():
                fetch_and_score(scorer_summary)
            milliseconds_by_method = {method_name: [] for method_name in scorers}  # type: dict[str, list[float]]
            for _ in range(rounds):
                for method_name, scorer_summary in scorers.items():
                    milliseconds_by_method[method_name].append(
                        measure_call(functools.partial(fetch_and_score, scorer_summary), seconds)
                    )
    figures = [
        Figure(
            f"CPU of fetch + score with {method_name}, {SERIES:,} x {POINTS} samples",
            format_spread(milliseconds_by_method[method_name], "ms"),
            statistics.median(
                milliseconds / bearer_milliseconds
                for milliseconds, bearer_milliseconds in zip(
                    milliseconds_by_method[method_name], milliseconds_by_method["bearer"], strict=True
                )
            ),
            "x",
            f"a bearer token over the same TLS, {format_spread(milliseconds_by_method['bearer'], 'ms')}",
            upper_limit=MAX_RELATIVE_CPU,
        )
        for method_name in scorers
        if method_name != "bearer"
    ]
    return figures, [{"method": method_name, "ms": values} for method_name, values in milliseconds_by_method.items()]


@contextmanager
def _run_tls_server(ca: TestCa) -> Iterator[str]:
    """Run `serve` in a process, and yield its URL."""
    certificate = ca.issue("127.0.0.1")
    command = [sys.executable, "-m", "bench.authentication", "--serve", certificate.cert, certificate.key, ca.cert]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"https://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


class _TlsPeer(Peer):
    """Handles the requests of one connection over TLS."""

    def setup(self) -> None:
        """Perform the handshake in the thread of this connection, so that it does not block the others."""
        self.request.do_handshake()
        super().setup()


def serve(certificate: str, key: str, client_ca: str) -> None:
    """Run source, scoring API and token server on one TLS port, and print the port.

    The arguments are files. Client certificates are optional, and verified with `client_ca`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(client_ca)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            """Ignore errors, because measurements end in the middle of an exchange."""

    _TlsPeer.responses = {
        "/token": _TOKEN_RESPONSE,
        **{path: make_response(path) for path in (f"/get/{SERIES}", f"/post/{RESULTS}")},
    }
    with Server(("127.0.0.1", 0), _TlsPeer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        print(server.server_address[1], flush=True)
        server.serve_forever()


def main() -> int:
    """Measure all methods and print the figures, or run the servers with `--serve`."""
    parser = make_parser(__doc__)
    parser.add_argument("--serve", nargs=3, help="run the servers (used by this program itself)")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return 0
    return report(arguments, measure(arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
