"""Sends requests to an API server with the official client's configuration and connection pools.

Objects are plain dicts. Watches have a separate connection pool, because they use a connection for minutes and must not
starve writers. Retries by urllib3 are disabled, because each caller decides which requests to retry.
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
from dsf.text import shorten_url

#: Connect and read timeouts in seconds. The API server's own limit is 60 s, which is too long for a write.
_TIMEOUT = (5.0, 30.0)
#: Maximum clock difference that is ignored, because the header Date has whole seconds and responses take time.
_CLOCK_TOLERANCE = datetime.timedelta(seconds=3)
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"
#: Statuses of client errors after which a retry may succeed: timeout, gone, too many requests.
_RETRYABLE_STATUSES = frozenset({408, 410, 429})
#: Statuses with which a server reports overload: too many requests, unavailable.
_OVERLOAD_STATUSES = frozenset({429, 503})
#: Matches the brackets of JSON objects and lists, and strings, which may contain brackets.
_BRACKETS_AND_STRINGS_PATTERN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]')
#: Maximum nesting of parsed JSON. The models accept less, so that they reject an object that is truncated here.
_MAX_DEPTH = 400


class ApiServerError(BackendError):
    """Error response of the API server."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        """`status` is the HTTP status, and `retry_after` the seconds of the header Retry-After."""
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.is_refusal = 400 <= status < 500 and status not in _RETRYABLE_STATUSES
        self.is_busy = status in _OVERLOAD_STATUSES


class ForbiddenError(ApiServerError):
    """Response 403. The message names the verb, the resource and the namespace of the missing RBAC rule."""


class ExpiredError(ApiServerError):
    """Response 410: the resourceVersion or the continue token has expired, and the caller must list again."""


class UnreachableError(BackendError):
    """The API server is unreachable, or sends no response in time."""

    is_unreachable = True


class TooLargeError(BackendError):
    """The response exceeds the caller's limit."""


