"""Filter for Flower's events, which any holder of a cluster's credential can publish.

A message has a maximum size and is parsed before Celery reads it, because a malformed one would end Celery's listening
thread. An event is kept only if one of our workers may have sent it. The sender must be the worker of a registered
cluster or a results worker, the type one of Celery's, and the task one of ours. Only known fields with values of the
right types are kept. Text may still be forged, so pages have headers that keep a browser from executing it.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import threading
import time
from collections import Counter
from typing import Any, Final

import flower.app
import flower.views
import flower.views.monitor
import redis
import tornado.httpserver
import tornado.web
from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

import dsf.log
from dsf import keys
from dsf.api.meta import LATEST
from dsf.messages import CYCLE_TASK, FETCH_TASK, INGEST_TASK, PUBLISH_TASK, SCORE_TASK
from dsf.process.clientlimiter import find_client
from dsf.settings import settings
from dsf.store.client import connect
from dsf.worker.events import MAX_EVENT_BYTES

#: Maximum number of results workers whose events are shown.
_MAX_RESULTS_WORKERS: Final = 100
#: Seconds without an event after which another results worker may replace one.
_IDLE_SECONDS: Final = 600.0
#: Seconds between two reads of the registered clusters.
_REGISTRY_SECONDS: Final = 10.0
#: Maximum bytes of a text in an event, and of a traceback.
_MAX_TEXT_BYTES: Final = 1024
#: Maximum bytes of a request, and seconds for its header and its body, which Tornado reads before a login. Tornado's
#: own limits are 100 MB and an hour for each client.
_MAX_BODY_BYTES: Final = 64 * 1024
_BODY_SECONDS: Final = 20.0
_IDLE_CONNECTION_SECONDS: Final = 620.0
#: Maximum connections of the server.
_MAX_CONNECTIONS: Final = 256
_MAX_TRACEBACK_BYTES: Final = 4096
_TYPES: Final = frozenset(
    {f"worker-{kind}" for kind in ("online", "heartbeat", "offline")}
    | {f"task-{kind}" for kind in ("received", "started", "succeeded", "failed", "retried", "revoked", "rejected")}
)
_TASKS: Final = frozenset({CYCLE_TASK, FETCH_TASK, SCORE_TASK, PUBLISH_TASK, INGEST_TASK})
#: Fields of Celery's events besides type, hostname and uuid; the sender's clock is not used.
_NUMBERS: Final = ("timestamp", "utcoffset", "pid", "freq", "active", "processed", "runtime", "retries", "signum")
_TEXTS: Final = (
    *("name", "args", "kwargs", "root_id", "parent_id", "eta", "expires", "queue", "exchange", "routing_key"),
    *("result", "exception", "traceback", "sw_ident", "sw_ver", "sw_sys"),
)
_AGENT: Final = "spoke@"
_RESULTS_WORKER_PATTERN: Final = re.compile(r"results@[-A-Za-z0-9.]{1,253}")
_UUID_PATTERN: Final = re.compile(r"[-0-9a-f]{1,64}")
#: Content security policies of pages, whose templates have inline scripts, and of all other responses.
_PAGE_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)
#: Shows the short ids of tasks, as Flower itself does on a phone, so that all columns fit on a laptop.
_NARROW_STYLE: Final = (
    b"<style>#tasks-table .task-uuid-full { display: none } #tasks-table .task-uuid-short { display: inline }</style>"
)
_DATA_POLICY: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"

log = dsf.log.get(__name__)


class _FilteredConnection:
    """Mixin of a connection that passes on only valid events of a message.

    The loss of the connection is an error, after which the whole channel is recreated. redis-py would reconnect without
    a new subscription and on a socket that is not polled. Flower would then receive no more events after Redis has
    disconnected it as too slow.
    """

    #: Set by `install`.
    workers: KnownWorkers

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"retry": Retry(NoBackoff(), 0)})

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Read a response. A published message is reduced to its valid events."""
        response = super().read_response(*args, **options)  # type: ignore[misc]
        if isinstance(response, list) and len(response) > 2 and response[0] in (b"message", b"pmessage"):
            # Kombu ignores a message without data.
            response[-1] = filter_message(response[-1], self.workers)
        return response


