"""The wait of the demo's agents for the first data of a Prometheus."""

from __future__ import annotations

import threading

from dsf.demo.agent import wait_for_data
from tests.support.httpserver import Handler, ScriptedServer, answer


def _vector(*series: object) -> Handler:
    return answer({"status": "success", "data": {"resultType": "vector", "result": list(series)}})


def test_wait_ends_with_the_first_data() -> None:
    with ScriptedServer(_vector()) as prometheus:
        prometheus.script(answer({}, status=503), _vector(), _vector({"metric": {}, "value": [1, "0.5"]}))
        assert wait_for_data(prometheus.url, threading.Event(), timeout=60)
        assert [request.path for request in prometheus.requests] == ["/api/v1/query"] * 3


def test_wait_without_data_ends_after_the_timeout() -> None:
    with ScriptedServer(_vector()) as prometheus:
        assert not wait_for_data(prometheus.url, threading.Event(), timeout=0.0)


def test_wait_ends_when_the_agent_stops() -> None:
    stopping = threading.Event()
    stopping.set()
    with ScriptedServer(_vector()) as prometheus:
        assert not wait_for_data(prometheus.url, stopping, timeout=600)
        assert len(prometheus.requests) == 1
