"""Requests to an API server: the official client's configuration and connection pools, plain dicts in and out.

Two pools: one for requests and one for watches, so that watches, which hold their connection for minutes, never starve
writers. urllib3's own retries are off: each caller decides what to retry.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import json
import re
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from dsf.errors import BackendError, ObjectConflictError, ObjectNotFoundError, SettingsError
from dsf.kube import access
from dsf.text import shown_url

#: Seconds: connect, read. The API server answers or refuses within its own 60 s; a write must not wait that long.
_TIMEOUT = (5.0, 30.0)
# The header Date has whole seconds.
_PRECISION = datetime.timedelta(seconds=3)
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"
#: Statuses that only call for a retry: timeout, gone, too many requests.
_PASSING = frozenset({408, 410, 429})
# Statuses of a busy server: too many requests, unavailable.
_BUSY = frozenset({429, 503})
# Matches brackets that open or close a level of JSON, and strings, which may contain the same characters.
_LEVELS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]')
#: Levels of JSON that are read. The models take fewer, so an object that lacks deeper ones is refused as invalid.
_DEPTH = 400


class ApiServerError(BackendError):
    """The API server refused a request. `status` is the HTTP status, `retry_after` the seconds of its Retry-After."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.is_refusal = 400 <= status < 500 and status not in _PASSING
        self.is_busy = status in _BUSY


class ForbiddenError(ApiServerError):
    """The API server answered 403; its message names verb, resource and namespace, which is the missing RBAC rule."""


class ExpiredError(ApiServerError):
    """410: the resourceVersion or the continue token is too old; list again."""


class UnreachableError(BackendError):
    """The API server could not be reached or did not answer in time."""

    is_unreachable = True


class TooLargeError(BackendError):
    """The answer exceeds the caller's limit."""