def make_filtered_class(kind: type[Any]) -> type[Any]:
    """Return a subclass of this class of connections that filters events."""
    return type(f"Filtered{kind.__name__}", (_FilteredConnection, kind), {})


class KnownWorkers:
    """The workers whose events are shown. Thread-safe."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._lock = threading.Lock()
        self._clusters: frozenset[str] = frozenset()
        # Name -> time.monotonic() of its newest event.
        self._results_workers: dict[str, float] = {}
        self._read_at = float("-inf")

    def may_be_ours(self, name: object) -> bool:
        """True if a worker of ours may have this name. Uses the last known clusters while Redis is unavailable."""
        if not isinstance(name, str):
            return False
        with self._lock:
            if name.startswith(_AGENT):
                return name.removeprefix(_AGENT) in self._fetch_clusters()
            if name not in self._results_workers:
                if _RESULTS_WORKER_PATTERN.fullmatch(name) is None:
                    return False
                now = time.monotonic()
                if len(self._results_workers) >= _MAX_RESULTS_WORKERS:
                    self._results_workers = {
                        worker: at for worker, at in self._results_workers.items() if now - at < _IDLE_SECONDS
                    }
                if len(self._results_workers) >= _MAX_RESULTS_WORKERS:
                    return False
            self._results_workers[name] = time.monotonic()
            return True

    def list_queues(self) -> list[str]:
        """Return the sorted queues of the registered clusters, or of the last known ones while Redis is unavailable."""
        with self._lock:
            return sorted(map(keys.spoke_queue, self._fetch_clusters()))

    def _fetch_clusters(self) -> frozenset[str]:
        """Return the registered clusters, which are read again after _REGISTRY_SECONDS."""
        if time.monotonic() - self._read_at > _REGISTRY_SECONDS:
            self._read_at = time.monotonic()
            try:
                self._clusters = frozenset(map(str, self._redis.hkeys(keys.CLUSTERS)))
            except redis.RedisError as error:
                log.warning("cannot look up which clusters there are", error=str(error))
        return self._clusters


def filter_message(data: bytes, workers: KnownWorkers) -> bytes:
    """Return the message in a new envelope with only valid events. The bytes are empty if there are none."""
    try:
        if len(data) > MAX_EVENT_BYTES:
            return b""
        raw = json.loads(data)
        properties, body = raw["properties"], raw["body"]
        text = base64.b64decode(body, validate=True) if properties.get("body_encoding") == "base64" else body
        decoded = json.loads(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return b""
    events = [
        event
        for item in (decoded if isinstance(decoded, list) else [decoded])
        if (event := filter_event(item, workers))
    ]
    if not events:
        return b""
    envelope = {
        "body": json.dumps(events),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"delivery_tag": "", "delivery_info": {"exchange": "celeryev", "routing_key": ""}},
    }
    return json.dumps(envelope).encode()


def filter_event(event: object, workers: KnownWorkers) -> dict[str, Any] | None:
    """Return the valid fields of an event, or None if it cannot be from one of our workers."""
    if not isinstance(event, dict):
        return None
    host, kind, uuid = event.get("hostname"), event.get("type"), event.get("uuid")
    if not (isinstance(kind, str) and kind in _TYPES and workers.may_be_ours(host)):
        return None
    fields: dict[str, Any] = {"type": kind, "hostname": host}
    fields |= {name: event[name] for name in _NUMBERS if _is_number(event.get(name))}
    fields |= {name: event[name] for name in ("terminated", "expired", "requeue") if isinstance(event.get(name), bool)}
    for name in _TEXTS:
        if isinstance(text := event.get(name), str):
            fields[name] = _truncate(text, _MAX_TRACEBACK_BYTES if name == "traceback" else _MAX_TEXT_BYTES)
    if "timestamp" not in fields or event.get("name", fields.get("name")) != fields.get("name"):
        return None
    if kind.startswith("worker-"):
        load = event.get("loadavg")
        if isinstance(load, list) and len(load) == 3 and all(_is_number(value) for value in load):
            fields["loadavg"] = load
        return fields
    if not (isinstance(uuid, str) and _UUID_PATTERN.fullmatch(uuid)) or (
        "name" in fields and fields["name"] not in _TASKS
    ):
        return None
    return fields | {"uuid": uuid}


def _truncate(text: str, limit: int) -> str:
    """Return the beginning of a text, with at most `limit` bytes in memory, because Flower keeps 10,000 tasks."""
    # Python stores each character of a text in four bytes if the text contains an emoji.
    return text[:limit] if text.isascii() else text[: limit // 4]


def _is_number(value: object) -> bool:
    """True if the value is a number in the allowed range. The smallest number of an event is an offset in hours."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -24 <= value < LATEST


