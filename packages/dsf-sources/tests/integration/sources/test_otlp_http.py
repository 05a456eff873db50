"""The OTLP receiver as an HTTP server: refused requests, and its limits for senders."""

from __future__ import annotations

import gzip
import http.client
import select
import socket
import time
from pathlib import Path

import psutil
import pytest
import requests

from dsf.http import listening
from dsf.otlp import receiver
from dsf.process.clienttoken import MAX_BURST
from tests.support.wait import PATIENCE, wait_for

from .senders import Agent, Make, gauge, push, pushed, request


def test_gzip_bombs_large_bodies_and_lies_are_refused(make: Make) -> None:
    agent = make(max_bytes=10_000)
    bomb = gzip.compress(bytes(10_000_000))
    assert len(bomb) < 10_000
    zipped = {"Content-Encoding": "gzip"}
    assert push(agent, bomb, **zipped).status_code == 413
    assert push(agent, bytes(10_001)).status_code == 413
    assert push(agent, b"not gzip", **zipped).status_code == 400
    assert push(agent, gzip.compress(b"x" * 100)[:-4], **zipped).status_code == 400
    assert push(agent, b"\xff\xff\xff").status_code == 400
    assert push(agent, b"{", **{"Content-Type": "application/json"}).json()["code"] == 3
    assert push(agent, b"", **{"Content-Type": "text/plain"}).status_code == 415
    assert push(agent, b"", **{"Content-Encoding": "br"}).status_code == 415
    assert requests.get(agent.url, timeout=300).status_code == 405
    assert requests.post(agent.url.replace("metrics", "traces"), b"", timeout=300).status_code == 404
    # It still works after all these requests.
    assert push(agent, request()).status_code == 200


def test_refused_request_returns_a_status_message(make: Make) -> None:
    from google.rpc.status_pb2 import Status

    response = push(make(max_bytes=10), bytes(11))
    error_status = Status.FromString(response.content)
    assert (error_status.code, error_status.message) == (3, "a request may have 10 bytes; send smaller batches")


def test_expect_header_is_answered_at_once(make: Make) -> None:
    agent = make(pushed("m"))
    body = request(gauge("m", 1)).SerializeToString()
    head = f"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", agent.receiver.address[1]), 60) as sender:
        sender.sendall(f"{head}Content-Type: application/x-protobuf\r\n\r\n".encode())
        assert sender.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sender.sendall(body)
        assert sender.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(agent.series()) == 1


def test_chunked_bodies_are_accepted(make: Make) -> None:
    agent = make(pushed("m"), max_bytes=1000)
    body = request(gauge("m", 1)).SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}

    def chunked(*parts: bytes) -> int:
        return requests.post(agent.url, iter(parts), headers=headers, timeout=300).status_code

    assert chunked(body[:5], body[5:]) == 200
    assert len(agent.series()) == 1
    assert chunked(bytes(600), bytes(600)) == 413
    connection = http.client.HTTPConnection("127.0.0.1", agent.receiver.address[1], timeout=300)
    connection.putrequest("POST", "/v1/metrics")
    connection.putheader("Content-Type", "application/x-protobuf")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders(b"xyz\r\n")
    assert connection.getresponse().status == 400
    connection.close()


