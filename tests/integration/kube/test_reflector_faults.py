"""Faults that a real API server does not produce on demand: 410 in mid-stream, silence, half a line, 429 with
Retry-After.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dsf.kube import session as session_module
from dsf.kube.resources import CONFIG_MAPS
from dsf.kube.session import ApiServerError, Session, UnreachableError
from dsf.kube.store import Key, Object, get_version
from tests.integration.kube.recorder import Recorder, reflecting
from tests.integration.kube.stub import Exchange, StubServer, config_map, listing
from tests.support.wait import PATIENCE, wait_for


class Script:
    """Responds to lists and watches one after the other; the last watch stays open until the server stops."""

    def __init__(self) -> None:
        self.lists = 0
        self.watches: list[str] = []
        self.times: list[float] = []
        self.server: StubServer

    def __call__(self, exchange: Exchange) -> None:
        self.times.append(time.monotonic())
        if exchange.is_watch:
            self.watches.append(exchange.query["resourceVersion"])
            self.watch(len(self.watches), exchange)
        else:
            self.lists += 1
            self.list(self.lists, exchange)

    def list(self, number: int, exchange: Exchange) -> None:
        exchange.answer(listing(10, config_map("a", 5), config_map("b", 6)))

    def watch(self, number: int, exchange: Exchange) -> None:
        if number == 1:
            self.first_watch(exchange)
        else:
            self.stay_open(exchange)

    def first_watch(self, exchange: Exchange) -> None:
        self.stay_open(exchange)

    def stay_open(self, exchange: Exchange) -> None:
        exchange.begin()
        self.server.stopping.wait(30)
        exchange.drop()


@contextlib.contextmanager
def serving(script: Script) -> Iterator[Session]:
    """A session with a server that follows the script."""
    with StubServer(script) as script.server, contextlib.closing(script.server.session()) as session:
        yield session


def test_status_410_in_mid_stream_lists_again_and_reports_vanished_objects() -> None:
    class Expiring(Script):
        def list(self, number: int, exchange: Exchange) -> None:
            if number == 1:
                super().list(number, exchange)
            else:
                exchange.answer(listing(30, config_map("a", 5), config_map("c", 29)))

        def first_watch(self, exchange: Exchange) -> None:
            exchange.begin()
            exchange.event("MODIFIED", config_map("b", 11, "new"))
            exchange.event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version: 10 (25)"})
            exchange.end()

    script, recorder = Expiring(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder) as reflector:
        wait_for(lambda: len(script.watches) == 2)
        assert reflector.error is None
        assert {obj["metadata"]["name"] for obj in reflector.store.list()} == {"a", "c"}
    assert recorder.reports == [
        ("added", ("default", "a")),
        ("added", ("default", "b")),
        ("changed", ("default", "b")),
        ("added", ("default", "c")),
        ("deleted", ("default", "b")),
    ]
    assert script.watches == ["10", "30"], "each watch begins where its list ended"


def test_silent_watch_is_reopened_at_its_last_version() -> None:
    class Silent(Script):
        #: Errors that the reflector had reported when the second watch began.
        error: tuple[str | None, ...] = ()

        def watch(self, number: int, exchange: Exchange) -> None:
            if number == 1:
                exchange.begin()
                exchange.event("BOOKMARK", {"kind": "ConfigMap", "metadata": {"resourceVersion": "17"}})
                # A half-open connection: no end, no reset, nothing.
                self.server.stopping.wait(30)
                exchange.drop()
            else:
                if number == 2:
                    self.error = tuple(reflector.error for reflector in started)
                self.stay_open(exchange)

    script, recorder, started = Silent(), Recorder(), []
    with serving(script) as session:
        began = time.monotonic()
        with reflecting(session, CONFIG_MAPS, recorder, silence_seconds=2.0, started=started):
            wait_for(lambda: len(script.watches) >= 2, 5)
            assert 2.0 <= time.monotonic() - began < 20
            assert wait_for(lambda: script.error) == (None,), "one broken connection is no news"
    assert script.lists == 1, "nothing was lost, so nothing is listed again"
    assert script.watches[:2] == ["10", "17"], "a bookmark moves the place to go on from"
    assert recorder.names("changed") == []


def test_hanging_watch_request_is_detected_before_a_quiet_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_TIMEOUT", (5.0, 1.0))

    class Hanging(Script):
        def watch(self, number: int, exchange: Exchange) -> None:
            if self.watches[-1] == "10":
                exchange.begin()
                # Quiet for longer than a request may take: no reason to end it.
                self.server.stopping.wait(2.5)
                exchange.event("MODIFIED", config_map("a", 11, "new"))
            else:
                self.server.stopping.wait(900)
            exchange.drop()

    script, recorder = Hanging(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder, silence_seconds=900.0) as reflector:
        wait_for(lambda: "11" in script.watches and reflector.error, 25, "the silence to be noticed")
        assert "cannot reach" in str(reflector.error)
    assert recorder.names("changed") == ["a"], "the quiet watch went on"


def test_incomplete_line_is_dropped_and_delivered_again() -> None:
    whole = config_map("b", 12, "new")

    class Broken(Script):
        def watch(self, number: int, exchange: Exchange) -> None:
            if number > 2:
                self.stay_open(exchange)
                return
            exchange.begin()
            if number == 1:
                exchange.event("MODIFIED", config_map("a", 11, "new"))
                exchange.chunk(b'{"type":"MODIFIED","object":{"metadata":{"name":"b"')
            else:
                # The same line in three parts, cut within a character.
                added = {"type": "ADDED", "object": config_map("d", 13, "ü")}
                data = json.dumps(added, ensure_ascii=False).encode() + b"\n"
                middle = data.index("ü".encode()) + 1
                exchange.event("MODIFIED", whole)
                for part in (data[:5], data[5:middle], data[middle:]):
                    exchange.chunk(part)
                exchange.chunk(b"not json\n")
            exchange.drop()

    script, recorder = Broken(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder) as reflector:
        wait_for(lambda: len(script.watches) == 3)
        assert reflector.store.get(("default", "b")) == whole
    assert recorder.names("changed") == ["a", "b"]
    assert recorder.names("added") == ["a", "b", "d"]
    assert script.watches == ["10", "11", "13"]
    assert script.lists == 1


def test_retry_after_is_honoured() -> None:
    class Busy(Script):
        def list(self, number: int, exchange: Exchange) -> None:
            if number == 1:
                status = {"kind": "Status", "code": 429, "message": "too many requests, please try again later"}
                exchange.answer(status, 429, retry_after="2")
            else:
                super().list(number, exchange)

    script, recorder = Busy(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder, synced=False) as reflector:
        wait_for(lambda: reflector.error is not None)
        assert "429: too many requests" in str(reflector.error)
        wait_for(lambda: script.watches, 5)
        assert 2 <= script.times[1] - script.times[0] < 12
        wait_for(lambda: reflector.error is None)


def test_status_429_on_the_watch_does_not_list_again() -> None:
    class Busy(Script):
        def first_watch(self, exchange: Exchange) -> None:
            exchange.answer({"code": 429, "message": "busy"}, 429, retry_after="1")

    script = Busy()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, Recorder()):
        wait_for(lambda: len(script.watches) == 2, 5)
    assert script.lists == 1
    assert script.times[2] - script.times[1] >= 1


@pytest.mark.parametrize("failure_mode", ["refused", "ends at once", "drops at once"])
def test_failing_watch_is_retried_with_back_off(failure_mode: str) -> None:
    class Useless(Script):
        def watch(self, number: int, exchange: Exchange) -> None:
            if failure_mode == "refused":
                exchange.answer({"code": 403, "message": "cannot watch"}, 403)
                return
            exchange.begin()
            if failure_mode == "ends at once":
                exchange.end()
            else:
                exchange.drop()

    script = Useless()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, Recorder()) as reflector:
        wait_for(lambda: len(script.watches) >= 3, 10)
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > 1.5)
        # 0..0.2, 0.4..1.2, 0.8..2.4, 1.6..4.8 s
        assert len(script.watches) <= 6
        if failure_mode == "refused":
            assert "cannot watch" in str(reflector.error)


def test_stop_ends_a_silent_watch_at_once() -> None:
    script = Script()
    with serving(script) as session:
        with reflecting(session, CONFIG_MAPS, Recorder()):
            wait_for(lambda: script.watches)
            began = time.monotonic()
        assert time.monotonic() - began < 12


def test_unreadable_event_does_not_end_the_copy() -> None:
    class Odd(Script):
        def first_watch(self, exchange: Exchange) -> None:
            exchange.begin()
            exchange.event("ADDED", {"what": "is this"})
            exchange.end()

    script, recorder = Odd(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder) as reflector:
        wait_for(lambda: len(script.watches) == 2)
        wait_for(lambda: reflector.error is None)
    assert script.lists == 2
    assert recorder.reports == [("added", ("default", "a")), ("added", ("default", "b"))]


def test_failing_change_handler_does_not_stop_the_watch() -> None:
    class Changing(Script):
        def first_watch(self, exchange: Exchange) -> None:
            exchange.begin()
            exchange.event("MODIFIED", config_map("a", 11))
            exchange.event("MODIFIED", config_map("b", 12))
            exchange.end()

    class Failing(Recorder):
        """Fails with every `a`."""

        def __call__(self, key: Key, old: Object | None, new: Object | None) -> None:
            if key[1] == "a":
                raise RuntimeError("no")
            super().__call__(key, old, new)

    script, recorder = Changing(), Failing()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder) as reflector:
        wait_for(lambda: len(script.watches) == 2)
        assert sorted(get_version(obj) for obj in reflector.store.list()) == ["11", "12"]
    assert recorder.reports == [("added", ("default", "b")), ("changed", ("default", "b"))]
    assert script.lists == 1


def test_server_restored_from_a_backup_replaces_newer_objects() -> None:
    class Restored(Script):
        def list(self, number: int, exchange: Exchange) -> None:
            exchange.answer(listing(100, config_map("a", 90)) if number == 1 else listing(20, config_map("a", 15)))

        def first_watch(self, exchange: Exchange) -> None:
            exchange.begin()
            exchange.event("MODIFIED", config_map("a", 120))
            exchange.event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
            exchange.end()

    script, recorder = Restored(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder) as reflector:
        wait_for(lambda: len(script.watches) == 2)
        assert reflector.store.get(("default", "a")) == config_map("a", 15)
    assert recorder.names("changed") == ["a", "a"]


def test_slow_pages_do_not_prevent_the_first_list() -> None:
    """For pages, a real API server also reads all objects that the selector excludes, which may be many large ones."""

    class Slow(Script):
        def list(self, number: int, exchange: Exchange) -> None:
            if "limit" in exchange.query:
                self.server.stopping.wait(PATIENCE)
            super().list(number, exchange)

    script, recorder = Slow(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder) as reflector:
        assert {obj["metadata"]["name"] for obj in reflector.store.list()} == {"a", "b"}
    assert script.lists == 1


def test_list_of_a_cache_that_lags_behind_is_not_used() -> None:
    class Lagging(Script):
        def list(self, number: int, exchange: Exchange) -> None:
            is_first = number == 1
            is_cache = exchange.query.get("resourceVersion") == "0" and not is_first
            exchange.answer(listing(5) if is_cache else listing(10 if is_first else 30, config_map("a", 5)))

        def first_watch(self, exchange: Exchange) -> None:
            exchange.begin()
            exchange.event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
            exchange.end()

    script, recorder = Lagging(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder):
        wait_for(lambda: len(script.watches) == 2)
    assert recorder.reports == [("added", ("default", "a"))]
    assert script.watches == ["10", "30"]


def test_response_without_json_is_a_backend_error() -> None:
    class Proxy(Script):
        def list(self, number: int, exchange: Exchange) -> None:
            exchange._handler.send_response(200 if number == 1 else 502)
            exchange._handler.send_header("Content-Length", "6")
            exchange._handler.end_headers()
            exchange._handler.wfile.write(b"<html>")

    with serving(Proxy()) as session:
        with pytest.raises(ApiServerError, match="something that is not a JSON object"):
            session.get("/api/v1/configmaps")
        with pytest.raises(ApiServerError, match="502: <html>") as caught:
            session.get("/api/v1/configmaps")
        assert caught.value.status == 502


def test_too_deeply_nested_object_does_not_hide_others() -> None:
    """The API server accepts up to 10,000 levels where a schema preserves unknown fields."""

    def nested_json(obj: dict[str, Any]) -> bytes:
        return json.dumps(obj).replace('"NEST"', '{"a":' * 2000 + '"]"' + "}" * 2000).encode()

    class Deep(Script):
        def list(self, number: int, exchange: Exchange) -> None:
            data = nested_json(listing(10, config_map("a", 5, "NEST"), config_map("b", 6)))
            exchange._handler.send_response(200)
            exchange._handler.send_header("Content-Length", str(len(data)))
            exchange._handler.end_headers()
            exchange._handler.wfile.write(data)

        def first_watch(self, exchange: Exchange) -> None:
            exchange.begin()
            exchange.chunk(nested_json({"type": "ADDED", "object": config_map("c", 11, "NEST")}) + b"\n")
            exchange.event("ADDED", config_map("d", 12))
            self.server.stopping.wait(30)

    script, recorder = Deep(), Recorder()
    with serving(script) as session, reflecting(session, CONFIG_MAPS, recorder) as reflector:
        wait_for(lambda: reflector.store.get(("default", "d")))
        assert reflector.store.get(("default", "b")) == config_map("b", 6)
        assert script.lists == 1
    assert recorder.names("added") == ["a", "b", "c", "d"]


def test_truncated_response_is_a_backend_error() -> None:
    class Cut(Script):
        def list(self, number: int, exchange: Exchange) -> None:
            exchange._handler.send_response(200)
            exchange._handler.send_header("Content-Length", "600")
            exchange._handler.end_headers()
            exchange._handler.wfile.write(b"{")
            exchange.drop()

    with serving(Cut()) as session, pytest.raises(UnreachableError, match="broke off"):
        session.get("/api/v1/configmaps")


def test_unreachable_server_is_a_backend_error() -> None:
    with serving(Script()) as session:
        pass
    with pytest.raises(UnreachableError, match=r"cannot reach http://127\.0\.0\.1"):
        session.get("/api/v1/configmaps")


def test_dripping_response_ends_at_the_deadline() -> None:
    """Each byte arrives well before the timeout of the socket."""

    def drip(exchange: Exchange) -> None:
        exchange.begin()
        with contextlib.suppress(OSError):
            while not server.stopping.wait(0.1):
                exchange.chunk(b" ")

    with (
        StubServer(drip) as server,
        contextlib.closing(server.session()) as session,
        pytest.raises(UnreachableError, match="did not answer in time"),
    ):
        session.read("/apis/x/v1", {}, max_bytes=1000, deadline=time.monotonic() + 1)
