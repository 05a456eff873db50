"""Client of the hub in a context of kubectl's kubeconfig.

Reads are requests to the JSON API of the hub's web server (`dsf web`), through the API server's service proxy. They
carry a short-lived token of the chart's ServiceAccount `dynamic-scoring-viewer`, which may only get DynamicScorers. If
the proxy is forbidden or does not reach the web server, a port-forward to one of its pods replaces the proxy.

An act is a change that a user requests for a scorer, such as a rescore or a pause. It is requested by an annotation of
the DynamicScorer (`dsf.api.acts`), and the hub responds in the object's status.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import websocket

from dsf.agent.relay import Tunnel, describe_status, open_portforward
from dsf.api.acts import Act, ActResponse, find_requests, get_annotation
from dsf.cli import context
from dsf.cli.context import KubeChoice
from dsf.cli.output import Cell, Format, Renderable, emit, flatten, make_table, stack_parts
from dsf.errors import ApiError, BackendError, ObjectNotFoundError, SettingsError, UnknownScorerError
from dsf.fleet.client import Client
from dsf.http.access import Access
from dsf.http.client import Response, probe
from dsf.http.hosts import PROXIED_AUTHORIZATION
from dsf.kube.resources import DYNAMIC_SCORERS, PODS, SERVICE_ACCOUNTS, SERVICES, Resource
from dsf.kube.session import ForbiddenError, Session
from dsf.process.threads import run_in_background

#: Service of the web server.
_SERVICE: Final = "dynamic-scoring-hub"
#: The Service with the name of its port, as in the path of the proxy. The chart's role allows `get services/proxy` on
#: this name.
_SERVICE_PORT: Final = f"{_SERVICE}:http"
#: ServiceAccount of the chart, whose token the web server accepts.
VIEWER: Final = "dynamic-scoring-viewer"
#: Validity of the viewer's token in seconds: the minimum that the API server grants.
_TOKEN_SECONDS: Final = 600
#: Timeout in seconds of requests through the proxy, whose packets to the web server a NetworkPolicy may drop.
_PROXY_TIMEOUT_SECONDS: Final = 5.0
#: HTTP statuses with which the web server rejects the viewer's token. A web server without a login responds with 421,
#: because it accepts only its own host names, and the proxy passes on another one.
_TOKEN_REJECTION_STATUSES: Final = frozenset({401, 403, 421})
#: HTTP statuses with which the API server reports that its proxy does not reach the web server.
_PROXY_FAILURE_STATUSES: Final = frozenset({500, 502, 503, 504})
#: Review with which the API server reports the user's own name.
_SELF_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False)
#: Seconds between two reads of a DynamicScorer while a command waits for the hub's response to an act.
_POLL_SECONDS: Final = 0.3
#: Port of the web server in its pods.
_WEB_PORT: Final = 8080
#: Maximum size of a response of the web server in bytes.
_MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
#: Maximum seconds that a command waits for the hub's response to an act.
RESPONSE_SECONDS: Final = 30


class KubeHub:
    """Reads the JSON API of a hub, and requests acts by annotations of DynamicScorers."""

    def __init__(self, choice: KubeChoice, hub_namespace: str) -> None:
        """Open a session with the API server. Raises SettingsError if the kubeconfig cannot be used."""
        kubeconfig = choice.kubeconfig or context.find_default_kubeconfig()
        if kubeconfig is None:
            raise SettingsError("no kubeconfig: set KUBECONFIG, or give --kubeconfig FILE")
        self._session = Session.load(kubeconfig, choice.context)
        self._namespace = hub_namespace
        self._scorer_namespace = choice.namespace
        #: The viewer's token and the time of its creation (time.monotonic()).
        self._token = ("", 0.0)
        #: Port-forward that replaces the proxy once the proxy has failed; None before.
        self._pod_forward: _PodForward | None = None

    def close(self) -> None:
        """Close all connections."""
        if self._pod_forward is not None:
            self._pod_forward.close()
        self._session.close()

    def make_client(self) -> Client:
        """Return a client of the JSON API."""
        return Client(self._session.host, fetch=self._fetch)

    def _fetch(self, url: str, timeout: float) -> Response:
        """Fetch a URL of the JSON API. Raises ApiError if the web server rejects the token or cannot be reached."""
        path = url.removeprefix(self._session.host.rstrip("/"))
        response = self._fetch_path(path, {PROXIED_AUTHORIZATION: f"Bearer {self._fetch_viewer_token()}"}, timeout)
        if response.status in _TOKEN_REJECTION_STATUSES:
            raise ApiError(
                f"the web server of the hub in namespace {self._namespace} does not accept a token of the "
                f"ServiceAccount {VIEWER} ({response.status}): it needs this version and web.auth kubernetes; with "
                "another login, set DSF_API_URL"
            )
        return response

    def _fetch_path(self, path: str, headers: Mapping[str, str], timeout: float) -> Response:
        """Fetch a path of the web server through the proxy, or through a port-forward once the proxy has failed."""
        if self._pod_forward is None:
            proxy = f"/api/v1/namespaces/{self._namespace}/services/{_SERVICE_PORT}/proxy"
            try:
                return Response(
                    *self._session.fetch(proxy + path, headers=headers, timeout=min(timeout, _PROXY_TIMEOUT_SECONDS))
                )
            except BackendError as error:
                # The API server also responds with 404 if the Service exists and its Endpoints object does not
                # (`endpoints "dynamic-scoring-hub" not found`). A port-forward to a pod may then still work.
                if (
                    not isinstance(error, (ForbiddenError, ObjectNotFoundError))
                    and getattr(error, "status", 503) not in _PROXY_FAILURE_STATUSES
                ):
                    raise ApiError(_shorten_error(error)) from None
                self._pod_forward = self._open_pod_forward(error)
        return probe(
            f"http://127.0.0.1:{self._pod_forward.port}{path}",
            deadline=time.monotonic() + timeout,
            max_bytes=_MAX_RESPONSE_BYTES,
            access=Access(headers=tuple(headers.items()), is_direct=True),
        )

    def _fetch_viewer_token(self) -> str:
        """Return a token of the viewer.

        Requests a new token when half of the validity has passed, because `--watch` may run longer than one validity.
        """
        token, created_at = self._token
        if token and time.monotonic() - created_at < _TOKEN_SECONDS / 2:
            return token
        path = SERVICE_ACCOUNTS.path(self._namespace, VIEWER, "token")
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_SECONDS},
        }
        try:
            with _translate_errors("to read, ask for the ClusterRole dynamic-scoring-framework-viewer"):
                token = str(self._session.create(path, body)["status"]["token"])
        except ObjectNotFoundError as error:
            raise ApiError(self._describe_missing_hub(error)) from None
        self._token = token, time.monotonic()
        return token

    def _describe_missing_hub(self, error: Exception) -> str:
        return (
            f"{_shorten_error(error)}: is the hub in namespace {self._namespace}, and its chart of this version? "
            "DSF_NAMESPACE names the namespace"
        )

    def _open_pod_forward(self, proxy_error: BackendError) -> _PodForward:
        """Open a port-forward to a running pod of the web server.

        Raises ApiError, which also reports the proxy's error.
        """
        try:
            try:
                service = self._session.get(SERVICES.path(self._namespace, _SERVICE))
            except ObjectNotFoundError as error:
                raise ApiError(self._describe_missing_hub(error)) from None
            selector = ",".join(f"{name}={value}" for name, value in service["spec"]["selector"].items())
            pods = self._session.request("GET", PODS.path(self._namespace), query={"labelSelector": selector})["items"]
            pod_names = [pod["metadata"]["name"] for pod in pods if pod.get("status", {}).get("phase") == "Running"]
            if not pod_names:
                raise ApiError(
                    f"no pod of Service {_SERVICE} runs in namespace {self._namespace}; kubectl -n {self._namespace} "
                    "get pods may show why"
                )
            forward = _PodForward(self._session, self._namespace, pod_names[0], _WEB_PORT)
        except (BackendError, ApiError) as error:
            message = f"{_shorten_error(proxy_error)}; and a port-forward in its place: {_shorten_error(error)}"
            if isinstance(proxy_error, ForbiddenError) or isinstance(error, ForbiddenError):
                message += ": to read, ask for the ClusterRole dynamic-scoring-framework-viewer"
            raise ApiError(message) from None
        return forward

    def read_time(self) -> float:
        """Return the API server's time in unix seconds."""
        return self._session.read_clock().timestamp()

    def request_act(
        self,
        scorer: str,
        act: Act,
        value: str,
        *,
        author: str | None,
        timeout: float,
        is_enough: Callable[[ActResponse], bool] = lambda response: response.outcome != "Running",
    ) -> ActResponse:
        """Request an act, and return the first response of the hub for which `is_enough` is True.

        After `timeout` seconds, return the newest response. Raises UnknownScorerError, and ApiError if the act is
        forbidden or the hub does not respond.
        """
        namespace = self._find_namespace(scorer)
        path = DYNAMIC_SCORERS.path(namespace, scorer)
        body = {"metadata": {"annotations": {get_annotation(act): value}}}
        with _translate_errors("to act, ask for the ClusterRole dynamic-scoring-framework-editor"):
            manifest = self._session.merge(path, body, field_manager=f"dsf/{author or self._find_user_name()}"[:128])
        deadline = time.monotonic() + timeout
        while True:
            response = _find_response(manifest, act, value)
            if response is not None and is_enough(response):
                return response
            if find_requests(manifest["metadata"].get("annotations") or {}).get(act) != value:
                raise ApiError(
                    f"somebody else has requested another {act} of {scorer} meanwhile; `dsf changes` says who"
                )
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
            with _translate_errors("to see the hub's answer, ask for the ClusterRole dynamic-scoring-framework-viewer"):
                manifest = self._session.get(path)
        if response is None:
            raise ApiError(
                f"{act} of {scorer} is requested, and the hub has not answered within {timeout:.0f} s: does its "
                "controller run, and are its CRDs of this version? It will execute the act when it runs"
            )
        return response

    def _find_namespace(self, scorer: str) -> str:
        """Return the namespace of a DynamicScorer.

        With -n, this is the namespace of -n. Without -n, it is the hub's namespace if the scorer is there, else the
        only namespace with this scorer, if the user may list DynamicScorers in all namespaces. Raises
        UnknownScorerError if no or several namespaces have the scorer, and ApiError if reading it is forbidden.
        """
        namespace = self._scorer_namespace or self._namespace
        with _translate_errors(
            "to act, ask for the ClusterRole dynamic-scoring-framework-editor, or name its namespace by -n"
        ):
            try:
                self._session.get(DYNAMIC_SCORERS.path(namespace, scorer))
                return namespace
            except ObjectNotFoundError:
                pass
        if self._scorer_namespace is None:
            with contextlib.suppress(ForbiddenError):
                query = {"fieldSelector": f"metadata.name={scorer}"}
                scorers = self._session.request("GET", DYNAMIC_SCORERS.path(), query=query)["items"]
                if len(scorers) == 1:
                    return str(scorers[0]["metadata"]["namespace"])
                if scorers:
                    names = ", ".join(sorted(item["metadata"]["namespace"] for item in scorers))
                    raise UnknownScorerError(
                        f"several namespaces have a DynamicScorer {scorer!r}: {names}; choose by -n"
                    )
        raise UnknownScorerError(f"no DynamicScorer {scorer!r} in namespace {namespace}; -n names another namespace")

    def _find_user_name(self) -> str:
        """Return the author for the list of changes: the API server's user name, or the local one if it is unknown."""
        from dsf.cli.localuser import get_local_user

        with contextlib.suppress(BackendError, KeyError, TypeError):
            body = {"apiVersion": _SELF_REVIEWS.api_version, "kind": _SELF_REVIEWS.kind}
            return str(self._session.create(_SELF_REVIEWS.path(), body)["status"]["userInfo"]["username"])
        return get_local_user()