class Watch:
    """An open watch. Iterates over its events until the server ends it, it is closed, or it breaks off."""

    def __init__(self, response: urllib3.BaseHTTPResponse, path: str) -> None:
        self._response = response
        self._path = path
        self._is_closed = False

    def __iter__(self) -> Generator[dict[str, Any], None, None]:
        """Yield an event per line. Raises UnreachableError when the connection breaks or is silent too long.

        Closing it closes the connection. A partial last line is dropped: its event comes again with the next
        watch.
        """
        buffer = b""
        try:
            for chunk in self._response.stream(64 * 1024, decode_content=True):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield _loaded(line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if not self._is_closed:
                raise UnreachableError(f"watch of {self._path} broke off: {_cause(error)}") from None
        except ValueError as error:
            raise UnreachableError(f"watch of {self._path} sent something that is not JSON: {error}") from None
        finally:
            # The connection is closed and not released: an unfinished watch must not go back into the pool.
            self._response.close()

    def close(self) -> None:
        """End it, from a thread other than the iterating one."""
        self._is_closed = True
        # Wakes the read. The socket is missing if the read has just ended by itself.
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()


class Session:
    """Requests to one API server. Thread-safe. Close it when done."""

    def __init__(self, configuration: client.Configuration) -> None:
        configuration.retries = urllib3.Retry(total=0, connect=0, read=False, redirect=0)
        configuration.keep_alive = True
        configuration.connection_pool_maxsize = 32
        self._client = client.ApiClient(configuration)
        configuration.connection_pool_maxsize = 16
        self._watch_client = client.ApiClient(configuration)
        self._certificates = access.Certificates(configuration)
        for api in (self._client, self._watch_client):
            self._certificates.use_in(api)
        self.host: str = configuration.host
        self._clock_offset: datetime.timedelta | None = None

    def now(self) -> datetime.datetime:
        """Return the time of the API server by its newest response; that of this machine if it is unknown.

        OCM judges the validity of scores on the machines of the hub, whose clocks are those of the API server.
        """
        if self._clock_offset is None:
            with contextlib.suppress(BackendError):
                self.get("/version")
        return datetime.datetime.now(datetime.UTC) + (self._clock_offset or datetime.timedelta())

    def _measure_clock(self, response: urllib3.BaseHTTPResponse) -> None:
        with contextlib.suppress(TypeError, ValueError):
            date = email.utils.parsedate_to_datetime(response.headers.get("Date", ""))
            offset = date - datetime.datetime.now(datetime.UTC)
            # A difference within the second of the header and the time of an answer is no wrong clock.
            self._clock_offset = offset if abs(offset) > _PRECISION else datetime.timedelta()

    def bearer_token(self) -> str:
        """Return the token that this process shows to the API server now; empty without one."""
        text: Any = self._client.configuration.get_api_key_with_prefix("BearerToken") or ""
        return str(text).removeprefix("Bearer ").removeprefix("bearer ")

    @classmethod
    def load(cls, kubeconfig: Path | None = None, context: str | None = None) -> Session:
        """Connect with a kubeconfig, or with the pod's ServiceAccount when none is given.

        `kubeconfig` may list several files, separated by colons.

        Raises SettingsError when neither can be used.
        """
        configuration = client.Configuration()
        try:
            if kubeconfig is not None:
                access.of_kubeconfig(configuration, kubeconfig, context)
            else:
                access.of_pod(configuration)
        except config.ConfigException as error:
            raise SettingsError(
                f"no Kubernetes API server is configured: {str(error).rstrip('.')}. Set DSF_KUBECONFIG "
                "(or KUBECONFIG, for commands) to files that exist, or run in a pod"
            ) from None
        return cls(configuration)

    def close(self) -> None:
        """Close all idle connections. Open reads continue: close watches separately."""
        self._client.close()  # type: ignore[no-untyped-call]
        self._watch_client.close()  # type: ignore[no-untyped-call]

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout: tuple[float, float] = _TIMEOUT,
    ) -> dict[str, Any]:
        """Make a request; returns the answer as a dict.

        Raises ObjectNotFoundError (404), ObjectConflictError (409), ForbiddenError (403), ExpiredError (410),
        ApiServerError (any other status) and UnreachableError.
        """
        response = self._send(self._client, method, path, query, body, content_type, timeout)
        with self._reading(method, path, response):
            data = response.data
        return self._parsed(method, path, response, data)

    def read(
        self, path: str, query: Mapping[str, str], *, max_bytes: int, deadline: float
    ) -> tuple[dict[str, Any], int]:
        """GET of a large answer: the answer, and its bytes. `deadline` is on the clock of time.monotonic().

        Raises TooLargeError beyond `max_bytes`, UnreachableError after `deadline`, and as `request` does.
        """
        remaining_seconds = max(deadline - time.monotonic(), 0.001)
        response = self._send(
            self._client, "GET", path, query, None, "", (min(_TIMEOUT[0], remaining_seconds), remaining_seconds)
        )
        data = bytearray()
        with self._reading("GET", path, response):
            # Reads what has come, not whole chunks: a server that sends a byte now and then would hold them up for
            # ever.
            while chunk := response.read1(64 * 1024, decode_content=True):
                data += chunk
                if len(data) > max_bytes:
                    raise TooLargeError(f"GET {path}: the answer has more than the {max_bytes} bytes allowed")
                if time.monotonic() >= deadline:
                    raise UnreachableError(f"GET {path}: {shown_url(self.host)} did not answer in time")
        return self._parsed("GET", path, response, bytes(data)), len(data)

    @contextlib.contextmanager
    def _reading(self, method: str, path: str, response: urllib3.BaseHTTPResponse) -> Iterator[None]:
        """Read an answer, and give its connection back; after an error close it, for the next one must not read the
        rest."""
        try:
            yield
        except BaseException as error:
            response.close()
            if isinstance(error, (urllib3.exceptions.HTTPError, OSError)):
                text = f"{method} {path}: the answer of {shown_url(self.host)} broke off: {_cause(error)}"
                raise UnreachableError(text) from None
            raise
        finally:
            response.release_conn()

    def _parsed(self, method: str, path: str, response: urllib3.BaseHTTPResponse, data: bytes) -> dict[str, Any]:
        if response.status >= 300:
            raise _api_error(method, path, response, data)
        try:
            parsed = _loaded(data) if data else {}
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            # A proxy in front of the API server, or no API server.
            raise ApiServerError(
                f"{method} {path}: {shown_url(self.host)} answered something that is not a JSON object", response.status
            )
        return parsed

    def watch(self, path: str, query: Mapping[str, str], *, read_timeout: float) -> Watch:
        """Open a watch. `read_timeout` is the longest silence, in seconds. Raises as `request` does."""
        # The server accepts a watch at once, however quiet the kind: it need not have all of that time.
        response = self._send(self._watch_client, "GET", path, query, None, "", _TIMEOUT)
        if response.status < 300:
            # The socket is missing where a proxy closes it at the end: the shorter time stays.
            if (sock := getattr(response.connection, "sock", None)) is not None:
                sock.settimeout(read_timeout)
            return Watch(response, path)
        with self._reading("GET", path, response):
            raise _api_error("GET", path, response, response.read(64 * 1024))

    def get(self, path: str) -> dict[str, Any]:
        """Read one object or list."""
        return self.request("GET", path)

    def create(
        self, path: str, body: object, *, timeout: tuple[float, float] = _TIMEOUT, field_manager: str = ""
    ) -> dict[str, Any]:
        """Create an object in a collection. Raises ObjectConflictError when one of its name exists."""
        query = {"fieldManager": field_manager} if field_manager else None
        return self.request("POST", path, query=query, body=body, timeout=timeout)

    def replace(self, path: str, body: object) -> dict[str, Any]:
        """Replace an object; with a resourceVersion in it, only if unchanged since."""
        return self.request("PUT", path, body=body)

    def merge(self, path: str, body: object, *, field_manager: str = "") -> dict[str, Any]:
        """JSON merge patch: the only patch besides apply that works on custom resources and is easy to read."""
        query = {"fieldManager": field_manager} if field_manager else None
        return self.request("PATCH", path, query=query, body=body, content_type=_MERGE_PATCH)

    def replace_field(
        self, path: str, field: str, value: object, *, field_manager: str, tests: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Set one field, given as a JSON pointer, to exactly this value, whoever wrote what is there.

        Only if the object has the values of `tests`, by JSON pointer: else ApiServerError with status 422.
        """
        return self.patch(path, {field: value}, field_manager=field_manager, tests=tests)

    def patch(
        self,
        path: str,
        values: Mapping[str, object],
        *,
        field_manager: str,
        tests: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """`replace_field` for several fields at once."""
        patch = [{"op": "test", "path": field, "value": value} for field, value in (tests or {}).items()]
        # `add` also replaces what is there.
        patch += [{"op": "add", "path": field, "value": value} for field, value in values.items()]
        return self.request("PATCH", path, query={"fieldManager": field_manager}, body=patch, content_type=_JSON_PATCH)

    def apply(self, path: str, body: object, *, field_manager: str, force: bool = True) -> dict[str, Any]:
        """Server-side apply: own fields only; those of others stay.

        Raises ObjectConflictError for a `metadata.uid` of another object, and without `force` for fields that others
        own.
        """
        query = {"fieldManager": field_manager, "force": str(force).lower()}
        return self.request("PATCH", path, query=query, body=body, content_type=_APPLY_PATCH)

    def delete(self, path: str, *, uid: str | None = None, version: str | None = None) -> None:
        """Delete an object; with `uid` only that very object, with `version` only if it is unchanged.

        Raises ObjectNotFoundError when it is gone, and ObjectConflictError when it is another one or has changed.
        """
        conditions = {"uid": uid, "resourceVersion": version}
        preconditions = {name: value for name, value in conditions.items() if value}
        self.request("DELETE", path, body={"preconditions": preconditions} if preconditions else None)

    def _send(
        self,
        api: client.ApiClient,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        content_type: str,
        timeout: tuple[float, float],
    ) -> urllib3.BaseHTTPResponse:
        headers: dict[str, str] = {"Accept": "application/json", "User-Agent": "dynamic-scoring-framework"}
        parameters: list[tuple[str, str]] = list((query or {}).items())
        payload: str | None = None
        if body is not None:
            headers["Content-Type"] = content_type
            payload = json.dumps(body, separators=(",", ":"))
        try:
            # Reads the pod's token again every minute: it is rotated.
            api.update_params_for_auth(headers, parameters, ["BearerToken"], path, method, payload)
        except (config.ConfigException, OSError) as error:
            raise UnreachableError(f"{method} {path}: cannot read the credentials: {error}") from None
        self._certificates.refresh()
        url = self.host + path + (f"?{urlencode(parameters)}" if parameters else "")
        try:
            # The pool itself rather than call_api: that one encodes some content types a second time.
            response: urllib3.BaseHTTPResponse = api.rest_client.pool_manager.request(
                method,
                url,
                body=payload,
                headers=headers,
                timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ApiException) as error:
            raise UnreachableError(f"{method} {path}: cannot reach {shown_url(self.host)}: {_cause(error)}") from None
        self._measure_clock(response)
        return response


def _cause(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {reason}"


def _api_error(method: str, path: str, response: urllib3.BaseHTTPResponse, data: bytes) -> BackendError:
    status = response.status
    try:
        answer = _loaded(data)
        message = str(answer["message"])
        details = (answer.get("details") or {}).get("causes") or ()
        causes = {cause.get("reason") for cause in details}
        fields = {cause.get("field") for cause in details}
    except (ValueError, KeyError, TypeError, AttributeError):
        message, causes, fields = data[:200].decode("utf-8", "replace"), set(), set()
    text = f"{method} {path}: {status}: {message}"
    if status == 404 or (status == 403 and "NamespaceTerminating" in causes):
        # A terminating namespace accepts no objects: this is not a missing right.
        return ObjectNotFoundError(text)
    if status == 409 or (status == 422 and "metadata.uid" in fields):
        # Custom resources answer an `apply` for another object's uid as an invalid change.
        return ObjectConflictError(text)
    if status == 401:
        return ApiServerError(f"{text}: the token or certificate is not valid (any more)", status)
    if status == 403:
        return ForbiddenError(text, status)
    if status == 410:
        return ExpiredError(text, status)
    wait = response.headers.get("Retry-After", "")
    return ApiServerError(text, status, float(wait) if wait.isdecimal() else None)


def _loaded(data: bytes) -> Any:
    """JSON, with null for what is nested too deeply: one object must not hide all others. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError:
        output, depth, start = bytearray(), 0, 0
        for token in _LEVELS.finditer(data):
            if token[0] in (b"[", b"{"):
                depth += 1
                if depth == _DEPTH + 1:
                    output += data[start : token.start()] + b"null"
            elif token[0] in (b"]", b"}"):
                if depth == _DEPTH + 1:
                    start = token.end()
                depth -= 1
        return json.loads(output + data[start:])