class BoundedServer(tornado.httpserver.HTTPServer):
    """A server that reads small requests, and limits its connections.

    A connection above `_MAX_CONNECTIONS` replaces the oldest one of the client with the most connections, so that a
    client that opens many connections displaces only its own.
    """

    def initialize(self, *arguments: Any, **options: Any) -> None:
        """Add the limits to the options of Tornado's server."""
        limits = {
            "max_body_size": _MAX_BODY_BYTES,
            "max_buffer_size": 2 * _MAX_BODY_BYTES,
            "body_timeout": _BODY_SECONDS,
            "idle_connection_timeout": _IDLE_CONNECTION_SECONDS,
        }
        super().initialize(*arguments, **{**options, **limits})
        #: Open connections, the oldest first, with the clients to which they are counted.
        self._client_by_stream: dict[Any, str] = {}

    def handle_stream(self, stream: Any, address: Any) -> None:
        """Serve a new connection. Closes another one if there are more than `_MAX_CONNECTIONS`."""
        self._client_by_stream = {
            open_stream: client for open_stream, client in self._client_by_stream.items() if not open_stream.closed()
        }
        if len(self._client_by_stream) >= _MAX_CONNECTIONS:
            [(largest_client, _)] = Counter(self._client_by_stream.values()).most_common(1)
            oldest_stream = next(
                open_stream for open_stream, client in self._client_by_stream.items() if client == largest_client
            )
            del self._client_by_stream[oldest_stream]
            oldest_stream.close()
        self._client_by_stream[stream] = find_client(str(address[0])) if address else ""
        super().handle_stream(stream, address)


class _CredentialComparison:
    """Replaces `hmac` in Flower, whose comparison raises TypeError for texts that are not ASCII."""

    @staticmethod
    def compare_digest(stored_credential: str, credential: str) -> bool:
        """Return True if both credentials are equal, in a time that does not depend on their content."""
        return hmac.compare_digest(stored_credential.encode(), credential.encode())


def install(app: Celery) -> None:
    """Install the event filter, headers, style, list of queues, password of /metrics and limits of requests.

    They apply to the Flower of this process.
    """
    module: Any = flower.app
    module.HTTPServer = BoundedServer
    handler: Any = flower.views.BaseHandler
    _FilteredConnection.workers = KnownWorkers(connect(settings(), name="dsf-flower-clusters"))
    for name in ("connection_class", "connection_class_ssl"):
        app.conf.broker_transport_options[name] = make_filtered_class(app.conf.broker_transport_options[name])
    set_default_headers, render = handler.set_default_headers, handler.render
    render_string = handler.render_string

    def set_headers(self: Any) -> None:
        set_default_headers(self)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", _DATA_POLICY)

    def render_page(self: Any, *args: Any, **values: Any) -> Any:
        self.set_header("Content-Security-Policy", _PAGE_POLICY)
        return render(self, *args, **values)

    def render_narrow(self: Any, *args: Any, **values: Any) -> bytes:
        return bytes(render_string(self, *args, **values)).replace(b"</head>", _NARROW_STYLE + b"</head>", 1)

    handler.set_default_headers, handler.render = set_headers, render_page
    handler.render_string = render_narrow
    # Flower's own list has only the queues of workers whose pages were opened.
    handler.get_active_queue_names = lambda _: _FilteredConnection.workers.list_queues()
    views: Any = flower.views
    views.hmac = _CredentialComparison
    # The metrics contain the names of clusters and tasks. Flower itself requires no password for them.
    metrics: Any = flower.views.monitor.Metrics
    metrics.get = tornado.web.authenticated(metrics.get)