def print_response(scorer: str, response: ActResponse, output: Format) -> None:
    """Print the hub's response to an act, with the cycles that a rescore requested."""

    def render() -> Renderable:
        line = flatten(f"{scorer}: {response.outcome}: {response.message}")
        if not response.runs:
            return line
        rows: list[list[Cell]] = []
        for cycle in response.runs:
            cause = f"{cycle.reason}: {cycle.message}" if cycle.reason else cycle.message
            outcome = cycle.outcome or ("running" if cycle.run else "not sent")
            rows.append([cycle.cluster, cycle.run or "-", (outcome, "green" if cycle.has_score else "red"), cause])
        return stack_parts(make_table(("CLUSTER", "RUN", "OUTCOME", "REASON"), rows), "", line)

    emit(response, output, render)


class _PodForward:
    """Listens on a loopback port, and forwards each connection to a port of a pod."""

    def __init__(self, session: Session, namespace: str, pod: str, port: int) -> None:
        """Test the connection to the pod, and listen. Raises ApiError if the connection fails."""
        self._target = (*session.get_credentials(), namespace, pod, port)
        self._connect().shutdown()  # type: ignore[no-untyped-call]
        self._listener = socket.create_server(("127.0.0.1", 0))
        run_in_background(self._accept, "forward-accept")

    @property
    def port(self) -> int:
        """Local port of the listener."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop accepting connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _connect(self) -> websocket.WebSocket:
        try:
            return open_portforward(*self._target)
        except websocket.WebSocketBadStatusException as error:
            raise ApiError(describe_status(error)) from None
        except (OSError, ValueError, websocket.WebSocketException) as error:
            raise ApiError(f"{type(error).__name__}: {error}") from None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                run_in_background(lambda client=client: self._forward_connection(client), "forward")  # type: ignore[misc]

    def _forward_connection(self, client: socket.socket) -> None:
        with contextlib.closing(client), contextlib.suppress(ApiError):
            Tunnel(client, self._connect()).run(lambda _: None)


def _find_response(manifest: dict[str, Any], act: Act, value: str) -> ActResponse | None:
    """Return the hub's response to this request in the status of a DynamicScorer, or None."""
    for item in (manifest.get("status") or {}).get("acts") or ():
        if (item.get("act"), item.get("request")) == (act, value):
            return ActResponse.model_validate(item, by_alias=True)
    return None


def _shorten_error(error: Exception) -> str:
    """Return the text of an error in one line; for the statuses 403 and 404, only the API server's message.

    The omitted parts are the request's method and path and the status.
    """
    text = " ".join(str(error).split())
    return next((text.partition(mark)[2] for mark in (": 403: ", ": 404: ") if mark in text), text)


@contextlib.contextmanager
def _translate_errors(remedy: str) -> Any:
    """Replace errors of the API server in the block by ApiError, except for ObjectNotFoundError, which callers handle.

    `remedy` tells users how to get a missing right. It follows the API server's message.
    """
    try:
        yield
    except ForbiddenError as error:
        raise ApiError(f"{_shorten_error(error)}: {remedy}") from None
    except ObjectNotFoundError:
        raise
    except BackendError as error:
        raise ApiError(_shorten_error(error)) from None
