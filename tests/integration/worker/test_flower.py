"""A forged event has no effect on a real Flower. Everybody with a cluster's credential can publish events."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
import requests
from playwright.sync_api import Browser, expect

from dsf.messages import CYCLE_TASK, FETCH_TASK
from dsf.settings import ALL_ADDRESSES
from dsf.store.registry import ClusterRecord, Registry
from dsf.worker import commands
from dsf.worker.application import make_app
from tests.support.browser import TIMEOUT, Tab, browser
from tests.support.child import Child
from tests.support.fixtures import SettingsFactory
from tests.support.forgetfulrelay import ForgetfulRelay
from tests.support.redisserver import RedisServer, free_port, has_ipv6
from tests.support.wait import wait_for

__all__ = ["browser"]

#: Bytes that Flower may grow by, whatever is published.
GROWTH = 64 * 2**20


class Flower:
    """The process, and the channel of its events."""

    def __init__(self, child: Child, port: int, client: redis.Redis) -> None:
        self.client = client
        self.child = child
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, timeout=300)

    def is_ready(self) -> bool:
        assert self.child.is_running, self.child.tail()
        try:
            listens = self.client.pubsub_numpat() > 0
            return self.get("/healthcheck").ok and listens
        except requests.ConnectionError:
            return False

    @property
    def memory(self) -> int:
        return psutil.Process(self.child.pid).memory_info().rss

    def publish(self, *events: Any) -> None:
        self.publish_text(json.dumps({"body": json.dumps(list(events)), **_ENVELOPE}))

    def publish_text(self, text: str | bytes) -> None:
        self.client.publish("/0.celeryev/task.multi", text)

    def workers(self) -> set[str]:
        return {row["hostname"] for row in self.get("/workers?json=1").json()["data"]}

    def tasks(self) -> dict[str, Any]:
        tasks: dict[str, Any] = self.get("/api/tasks").json()
        return tasks


_ENVELOPE: dict[str, Any] = {
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": {},
    "properties": {
        "delivery_mode": 1,
        "delivery_info": {"exchange": "celeryev", "routing_key": "task.multi"},
        "priority": 0,
        "body_encoding": None,
        "delivery_tag": "1",
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def flower(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """All tests share one Flower, which they leave unchanged. Each publishes tasks with its own ids."""
    client, port = server.client(), free_port()
    Registry(client).put_cluster(ClusterRecord(name="c1"))
    environment = {"DSF_ROLE": "flower", "DSF_REDIS_URL": server.url, "FLOWER_UNAUTHENTICATED_API": "true"}
    child = Child(
        commands.make_flower_command("127.0.0.1", port), tmp_path_factory.mktemp("flower") / "log", environment
    )
    running_flower = Flower(child, port, client)
    try:
        wait_for(running_flower.is_ready, 60, "Flower to answer")
        yield running_flower
    finally:
        child.kill()


def _task(uuid: str, **values: Any) -> dict[str, Any]:
    now = {"timestamp": time.time(), "utcoffset": 0, "pid": 1, "clock": 1}
    return {"type": "task-received", "hostname": "spoke@c1", "uuid": uuid, "name": FETCH_TASK, **now, **values}


def _comes_after_all(flower: Flower, uuid: str) -> None:
    """Publish a valid event until it is shown: then Flower has processed all earlier ones or lost its connection."""
    published = 0.0

    def is_shown() -> bool:
        nonlocal published
        if time.monotonic() - published > 1:
            flower.publish(_task(uuid, args="('honest', '1')"))
            published = time.monotonic()
        return bool(flower.tasks().get(uuid, {}).get("worker") == "spoke@c1")

    wait_for(is_shown, 30, "the honest event", interval=0.1)


def test_large_events_and_made_up_workers_use_no_memory(flower: Flower) -> None:
    _comes_after_all(flower, "0a")
    known_tasks, before = set(flower.tasks()), flower.memory
    # More than it may grow by, together.
    for _ in range(8):
        flower.publish(_task("0b", args="x" * 10_000_000))
    for n in range(0, 2000, 50):
        beats = ({"type": "worker-heartbeat", "hostname": f"spoke@made-up-{n + m}", "freq": 2} for m in range(50))
        flower.publish(*({**beat, "timestamp": time.time()} for beat in beats))
    for n in range(200):
        flower.publish({"type": "worker-online", "hostname": f"results@made-up-{n}", "timestamp": time.time()})
    _comes_after_all(flower, "0c")
    assert flower.memory - before < GROWTH
    assert set(flower.tasks()) - known_tasks == {"0c"}
    names = flower.workers()
    assert not [name for name in names if name.startswith("spoke@made-up")]
    assert "spoke@c1" in names
    assert len(names) <= 101
    metrics = flower.get("/metrics").text
    assert "spoke@made-up" not in metrics
    assert len(metrics) < 200_000


STRANGE: tuple[Any, ...] = ("x", None, [], {}, True, 1e308, -1e308, 10**400, float("nan"), "<script>alert(1)</script>")
FIELDS = ("clock", "timestamp", "utcoffset", "freq", "pid", "active", "runtime", "retries", "loadavg", "args")
#: No messages, and messages without events.
TEXTS = ("", "{", "null", "[]", "{}", '{"body": 1}', "[" * 60_000, b"\xff", '{"body": "[]"}', '{"properties": []}')
BODIES = ("", "{", "null", "[" * 60_000, "1", '{"type": 1}', "[null]")


def test_large_requests_are_refused_and_use_no_memory(flower: Flower) -> None:
    before = flower.memory
    body = bytes(50_000_000)
    for _ in range(3):
        # The server may close the connection while the body is being sent.
        with contextlib.suppress(requests.ConnectionError):
            assert requests.post(f"{flower.url}/login", data=body, timeout=300).status_code == 400
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", int(flower.url.rpartition(":")[2])), 30)
            )
            client.settimeout(30)
            head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n"
            with contextlib.suppress(ConnectionError, TimeoutError):
                client.sendall(head + body[:-1])
        assert flower.get("/healthcheck").ok
        assert flower.memory - before < 50_000_000


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_client_with_many_connections_displaces_only_its_own(flower: Flower) -> None:
    """Each connection may hold a request in memory, before a login."""
    address = ("127.0.0.1", int(flower.url.rpartition(":")[2]))
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(socket.create_connection(address, 30, ("127.0.0.4", 0)))
        crowd = [stack.enter_context(socket.create_connection(address, 30, ("127.0.0.3", 0))) for _ in range(300)]
        wait_for(lambda: sum(map(_is_closed, crowd)) >= 300 - 256, 30, "Flower to close connections")
        other.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200")


def test_events_that_arrive_together_are_all_processed(
    flower: Flower, settings_factory: SettingsFactory, server: RedisServer
) -> None:
    """Hundreds of tasks in a quarter of a second, with long errors."""
    app = make_app(settings_factory(role="agent", cluster="c1", redis_url=server.url))
    numbers = [f"{number:x}" for number in range(0x100, 0x300)]
    with app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection, hostname="spoke@c1", buffer_group=["task"], buffer_limit=5000)
        for number in numbers:
            dispatcher.send("task-received", uuid=number, name=FETCH_TASK, args="('sample-scorer', '1')")
            dispatcher.send("task-failed", uuid=number, exception="e" * 500, traceback="t" * 4000)
        dispatcher.flush()
    app.close()
    wait_for(lambda: flower.tasks().keys() >= set(numbers), 30, "all tasks in Flower", interval=0.5)
    tasks = flower.tasks()
    assert {tasks[number]["state"] for number in numbers} == {"FAILURE"}


def test_events_of_unknown_types_do_not_affect_others(flower: Flower) -> None:
    before = len(flower.child.log.read_text())
    for value in STRANGE:
        for name in FIELDS:
            beat = {"type": "worker-heartbeat", "hostname": "spoke@c1", "timestamp": time.time()}
            flower.publish({**beat, name: value})
            flower.publish(_task("0d", **{name: value}), _task("0d", **{"type": "task-started", name: value}))
    for text in TEXTS:
        flower.publish_text(text)
    for body in BODIES:
        flower.publish_text(json.dumps({"body": body, **_ENVELOPE}))
    _comes_after_all(flower, "0e")
    log = flower.child.log.read_text()[before:]
    assert "Failed to capture events" not in log
    assert "Traceback" not in log


def test_columns_of_tasks_fit_on_a_laptop(flower: Flower, browser: Browser) -> None:
    arguments = "('sample-scorer', '1796045555332-5bc86b8d', 1796045565.332)"
    uuid = "0f3c9d6e-2b77-4d7a-9a53-5d1f9b6c0a11"
    flower.publish(_task(uuid, name=CYCLE_TASK, args=arguments, kwargs="{}"))
    flower.publish(_task(uuid, name=CYCLE_TASK, type="task-succeeded", runtime=0.0234))
    _comes_after_all(flower, "1b")
    with Tab(browser, flower.url, viewport={"width": 1280, "height": 800}) as tab:
        page = tab.open("/tasks")
        expect(page.locator("tbody tr", has_text=CYCLE_TASK)).to_contain_text("spoke@c1", timeout=TIMEOUT)
        heads = page.locator("#tasks-table thead th")
        assert heads.evaluate_all("all => all.map(head => head.dataset.column)")[:2] == ["name", "worker"]
        columns = heads.evaluate_all("all => all.map(head => head.getBoundingClientRect().right)")
        assert max(columns) <= 1280
        # The last column is the link to the task.
        page.locator("tbody tr", has_text=CYCLE_TASK).locator("a[href*='/task/']").click()
        expect(page.locator("body")).to_contain_text("1796045555332-5bc86b8d", timeout=TIMEOUT)


def test_event_content_cannot_run_in_a_browser(flower: Flower) -> None:
    flower.publish(_task("0f", args="<script>alert(1)</script>"))
    _comes_after_all(flower, "10")
    for path, policy in {
        "/tasks": "frame-ancestors 'none'",
        "/task/0f": "frame-ancestors 'none'",
        "/api/tasks": "default-src 'none'; sandbox",
        "/metrics": "default-src 'none'; sandbox",
    }.items():
        response = flower.get(path)
        assert response.status_code == 200, path
        assert policy in response.headers["Content-Security-Policy"], path
        assert "connect-src *" not in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "<script>alert(1)" not in flower.get("/task/0f").text


def test_broker_page_shows_the_queues_of_the_clusters(flower: Flower) -> None:
    flower.client.lpush("spoke.c1", "a", "b")
    try:
        page = flower.get("/broker").text
        (queue,) = flower.get("/api/queues/length").json()["active_queues"]
    finally:
        flower.client.delete("spoke.c1")
    assert queue == {"name": "spoke.c1", "messages": 2}
    assert "spoke.c1" in page
    assert "hub.results" not in page


def test_flower_reconnects_after_redis_closes_its_connection(flower: Flower) -> None:
    _comes_after_all(flower, "11")
    assert flower.client.client_kill_filter(_type="pubsub") == 1  # as Redis does where a subscriber is too slow
    _comes_after_all(flower, "12")


def test_flower_listens_on_both_families_and_protects_its_metrics(redis_url: str, tmp_path: Path) -> None:
    """Flower's metrics have the names of clusters and tasks, and an Ingress leads to them."""
    port = free_port()
    logins = "admin:secret,bob:pässwörd"
    environment = {"DSF_ROLE": "flower", "DSF_REDIS_URL": redis_url, "FLOWER_BASIC_AUTH": logins}
    child = Child(commands.make_flower_command(ALL_ADDRESSES, port), tmp_path / "log", environment)

    def is_ready(url: str) -> bool:
        assert child.is_running, child.tail()
        try:
            return requests.get(f"{url}/healthcheck", timeout=300).ok
        except requests.ConnectionError:
            return False

    try:
        for address in ("127.0.0.1", "[::1]") if has_ipv6() else ("127.0.0.1",):
            url = f"http://{address}:{port}"
            wait_for(functools.partial(is_ready, url), 60, f"Flower to answer on {address}")
            assert requests.get(f"{url}/metrics", timeout=300).status_code == 401
            for guess in ("guess", "gues\xdf", b"\xff"):
                assert requests.get(f"{url}/metrics", timeout=300, auth=("admin", guess)).status_code == 401, guess
            for login in (("admin", "secret"), (b"bob", "pässwörd".encode())):
                response = requests.get(f"{url}/metrics", timeout=300, auth=login)
                assert (response.status_code, "# HELP" in response.text) == (200, True)
    finally:
        child.kill()


@pytest.mark.whole
def test_flower_recovers_behind_a_relay_that_forgets_idle_connections(server: RedisServer, tmp_path: Path) -> None:
    port = free_port()
    with ForgetfulRelay(server.port, 15.0, resets=False) as relay:
        url = f"redis://127.0.0.1:{relay.port}/0"
        environment = {"DSF_ROLE": "flower", "DSF_REDIS_URL": url, "FLOWER_UNAUTHENTICATED_API": "true"}
        child = Child(commands.make_flower_command("127.0.0.1", port), tmp_path / "log", environment)
        try:
            client = server.client()
            Registry(client).put_cluster(ClusterRecord(name="c1"))
            flower = Flower(child, port, client)
            wait_for(flower.is_ready, 60, "Flower to answer")
            _comes_after_all(flower, "20")
            for round_number in range(2):
                # Send no requests until the relay has forgotten the idle connections.
                time.sleep(17)
                _comes_after_all(flower, f"2{round_number + 1}")
            assert requests.get(f"{flower.url}/broker", timeout=60).ok
        finally:
            child.kill()
