"""Through a real proxy, from Debian: sources and scoring APIs by agents, `/config` and health by the hub."""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dsf.api.summary import ScorerSummary
from dsf.api.types import ConfigSyncMode
from dsf.cycle.stages import Cycle
from dsf.errors import CycleError
from dsf.http import transport
from dsf.http.access import DIRECT, Access
from dsf.hub.health import HealthTarget, check
from tests.support.authenticatedquery import GOOD, SourceAccessHarness
from tests.support.child import Child
from tests.support.httpserver import ScriptedServer, answer
from tests.support.programs import find
from tests.support.redisserver import free_port, is_listening
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for

PASSWORD = "pr0xy-password"
RESULTS = answer({"results": [{"metric": {"node": "n1"}, "score": 1.5}]})


class TinyProxy(NamedTuple):
    """A running proxy."""

    address: str
    log: Path


Start = Callable[..., TinyProxy]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a proxy with these further lines of configuration, without variables of the environment."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with contextlib.ExitStack() as stack:

        def begin(*lines: str) -> TinyProxy:
            port, log, conf = free_port(), tmp_path / "proxy.log", tmp_path / "proxy.conf"
            base_lines = (f"Port {port}", "Listen 127.0.0.1", "Timeout 60", "MaxClients 50", "LogLevel Connect")
            conf.write_text("\n".join((*base_lines, *lines, "")))
            child = Child([str(find("tinyproxy")), "-d", "-c", str(conf)], log)
            stack.callback(child.kill)
            wait_for(lambda: is_listening(port), 30, child.tail())
            return TinyProxy(f"127.0.0.1:{port}", log)

        yield begin
        transport.close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A source and a scoring API in one."""
    with ScriptedServer(GOOD) as running:
        running.script(RESULTS, path="/scoring")
        running.script(answer("ok"), path="/healthz")
        running.script(answer({"name": "one", "source": {}, "scoring": {}}), path="/config")
        yield running


def proxied_requests(server: ScriptedServer) -> list[bool]:
    """True if each request came through the proxy, which adds a header."""
    return ["tinyproxy" in request.headers.get("Via", "") for request in server.requests]


def once_more(stage: Callable[[], Any]) -> Any:
    """Send requests as an agent does: this proxy closes each connection after a response without announcing it."""
    try:
        return stage()
    except CycleError as error:
        if not (error.retryable and error.message.endswith("the server closed the connection")):
            raise
        return stage()


def cycle(bed: SourceAccessHarness, url: str, location: str, proxy: str | None = None, **access: Any) -> None:
    """Fetch and score once."""
    summary = bed.summary(url, None).model_dump(by_alias=True, exclude_none=True, mode="json")
    access |= {"authentication": "a", "allowedHosts": ["127.0.0.1", "source.test"]}
    if proxy is not None:
        access["proxyURL"] = proxy
    summary |= {"location": location, "sourceAccess": access, "scoringAccess": access}
    one_cycle = Cycle("one", "run", ScorerSummary.model_validate(summary), math.inf)
    assert once_more(lambda: bed.stages.fetch(one_cycle)).series == 1
    once_more(lambda: bed.stages.score(one_cycle, b'{"data":[]}'))
    assert one_cycle.response is not None
    assert len(one_cycle.response.results) == 1


def test_proxy_is_configured_by_environment_variables(
    bed: SourceAccessHarness, server: ScriptedServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only beyond the proxy is there such a name.
    proxy = start(f"BasicAuth agent {PASSWORD}", f"Upstream http 127.0.0.1:{server.port}")
    url = f"http://source.test:{server.port}"
    monkeypatch.setenv("HTTP_PROXY", f"http://agent:{PASSWORD}@{proxy.address}")
    cycle(bed, url, "External")
    assert proxied_requests(server) == [True, True]
    # The location concerns the scoring API: the source is still queried through the proxy.
    with pytest.raises(CycleError, match=r"score failed.*cannot be resolved"):
        cycle(bed, url, "Internal")
    assert proxied_requests(server) == [True] * 3
    monkeypatch.setenv("NO_PROXY", "source.test")
    with pytest.raises(CycleError, match=r"fetch failed.*cannot be resolved"):
        cycle(bed, url, "External")
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTP_PROXY", f"http://agent:wr0ng-password@{proxy.address}")
    with pytest.raises(CycleError) as error:
        cycle(bed, url, "External")
    assert f"through the proxy {proxy.address}" in error.value.message
    assert "wr0ng-password" not in error.value.message
    assert len(server.requests) == 3


def test_proxy_is_configured_by_a_scoring_authentication(
    bed: SourceAccessHarness, server: ScriptedServer, start: Start
) -> None:
    proxy = f"http://{start().address}"
    cycle(bed, server.url, "External", proxy)
    cycle(bed, server.url, "Internal", proxy)
    assert proxied_requests(server) == [True, True, True, False]
    with pytest.raises(CycleError, match="proxy"):
        cycle(bed, server.url, "External", f"http://127.0.0.1:{free_port()}")


def test_tls_uses_a_proxy_tunnel(bed: SourceAccessHarness, start: Start, ca: TestCa, local: ssl.SSLContext) -> None:
    proxy = start()
    bed.put("ca", ca_crt=ca.cert.read_bytes())
    bed.put("source", token="t0ken-of-source")
    access = {
        "methods": {"tokenSecretRef": {"name": "source", "key": "token"}},
        "tls": {"caRef": {"kind": "Secret", "name": "ca"}},
    }
    with ScriptedServer(GOOD, tls=local) as server:
        server.script(RESULTS, path="/scoring")
        cycle(bed, server.url, "External", f"http://{proxy.address}", **access)
        assert {request.headers["Authorization"] for request in server.requests} == {"Bearer t0ken-of-source"}
    log = proxy.log.read_text()
    assert f"CONNECT 127.0.0.1:{server.port}" in log
    assert "t0ken-of-source" not in log


def test_hub_health_check_uses_the_proxy(server: ScriptedServer, start: Start) -> None:
    url, through = f"{server.url}/config", Access(proxy=f"http://{start().address}")
    for access, is_through in ((through, True), (DIRECT, False)):
        before = len(server.requests)
        health = check(HealthTarget(url, ConfigSyncMode.Full, access), timeout=300)
        assert health.health_failure is None
        assert {request.path for request in server.requests[before:]} == {"/healthz", "/config"}
        assert set(proxied_requests(server)[before:]) == {is_through}
    closed = Access(proxy=f"http://127.0.0.1:{free_port()}")
    failure = check(HealthTarget(url, ConfigSyncMode.None_, closed), timeout=300).health_failure
    assert failure is not None
    assert "proxy" in failure.message
