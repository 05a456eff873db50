"""The script of `helm test`, with stand-ins of servers and `dsf`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support import chart
from tests.support.child import run_program

SCRIPT = chart.CHART / "files" / "test-installation.py"


@contextlib.contextmanager
def _server(status: int, text: str = "") -> Iterator[str]:
    """Yield the URL of a server that gives each request this response."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def _run(folder: Path, page: str, *probes: str, entries: list[str], code: int = 0) -> tuple[int, str]:
    """Run the script with a `dsf` that lists these scorers and ends all other commands with `code`."""
    listing = json.dumps({"entries": [{"scorer": name} for name in entries]})
    dsf = folder / "dsf"
    dsf.write_text(f'#!/bin/sh\n[ "$1" = schedule ] && {{ echo \'{listing}\'; exit 0; }}\necho "dsf $*"\nexit {code}\n')
    dsf.chmod(0o755)
    # The script does not wait: services that are not ready are failures.
    text = SCRIPT.read_text().replace("PATIENCE = 120.0", "PATIENCE = 0.0")
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    process = run_program([sys.executable, "-c", text, page, *probes], env=environment)
    return process.returncode, process.stdout + process.stderr


def test_fresh_installation_passes_without_a_scorer(tmp_path: Path) -> None:
    with _server(200) as ready, _server(401) as page:
        code, text = _run(tmp_path, page, ready, entries=[])
    assert code == 0
    assert "no scorer yet" in text
    assert f"ready: {ready}" in text


@pytest.mark.parametrize("code", [0, 1])
def test_cycle_of_a_scorer_decides(tmp_path: Path, code: int) -> None:
    with _server(200) as ready:
        assert _run(tmp_path, ready, ready, entries=["sample", "other"], code=code)[0] == code


def test_process_that_is_not_ready_is_named_with_its_reason(tmp_path: Path) -> None:
    with _server(200) as ready, _server(503, "beat: does not run") as unready:
        code, text = _run(tmp_path, ready, ready, unready, entries=[])
        assert code == 1
        assert f"{unready}: status 503 beat: does not run" in text
        code, text = _run(tmp_path, unready, ready, entries=[])
        assert code == 1
        assert f"the page, {unready}: status 503" in text


@pytest.mark.parametrize("failures", [1, 1000])
def test_redis_that_restarts_is_waited_for(tmp_path: Path, failures: int) -> None:
    (tmp_path / "failures").write_text(str(failures))
    dsf = tmp_path / "dsf"
    dsf.write_text(
        f"#!/bin/sh\nleft=$(cat {tmp_path}/failures)\n"
        f'[ "$left" = 0 ] && {{ echo \'{{"entries": []}}\'; exit 0; }}\n'
        f"echo $((left - 1)) > {tmp_path}/failures\necho 'error: cannot use Redis' >&2\nexit 1\n"
    )
    dsf.chmod(0o755)
    text = SCRIPT.read_text().replace("PATIENCE = 120.0", f"PATIENCE = {120.0 if failures == 1 else 0.0}")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with _server(200) as ready:
        process = run_program([sys.executable, "-c", text, ready, ready], env=environment)
    assert process.returncode == (0 if failures == 1 else 1)
    assert ("Redis: error: cannot use Redis" in process.stderr) is (failures > 1)


@pytest.mark.parametrize("mode", chart.MODES)
def test_every_process_and_the_page_are_tested(mode: str) -> None:
    objects = chart.render({"mode": mode})
    (container,) = chart.find_object(objects, "Pod", "dynamic-scoring-installation-test")["spec"]["containers"]
    script, page, *probes = container["args"]
    assert container["command"] == ["python", "-c"]
    assert script.strip() == SCRIPT.read_text().strip()
    services = {o["metadata"]["name"]: o["spec"] for o in chart.of_kind(objects, "Service")}
    ports = {f"http://{name}:{port['port']}": port["name"] for name, spec in services.items() for port in spec["ports"]}
    assert ports[page.rstrip("/")] == "http"
    assert {ports[probe.removesuffix("/readyz")] for probe in probes} == {"http-metrics"}
    selected = {
        services[probe.split("/")[2].partition(":")[0]]["selector"]["app.kubernetes.io/component"] for probe in probes
    }
    assert selected == set(chart.MODES[mode])