class Watch:
    """An open watch. Iteration yields events until the server ends the watch, it is closed, or an error occurs."""

    def __init__(self, response: urllib3.BaseHTTPResponse, path: str) -> None:
        self._response = response
        self._path = path
        self._is_closed = False

    def __iter__(self) -> Generator[dict[str, Any], None, None]:
        """Yield the event of each line. Raises UnreachableError if the connection breaks or is silent for too long.

        Closing the generator closes the connection. Drops an incomplete last line, because the next watch delivers the
        event again.
        """
        buffer = b""
        try:
            for chunk in self._response.stream(64 * 1024, decode_content=True):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield _parse_json(line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if not self._is_closed:
                raise UnreachableError(f"watch of {self._path} broke off: {_describe_cause(error)}") from None
        except ValueError as error:
            raise UnreachableError(f"watch of {self._path} sent something that is not JSON: {error}") from None
        finally:
            # Close the connection instead of releasing it, because the pool must not reuse one with an open watch.
            self._response.close()

    def close(self) -> None:
        """End the watch from another thread than the iterating one."""
        self._is_closed = True
        # Interrupt the blocking read. Ignore errors about a missing socket, after a read that has just ended.
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()


class Session:
    """Client of one API server. Thread-safe. Close it after use."""

    def __init__(self, configuration: client.Configuration) -> None:
        configuration.retries = urllib3.Retry(total=0, connect=0, read=False, redirect=0)
        configuration.keep_alive = True
        configuration.connection_pool_maxsize = 32
        self._client = client.ApiClient(configuration)
        configuration.connection_pool_maxsize = 16
        self._watch_client = client.ApiClient(configuration)
        self._certificates = access.Certificates(configuration)
        for api in (self._client, self._watch_client):
            self._certificates.configure_client(api)
        self.host: str = configuration.host
        self._clock_offset: datetime.timedelta | None = None

    def read_clock(self) -> datetime.datetime:
        """Return the time of the API server according to its newest response; without a response, the local time.

        OCM compares the validity of scores with the clocks of the hub's machines, which the API server shares.
        """
        if self._clock_offset is None:
            with contextlib.suppress(BackendError):
                self.get("/version")
        return datetime.datetime.now(datetime.UTC) + (self._clock_offset or datetime.timedelta())

    def _measure_clock(self, response: urllib3.BaseHTTPResponse) -> None:
        """Record the difference of the API server's clock by the header Date of a response."""
        with contextlib.suppress(TypeError, ValueError):
            date = email.utils.parsedate_to_datetime(response.headers.get("Date", ""))
            offset = date - datetime.datetime.now(datetime.UTC)
            self._clock_offset = offset if abs(offset) > _CLOCK_TOLERANCE else datetime.timedelta()

    def get_bearer_token(self) -> str:
        """Return the current bearer token for the API server; empty without a token."""
        text: Any = self._client.configuration.get_api_key_with_prefix("BearerToken") or ""
        return str(text).removeprefix("Bearer ").removeprefix("bearer ")

    def get_credentials(self) -> tuple[client.Configuration, access.Certificates]:
        """Return address and credentials, for connections outside of this class."""
        return self._client.configuration, self._certificates

    @classmethod
    def load(cls, kubeconfig: Path | None = None, context: str | None = None) -> Session:
        """Create a session with a kubeconfig, or with the pod's ServiceAccount if `kubeconfig` is None.

        `kubeconfig` may be several files, separated by colons. `context` is by default the current context. Raises
        SettingsError if no API server is configured.
        """
        configuration = client.Configuration()
        try:
            if kubeconfig is not None:
                access.load_kubeconfig(configuration, kubeconfig, context)
            else:
                access.load_pod_config(configuration)
        except config.ConfigException as error:
            raise SettingsError(
                f"no Kubernetes API server is configured: {str(error).rstrip('.')}. Set DSF_KUBECONFIG "
                "(or KUBECONFIG, for commands) to files that exist, or run in a pod"
            ) from None
        return cls(configuration)

    def close(self) -> None:
        """Close all idle connections. Open watches continue, and must be closed separately."""
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
        """Send a request, and return the parsed response.

        `timeout` contains the connect and the read timeout in seconds. Raises ObjectNotFoundError (404),
        ObjectConflictError (409), ForbiddenError (403), ExpiredError (410), ApiServerError (other error statuses) and
        UnreachableError.
        """
        response = self._send(self._client, method, path, query, body, content_type, timeout)
        with self._release_after_read(method, path, response):
            data = response.data
        return self._parse_response(method, path, response, data)

    def read(
        self, path: str, query: Mapping[str, str], *, max_bytes: int, deadline: float
    ) -> tuple[dict[str, Any], int]:
        """Fetch a large response by GET, and return the parsed response and its size in bytes.

        Raises TooLargeError beyond `max_bytes`, UnreachableError after `deadline` (time.monotonic()), and the errors of
        `request`.
        """
        remaining_seconds = max(deadline - time.monotonic(), 0.001)
        response = self._send(
            self._client, "GET", path, query, None, "", (min(_TIMEOUT[0], remaining_seconds), remaining_seconds)
        )
        data = bytearray()
        with self._release_after_read("GET", path, response):
            # Read available bytes without waiting for a full chunk, so that the deadline is also checked while a server
            # sends single bytes.
            while chunk := response.read1(64 * 1024, decode_content=True):
                data += chunk
                if len(data) > max_bytes:
                    raise TooLargeError(f"GET {path}: the response has more than the {max_bytes} bytes allowed")
                if time.monotonic() >= deadline:
                    raise UnreachableError(f"GET {path}: {shorten_url(self.host)} did not answer in time")
        return self._parse_response("GET", path, response, bytes(data)), len(data)

    def fetch(self, path: str, *, headers: Mapping[str, str], timeout: float) -> tuple[int, bytes]:
        """Fetch a response that is not an object of the API server, such as one through its service proxy, by GET.

        Return status and body. Raises the errors of `request` if the API server itself rejects the request.
        """
        response = self._send(self._client, "GET", path, None, None, "", (min(_TIMEOUT[0], timeout), timeout), headers)
        with self._release_after_read("GET", path, response):
            data = response.data
        if response.status >= 300 and _is_status(data):
            raise _make_api_error("GET", path, response, data)
        return response.status, data

    @contextlib.contextmanager
    def _release_after_read(self, method: str, path: str, response: urllib3.BaseHTTPResponse) -> Iterator[None]:
        """Release the connection of a response after the block; close it after an error.

        After an error, the next request on the same connection would read the rest of this response.
        """
        try:
            yield
        except BaseException as error:
            response.close()
            if isinstance(error, (urllib3.exceptions.HTTPError, OSError)):
                text = f"{method} {path}: the response of {shorten_url(self.host)} broke off: {_describe_cause(error)}"
                raise UnreachableError(text) from None
            raise
        finally:
            response.release_conn()

    def _parse_response(
        self, method: str, path: str, response: urllib3.BaseHTTPResponse, data: bytes
    ) -> dict[str, Any]:
        if response.status >= 300:
            raise _make_api_error(method, path, response, data)
        try:
            document = _parse_json(data) if data else {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            # A proxy in front of the API server has responded, or another server than an API server.
            raise ApiServerError(
                f"{method} {path}: {shorten_url(self.host)} answered something that is not a JSON object",
                response.status,
            )
        return document

    def watch(self, path: str, query: Mapping[str, str], *, read_timeout: float) -> Watch:
        """Open a watch. `read_timeout` is the maximum silence in seconds. Raises the errors of `request`."""
        # Open the watch with the shorter default timeout, because the server accepts a watch immediately.
        response = self._send(self._watch_client, "GET", path, query, None, "", _TIMEOUT)
        if response.status < 300:
            # Keep the default timeout if there is no socket, because a proxy closes the connection after the response.
            if (sock := getattr(response.connection, "sock", None)) is not None:
                sock.settimeout(read_timeout)
            return Watch(response, path)
        with self._release_after_read("GET", path, response):
            raise _make_api_error("GET", path, response, response.read(64 * 1024))

    def get(self, path: str) -> dict[str, Any]:
        """Fetch an object, or a list in one response. Raises the errors of `request`."""
        return self.request("GET", path)

    def create(
        self, path: str, body: object, *, timeout: tuple[float, float] = _TIMEOUT, field_manager: str = ""
    ) -> dict[str, Any]:
        """Create an object in a collection. Raises ObjectConflictError if an object of this name exists."""
        query = {"fieldManager": field_manager} if field_manager else None
        return self.request("POST", path, query=query, body=body, timeout=timeout)

    def replace(self, path: str, body: object) -> dict[str, Any]:
        """Replace an object. Raises ObjectConflictError if `body` has another resourceVersion than the object."""
        return self.request("PUT", path, body=body)

    def merge(self, path: str, body: object, *, field_manager: str = "") -> dict[str, Any]:
        """Send a JSON merge patch, which custom resources support, unlike a strategic merge patch."""
        query = {"fieldManager": field_manager} if field_manager else None
        return self.request("PATCH", path, query=query, body=body, content_type=_MERGE_PATCH)

    def replace_field(
        self, path: str, field: str, value: object, *, field_manager: str, tests: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Set the field at a JSON pointer to exactly this value, regardless of the field's manager.

        `tests` maps JSON pointers to required current values. Raises ApiServerError (422) if a value differs.
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
        """Set several fields in one request, like `replace_field`. `values` maps JSON pointers to values."""
        patch = [{"op": "test", "path": field, "value": value} for field, value in (tests or {}).items()]
        # Use `add`, which also replaces an existing value.
        patch += [{"op": "add", "path": field, "value": value} for field, value in values.items()]
        return self.request("PATCH", path, query={"fieldManager": field_manager}, body=patch, content_type=_JSON_PATCH)

    def apply(self, path: str, body: object, *, field_manager: str, force: bool = True) -> dict[str, Any]:
        """Send a server-side apply, which keeps the fields of other managers.

        Raises ObjectConflictError if `metadata.uid` is the uid of another object, and without `force` if another
        manager owns a field in `body`.
        """
        query = {"fieldManager": field_manager, "force": str(force).lower()}
        return self.request("PATCH", path, query=query, body=body, content_type=_APPLY_PATCH)

    def delete(
        self, path: str, *, uid: str | None = None, version: str | None = None, is_immediate: bool = False
    ) -> None:
        """Delete an object, if it still has the `uid` and the resourceVersion `version`.

        With `is_immediate`, removes a pod without waiting for its kubelet. Raises ObjectNotFoundError if the object
        does not exist, and ObjectConflictError if uid or version differ.
        """
        conditions = {"uid": uid, "resourceVersion": version}
        preconditions = {name: value for name, value in conditions.items() if value}
        body: dict[str, object] = {"preconditions": preconditions} if preconditions else {}
        if is_immediate:
            body["gracePeriodSeconds"] = 0
        self.request("DELETE", path, body=body or None)

    def _send(
        self,
        api: client.ApiClient,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        content_type: str,
        timeout: tuple[float, float],
        more_headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, and return the response without reading its body. Raises UnreachableError."""
        headers: dict[str, str] = {"Accept": "application/json", "User-Agent": "dynamic-scoring-framework"}
        headers |= more_headers or {}
        parameters: list[tuple[str, str]] = list((query or {}).items())
        payload: str | None = None
        if body is not None:
            headers["Content-Type"] = content_type
            payload = json.dumps(body, separators=(",", ":"))
        try:
            # Add the credentials. This also reads the pod's token again every minute, because Kubernetes rotates it.
            api.update_params_for_auth(headers, parameters, ["BearerToken"], path, method, payload)
        except (config.ConfigException, OSError) as error:
            raise UnreachableError(f"{method} {path}: cannot read the credentials: {error}") from None
        self._certificates.refresh()
        url = self.host + path + (f"?{urlencode(parameters)}" if parameters else "")
        try:
            # Use the pool instead of `call_api`, which encodes some content types a second time.
            response: urllib3.BaseHTTPResponse = api.rest_client.pool_manager.request(
                method,
                url,
                body=payload,
                headers=headers,
                timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ApiException) as error:
            raise UnreachableError(
                f"{method} {path}: cannot reach {shorten_url(self.host)}: {_describe_cause(error)}"
            ) from None
        self._measure_clock(response)
        return response


def _describe_cause(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {reason}"


def _is_status(data: bytes) -> bool:
    """True for an error document of the API server itself."""
    try:
        document = _parse_json(data)
    except ValueError:
        return False
    return isinstance(document, dict) and (document.get("kind"), document.get("apiVersion")) == ("Status", "v1")


def _make_api_error(method: str, path: str, response: urllib3.BaseHTTPResponse, data: bytes) -> BackendError:
    """Return the exception for an error response with the body `data`."""
    status = response.status
    try:
        document = _parse_json(data)
        message = str(document["message"])
        details = (document.get("details") or {}).get("causes") or ()
        causes = {cause.get("reason") for cause in details}
        fields = {cause.get("field") for cause in details}
    except (ValueError, KeyError, TypeError, AttributeError):
        message, causes, fields = data[:200].decode("utf-8", "replace"), set(), set()
    text = f"{method} {path}: {status}: {message}"
    if status == 404 or (status == 403 and "NamespaceTerminating" in causes):
        # Treat a terminating namespace, which accepts no objects, as missing. The account does not lack a permission.
        return ObjectNotFoundError(text)
    if status == 409 or (status == 422 and "metadata.uid" in fields):
        # For custom resources, the API server reports an `apply` with another object's uid as an invalid change.
        return ObjectConflictError(text)
    if status == 401:
        return ApiServerError(f"{text}: the token or certificate is not valid (any more)", status)
    if status == 403:
        return ForbiddenError(text, status)
    if status == 410:
        return ExpiredError(text, status)
    retry_after = response.headers.get("Retry-After", "")
    return ApiServerError(text, status, float(retry_after) if retry_after.isdecimal() else None)


def _parse_json(data: bytes) -> Any:
    """Parse JSON, with null in place of values that are nested too deeply. Raises ValueError.

    A deeply nested object must not make a whole list unreadable.
    """
    try:
        return json.loads(data)
    except RecursionError:
        output, depth, start = bytearray(), 0, 0
        for token in _BRACKETS_AND_STRINGS_PATTERN.finditer(data):
            if token[0] in (b"[", b"{"):
                depth += 1
                if depth == _MAX_DEPTH + 1:
                    output += data[start : token.start()] + b"null"
            elif token[0] in (b"]", b"}"):
                if depth == _MAX_DEPTH + 1:
                    start = token.end()
                depth -= 1
        return json.loads(output + data[start:])