def test_token_is_required_and_its_rotation_is_applied(make: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    agent = make(token=token)
    first, second = ({"Authorization": f"Bearer the-{name}-token-of-all"} for name in ("first", "second"))
    assert push(agent, request(), **first).status_code == 503
    token.write_text("first\n")
    assert push(agent, request(), Authorization="Bearer first").status_code == 503
    token.write_text("the-first-token-of-all\n")
    assert push(agent, request()).status_code == 401
    assert push(agent, request(), Authorization="Bearer wrong").status_code == 401
    assert push(agent, request(), **first).status_code == 200
    token.write_text("the-second-token-of-all")
    assert push(agent, request(), **first).status_code == 401
    assert push(agent, request(), **second).status_code == 200


def test_wrong_tokens_of_a_sender_are_limited(make: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the-token-of-all-senders")
    agent = make(token=token)
    for number in range(MAX_BURST):
        assert push(agent, request(), Authorization=f"Bearer {number}").status_code == 401
    response = push(agent, request(), Authorization="Bearer the-token-of-all-senders")
    assert (response.status_code, "Retry-After" in response.headers) == (429, True)


def test_connections_are_kept_open(make: Make) -> None:
    agent = make(pushed("m"))
    with requests.Session() as session:
        for value in range(3):
            body = request(gauge("m", value)).SerializeToString()
            response = session.post(agent.url, body, headers={"Content-Type": "application/x-protobuf"}, timeout=300)
            assert response.status_code == 200
            assert "Connection" not in response.headers or response.headers["Connection"] != "close"


def start_stalled_sender(agent: Agent, length: int = 100) -> http.client.HTTPConnection:
    """Return a sender that announces the size of its request, and sends nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", agent.receiver.address[1], timeout=300)
    connection.putrequest("POST", "/v1/metrics")
    connection.putheader("Content-Type", "application/x-protobuf")
    connection.putheader("Content-Length", str(length))
    connection.endheaders(b"x")
    return connection


def test_stalled_senders_do_not_block_other_senders(make: Make) -> None:
    agent = make()
    silent = [start_stalled_sender(agent) for _ in range(8)]
    try:
        began = time.monotonic()
        assert [push(agent, request()).status_code for _ in range(5)] == [200] * 5
        assert time.monotonic() - began < PATIENCE
    finally:
        for connection in silent:
            connection.close()


def test_oldest_unfinished_bodies_make_room_for_others(make: Make) -> None:
    agent = make(max_bytes=10_000)
    slow = [start_stalled_sender(agent, 10_000) for _ in range(5)]
    try:
        for connection in slow:
            # The five bodies together exceed four of the maximum size.
            connection.send(bytes(9_000))
        response = slow[0].getresponse()
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert push(agent, request()).status_code == 200
    finally:
        for connection in slow:
            connection.close()


def test_stalled_body_is_refused_after_its_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "_BODY_SECONDS", 0.1)
    slow = start_stalled_sender(make())
    assert slow.getresponse().status == 408
    slow.close()


def _is_taken(agent: Agent) -> bool:
    try:
        return push(agent, request()).status_code == 200
    except requests.ConnectionError:
        return False


def test_silent_sender_does_not_block_other_senders(make: Make) -> None:
    agent = make()
    silent = http.client.HTTPConnection("127.0.0.1", agent.receiver.address[1], timeout=300)
    silent.connect()
    assert wait_for(lambda: push(agent, request()).status_code == 200, 5)
    silent.close()


#: Numbers of the fields from a request to the points of an exponential histogram, each of which takes 150 bytes.
_POINTS = (1, 2, 2, 10)


def _repeat_part(part: bytes) -> bytes:
    """Return a request of nearly 8 MiB with the part as often as possible in place of points."""
    body = part * ((8 * 1024 * 1024 - 100) // len(part))
    for number in reversed(_POINTS):
        length = [len(body) >> shift & 127 | 128 for shift in (0, 7, 14)]
        body = bytes([number << 3 | 2, *length, len(body) >> 21]) + body
    return body


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(b"\x0a\x00" * (4 * 1024 * 1024), "application/x-protobuf", id="empty"),
        pytest.param(_repeat_part(b"\x0a\x80\x00"), "application/x-protobuf", id="long form of the length 0"),
        pytest.param(_repeat_part(b"\x8a\x00\x00"), "application/x-protobuf", id="long form of the number"),
        pytest.param(_repeat_part(b"\x0a\x02\x78\x00"), "application/x-protobuf", id="an unknown field"),
        pytest.param(_repeat_part(b"\x0a\x05\x1d\x01\x01\x01\x01"), "application/x-protobuf", id="an unknown number"),
        pytest.param(b'{"resourceMetrics":[' + b"{}," * 500_000 + b"{}]}", "application/json", id="JSON"),
    ],
)
def test_requests_of_small_parts_are_refused_before_they_become_large(make: Make, body: bytes, kind: str) -> None:
    agent = make(max_bytes=8 * 1024 * 1024)
    process = psutil.Process()
    zipped = gzip.compress(body, 9)
    before = process.memory_info().rss
    response = push(agent, zipped, **{"Content-Encoding": "gzip", "Content-Type": kind})
    assert response.status_code == 400
    assert b"too many nearly empty parts" in response.content
    assert process.memory_info().rss - before < 80_000_000


def test_request_in_json_may_have_a_quarter_of_the_bytes(make: Make) -> None:
    agent = make(max_bytes=40_000)
    body = b'{"resourceMetrics":[]' + b" " * 10_000 + b"}"
    assert push(agent, body, **{"Content-Type": "application/json"}).status_code == 413
    response = push(agent, gzip.compress(body), **{"Content-Type": "application/json", "Content-Encoding": "gzip"})
    assert response.json()["message"] == "a request may have 10000 bytes; send smaller batches"


def test_unfinished_heads_are_dropped_for_later_connections(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 8)
    agent = make()
    half = [socket.create_connection(("127.0.0.1", agent.receiver.address[1]), PATIENCE) for _ in range(20)]
    try:
        for connection in half:
            connection.sendall(b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        wait_for(lambda: _is_taken(agent), 20, "a whole request has its turn")
        # The oldest requests were dropped for it.
        assert half[0].recv(1) == b""
    finally:
        for connection in half:
            connection.close()


def test_slow_request_head_is_cut(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.5)
    agent = make()
    with socket.create_connection(("127.0.0.1", agent.receiver.address[1]), PATIENCE) as slow:
        slow.sendall(b"POST /v1/metrics HTTP/1.1\r\nX-Slow: ")
        wait_for(lambda: _is_cut(slow, b"x"), 30, "the sender is cut")


def test_slow_chunk_line_is_refused_in_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "_BODY_SECONDS", 0.5)
    agent = make()
    head = b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
    with socket.create_connection(("127.0.0.1", agent.receiver.address[1]), PATIENCE) as slow:
        slow.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n5;")
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
        wait_for(lambda: _is_cut(slow, b"x"), 30, "the sender is cut")


@pytest.mark.parametrize(
    "lines",
    [
        b"Authorization: Bearer a\r\nauthorization: Bearer b\r\nContent-Length: 0\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_ambiguous_header_is_refused(make: Make, lines: bytes) -> None:
    with socket.create_connection(("127.0.0.1", make().receiver.address[1]), PATIENCE) as sender:
        sender.sendall(b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
        assert sender.recv(100).split()[1] in (b"400", b"501")


def _is_cut(connection: socket.socket, drop: bytes) -> bool:
    """Send one byte; whether the server has closed its side."""
    try:
        connection.sendall(drop)
        return bool(select.select([connection], [], [], 0.05)[0]) and connection.recv(100) == b""
    except OSError:
        return True


def test_request_with_very_many_attributes_is_refused(make: Make) -> None:
    """The labels of a single series would take hundreds of megabytes."""
    agent = make(pushed("m"), max_bytes=8 * 1024 * 1024)
    crowded = request(gauge("m", 1))
    point = crowded.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0]
    for number in range(300_000):
        point.attributes.add(key=f"{number:x}").value.string_value = "x"
    response = push(agent, crowded)
    assert (response.status_code, b"attributes" in response.content) == (400, True)
    assert push(agent, request(gauge("m", 1))).status_code == 200
    assert len(agent.series()) == 1
