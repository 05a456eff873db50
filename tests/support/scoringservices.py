"""Scoring APIs on free ports, served by uvicorn in a thread of the test."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from dsf.conformance import case, service, target
from tests.support.wait import PATIENCE, wait_for

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an ASGI application, and yield its URL, without a path."""
    # With the protocol named: asyncio disables Nagle's delay only for such sockets.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_for(lambda: server.started or not thread.is_alive(), 15, "uvicorn to serve")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


def set_hub_timeout(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the seconds that `dsf scorer check` takes as the hub's timeout."""
    for module in (case, service, target):
        monkeypatch.setattr(module, "HUB_TIMEOUT", seconds)


def load(file: Path) -> Any:
    """Load a module from a file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(f"loaded_{file.parent.name.replace('-', '_')}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # FastAPI resolves annotations in the module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
