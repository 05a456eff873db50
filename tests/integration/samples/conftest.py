"""The samples as they are: programs that answer HTTP, started on their own; and one of them with a model to ask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from dsf.up.httpcheck import make_http_check
from dsf.up.supervisor import Program, Supervisor
from tests.support.redisserver import free_port
from tests.support.scoringservices import load, served
from tests.support.uv import ROOT

Start = Callable[..., str]


@pytest.fixture(scope="package")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Return `start("sample-scorer") -> url`: the process of a sample, shared by calls with the same environment."""
    supervisor = Supervisor(tmp_path_factory.mktemp("samples"), lambda _: None)
    running: dict[tuple[object, ...], str] = {}

    def make(name: str, **environment: str) -> str:
        key = name, *sorted(environment.items())
        if key not in running:
            port = free_port()
            folder = ROOT / "samples" / name
            options = ("--app-dir", str(folder), "--port", str(port), "--log-level", "warning")
            url = f"http://127.0.0.1:{port}"
            # Samples do not inherit this process's environment, because they stand alone.
            command = (sys.executable, "-m", "uvicorn", *options, "app:app")
            program = f"{name}-{len(running)}"
            supervisor.start(Program(program, command, environment, ready=make_http_check(f"{url}/healthz")))
            supervisor.wait_ready(60, program)
            running[key] = url
        return running[key]

    yield make
    supervisor.stop_all()


@pytest.fixture(scope="module")
def llm_forecast() -> Iterator[Start]:
    """Return `llm_forecast(MODEL_NAME="...") -> url`: llm-forecast-scorer in this process, shared by equal calls."""
    running: dict[Any, str] = {}
    with ExitStack() as stack:

        def make(**environment: str) -> str:
            key = (*sorted(environment.items()),)
            if key not in running:
                with pytest.MonkeyPatch.context() as patch:
                    for name, value in environment.items():
                        patch.setenv(name, value)
                    app = load(ROOT / "samples" / "llm-forecast-scorer" / "app.py").app
                running[key] = stack.enter_context(served(app))
            return running[key]

        yield make


def ask(method: str, url: str, body: Any = None, **options: Any) -> Any:
    """Return the JSON that is answered with 200."""
    response = requests.request(method, url, json=body, timeout=300, **options)
    assert response.status_code == 200, response.text
    return response.json()


def series(values: list[str], **labels: str) -> dict[str, Any]:
    """Return a series of a scoring request."""
    return {"metric": labels, "values": [[1718600000 + 60 * n, value] for n, value in enumerate(values)]}
