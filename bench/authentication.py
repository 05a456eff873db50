"""CPU of fetch + score with a client certificate and with OAuth2, against a bearer token over the same TLS.

    python -m bench.authentication [--quick] [--strict] [--json FILE]

All in turns in one process; source, scoring API and the server of tokens are in another one that is not counted. The
runs differ only in the agent's authentication. A handshake would cost more than a whole cycle: the figures are only as
near to each other while connections are reused.
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
#: Maximum CPU relative to a bearer token.
LIMIT = 1.3
_TOKEN = json.dumps({"access_token": "a-token", "token_type": "Bearer", "expires_in": 3600}).encode()


def make_methods(url: str) -> dict[str, dict[str, Any]]:
    """Return the methods of authentication by name."""
    secret = {"name": "secrets", "key": "secret"}
    oauth2 = {"tokenURL": f"{url}/token", "clientID": {"value": "bench"}, "clientSecret": secret}
    return {
        "bearer": {"tokenSecretRef": {"name": "secrets", "key": "token"}},
        "mTLS": {"clientCertificate": {"secretName": "client"}},
        "OAuth2": {"oauth2": oauth2},
    }


def scorer(url: str, method_fields: dict[str, Any]) -> ScorerSummary:
    """Return the scorer of the benches with this method of authentication."""
    access_fields = {"methods": method_fields, "tls": {"caRef": {"name": "secrets"}}}
    access = ServerAccess.model_validate(access_fields, by_alias=True, by_name=False)
    return make_summary("bench", url, SERIES, RESULTS).model_copy(
        update={"source_access": access, "scoring_access": access}
    )


def secrets(folder: Path, ca: TestCa) -> FileSecrets:
    """Return all Secrets of the methods, released for this machine."""
    client = ca.issue("agent")
    files = {
        "secrets": {"secret": b"a-secret", "token": b"a-token", "ca.crt": ca.cert.read_bytes()},
        "client": {"tls.crt": client.cert.read_bytes(), "tls.key": client.key.read_bytes()},
    }
    for name, keys in files.items():
        (folder / name).mkdir(parents=True)
        for key, value in {**keys, "usable-for": b"127.0.0.1"}.items():
            (folder / name / key).write_bytes(value)
    return FileSecrets(folder, Release(Settings()))


def measure(quick: bool) -> Measurement:
    """Measure all methods in turns."""
    rounds, seconds = (7, 0.3) if quick else (15, 0.8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ca = TestCa(folder / "ca")
        with _server(ca) as url:
            stages = Stages(Settings(), secrets(folder / "secrets", ca))
            scorers = {method_name: scorer(url, method) for method_name, method in make_methods(url).items()}

            def cycle(scorer_summary: ScorerSummary) -> None:
                run = Cycle(scorer_summary.name, "run", scorer_summary, float("inf"))
                stages.score(run, b"".join(stages.fetch(run).pieces))

            for scorer_summary in scorers.values():
                cycle(scorer_summary)
            milliseconds_by_method = {method_name: [] for method_name in scorers}  # type: dict[str, list[float]]
            for _ in range(rounds):
                for method_name, scorer_summary in scorers.items():
                    milliseconds_by_method[method_name].append(
                        measure_call(functools.partial(cycle, scorer_summary), seconds)
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
            upper_limit=LIMIT,
        )
        for method_name in scorers
        if method_name != "bearer"
    ]
    return figures, [{"way": method_name, "ms": values} for method_name, values in milliseconds_by_method.items()]


@contextmanager
def _server(ca: TestCa) -> Iterator[str]:
    server = ca.issue("127.0.0.1")
    command = [sys.executable, "-m", "bench.authentication", "--serve", server.cert, server.key, ca.cert]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"https://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


class _Peer(Peer):
    def setup(self) -> None:
        """Run the handshake in the connection's own thread."""
        self.request.do_handshake()
        super().setup()


def serve(certificate: str, key: str, clients: str) -> None:
    """Serve over TLS, and print the port. A client may present a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(clients)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            """Ignore errors, because measurements end in the middle of an exchange."""

    _Peer.responses = {
        "/token": _TOKEN,
        **{path: make_response(path) for path in (f"/get/{SERIES}", f"/post/{RESULTS}")},
    }
    with Server(("127.0.0.1", 0), _Peer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        print(server.server_address[1], flush=True)
        server.serve_forever()


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--serve", nargs=3, help="be the servers, as this program starts them itself")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return 0
    return report(arguments, measure(arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
