"""Connections of an agent to Redis through the hub's API server, for hubs that expose nothing else.

OCM's registration gives every add-on a kubeconfig for the hub. With this kubeconfig the relay requests
`pods/portforward` on the Redis pod from the hub's API server: one WebSocket for each TCP connection that this process
opens to a loopback port. The connection inside of the WebSocket uses TLS and the cluster's own Redis user, so the API
server sees only ciphertext.

The protocol is Kubernetes' `v4.channel.k8s.io`: binary messages whose first byte is a channel. Channel 0 carries the
bytes, channel 1 an error of the kubelet as text; the first message of each repeats the port in two bytes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import websocket

import dsf.log
from dsf.errors import RelayError, SettingsError
from dsf.kube import access
from dsf.process.threads import SupervisedThread, run_in_background
from dsf.settings import Settings
from dsf.text import clean

log = dsf.log.get(__name__)

#: Seconds to connect to the API server and to upgrade the connection; afterwards a read may wait for ever.
_CONNECT_TIMEOUT_SECONDS: Final = 10.0
#: Seconds between pings: below the idle limit of common load balancers in front of API servers (60 s and more).
_PING_INTERVAL_SECONDS: Final = 25.0
#: Bytes that are read at once from Redis' client; with the channel's byte they are one WebSocket message.
_CHUNK_BYTES: Final = 64 * 1024
#: Maximum characters of an error text of another server.
_MAX_TEXT: Final = 300
_DATA, _ERROR = 0, 1
_PROTOCOL: Final = "v4.channel.k8s.io"


class HubRelay:
    """Listens on a loopback port and forwards each connection to the Redis pod. Thread-safe."""

    def __init__(self, settings: Settings, host: str, port: int) -> None:
        """Listen on `host` and `port`, where the process's Redis clients connect.

        Raises SettingsError if a setting is missing or wrong, or if the port is taken.
        """
        if settings.hub_kubeconfig is None:
            raise SettingsError(
                "DSF_HUB_KUBECONFIG: not set; with DSF_REDIS_POD it is the kubeconfig that OCM's registration gives to "
                "the add-on"
            )
        self._kubeconfig = settings.hub_kubeconfig
        self._namespace, self._pod, self._port = _parse_pod(settings.redis_pod)
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise SettingsError(
                f"DSF_REDIS_URL: with DSF_REDIS_POD its host must be this machine's own, and {host}:{port} cannot be "
                f"listened on: {error.strerror or error}. In a pod, hostAliases give the name the address 127.0.0.1"
            ) from None
        self._problem = ""
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._tunnels: set[Tunnel] = set()
        self._threads = [
            SupervisedThread(self._accept, "relay-accept"),
            SupervisedThread(self._ping_forever, "relay-ping"),
        ]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the relay listens on."""
        host, port, *_ = self._listener.getsockname()
        return host, port

    def start(self) -> None:
        """Start the thread that accepts connections of Redis clients."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Close all connections and the port."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            # Wakes accept().
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            tunnels = list(self._tunnels)
        for tunnel in tunnels:
            tunnel.close()
        for thread in self._threads:
            thread.join(2.0)

    def find_problem(self) -> str:
        """Return why the last connection failed, with the remedy; empty if it was established."""
        return self._problem

    def check_kubeconfig(self) -> None:
        """Raise RelayError if the kubeconfig for the hub is missing or unusable."""
        self._read_credentials()

    def open_websocket(self) -> websocket.WebSocket:
        """Open a connection to the pod through the API server. Raises RelayError.

        Reads the kubeconfig each time, because OCM renews the client certificate in the file.
        """
        configuration, certificates = self._read_credentials()
        try:
            return open_portforward(configuration, certificates, self._namespace, self._pod, self._port)
        except (OSError, ValueError, websocket.WebSocketException) as error:
            raise RelayError(self._explain(error, configuration.host)) from None

    def _read_credentials(self) -> tuple[Any, access.Certificates]:
        if not self._kubeconfig.is_file():
            raise RelayError(
                f"there is no kubeconfig for the hub at {self._kubeconfig} yet: OCM's registration agent creates the "
                "Secret dynamic-scoring-framework-hub-kubeconfig once the add-on is registered; see "
                "`kubectl get managedclusteraddon dynamic-scoring-framework -n CLUSTER -o yaml` on the hub"
            )
        try:
            return access.load_current_context(self._kubeconfig)
        except SettingsError as error:
            reason = clean(str(error), _MAX_TEXT)
            raise RelayError(
                f"the kubeconfig for the hub cannot be used: {reason}; "
                "if it persists, delete the Secret dynamic-scoring-framework-hub-kubeconfig, and OCM creates it anew"
            ) from None

    def _explain(self, error: Exception, server: str) -> str:
        pod = f"{self._namespace}/{self._pod}"
        if isinstance(error, websocket.WebSocketBadStatusException):
            text = describe_status(error)
            match error.status_code:
                case 401:
                    return (
                        f"the hub's API server does not accept the add-on's client certificate ({text}): it may have "
                        "expired; OCM's registration agent renews it"
                    )
                case 403:
                    return (
                        f"the hub's API server forbids port-forwards to the Redis pod {pod} ({text}): the hub's chart "
                        "creates the Role dynamic-scoring-redis-portforward with redis.exposure.type HubAPI"
                    )
                case 404:
                    return f"the hub has no Redis pod {pod} ({text}): does it run, and is DSF_REDIS_POD right?"
                case 407:
                    return f"a proxy in front of the hub's API server {server} wants a login ({text})"
                case status if 300 <= status < 400 or status == 200:
                    return f"something in front of the hub's API server {server} does not pass on WebSockets ({text})"
            return f"the hub's API server {server} cannot connect to the Redis pod {pod} ({text}): is the pod running?"
        if "Redirect limit" in str(error):
            return f"something in front of the hub's API server {server} does not pass on WebSockets: it redirects"
        if isinstance(error, websocket.WebSocketProxyException):
            reason = clean(str(error), _MAX_TEXT)
            return f"the proxy in front of the hub's API server {server} refuses the connection: {reason}"
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            reason = error.strerror or str(error)
            return f"the hub's API server {server} cannot be reached from this cluster: {clean(reason, _MAX_TEXT)}"
        return (
            f"the hub's API server {server} did not answer as one within {_CONNECT_TIMEOUT_SECONDS:.0f} s: "
            f"{clean(str(error), _MAX_TEXT) or type(error).__name__}; does a proxy or firewall stand in between?"
        )

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._stopping.is_set():
                    return
                raise
            run_in_background(lambda client=client: self._forward(client), "relay-connect")  # type: ignore[misc]

    def _forward(self, client: socket.socket) -> None:
        """Connect one client, and wait until its connection has ended."""
        try:
            tunnel = Tunnel(client, self.open_websocket())
        except RelayError as error:
            client.close()
            self._report(str(error))
            return
        with self._lock:
            self._tunnels.add(tunnel)
        try:
            failure = "" if self._stopping.is_set() else tunnel.run(self._report)
        finally:
            tunnel.close()
            with self._lock:
                self._tunnels.discard(tunnel)
        if failure:
            self._report(
                f"the hub cannot connect to port {self._port} of its Redis pod {self._namespace}/{self._pod}: {failure}"
            )

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            if problem:
                log.warning("no connection to the hub's Redis", problem=problem)
            else:
                log.info("connected to the hub's Redis through its API server", pod=f"{self._namespace}/{self._pod}")

    def _ping_forever(self) -> None:
        while not self._stopping.wait(_PING_INTERVAL_SECONDS):
            with self._lock:
                tunnels = list(self._tunnels)
            for tunnel in tunnels:
                tunnel.ping()


def open_portforward(
    configuration: Any, certificates: access.Certificates, namespace: str, pod: str, port: int
) -> websocket.WebSocket:
    """Open a connection to a port of a pod through an API server.

    Raises OSError, ValueError and websocket.WebSocketException.
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
    url = "ws" + configuration.host.removeprefix("http").rstrip("/") + path
    headers = configuration.auth_settings().get("BearerToken", {})
    options: dict[str, Any] = {}
    if configuration.proxy:
        options = _make_proxy_options(configuration.proxy)
    elif configuration.no_proxy:
        options = {"http_no_proxy": str(configuration.no_proxy).split(",")}
    connection = websocket.WebSocket(sslopt={"context": certificates.context}, enable_multithread=True)
    connection.settimeout(_CONNECT_TIMEOUT_SECONDS)
    connection.connect(  # type: ignore[no-untyped-call]
        url,
        header={"Authorization": headers["value"]} if headers.get("value") else {},
        subprotocols=[_PROTOCOL],
        suppress_origin=True,
        redirect_limit=0,
        **options,
    )
    connection.settimeout(None)
    return connection


class Tunnel:
    """Carries a TCP connection over a WebSocket, with a thread for each direction."""

    def __init__(self, client: socket.socket, connection: websocket.WebSocket) -> None:
        self._client = client
        self._connection = connection

    def run(self, report: Any) -> str:
        """Copy until either end closes. Returns the kubelet's error, empty without one.

        Calls `report("")` when the first byte of Redis arrives.
        """
        sender = run_in_background(self._send, "relay-send")
        kubelet_error, has_data = "", False
        with contextlib.suppress(OSError, websocket.WebSocketException):
            for channel, data in self._iterate_messages():
                if channel == _ERROR:
                    kubelet_error = clean(data.decode(errors="replace"), _MAX_TEXT)
                    break
                if not has_data:
                    has_data = True
                    report("")
                self._client.sendall(data)
        self.close()
        sender.join()
        return kubelet_error

    def _iterate_messages(self) -> Iterator[tuple[int, bytes]]:
        announced_channels: set[int] = set()
        while data := self._connection.recv():
            message = data if isinstance(data, bytes) else data.encode()
            channel, content = message[0], message[1:]
            if channel not in announced_channels:
                # The first message of each channel contains the port in two bytes.
                announced_channels.add(channel)
            elif content:
                yield channel, content

    def _send(self) -> None:
        with contextlib.suppress(OSError, websocket.WebSocketException):
            while data := self._client.recv(_CHUNK_BYTES):
                self._connection.send_binary(bytes((_DATA,)) + data)
        self.close()

    def ping(self) -> None:
        """Keep the connection alive in load balancers; a failure closes it."""
        try:
            self._connection.ping()
        except (OSError, websocket.WebSocketException):
            self.close()

    def close(self) -> None:
        """Close both ends, which wakes both threads."""
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
        self._client.close()
        with contextlib.suppress(OSError, websocket.WebSocketException):
            self._connection.abort()  # type: ignore[no-untyped-call]
            self._connection.shutdown()  # type: ignore[no-untyped-call]


def _parse_pod(text: str) -> tuple[str, str, int]:
    """Return namespace, name and port of `namespace/pod:port`. Raises SettingsError."""
    namespace, slash, pod_and_port = text.partition("/")
    pod, _, port = pod_and_port.partition(":")
    if not (namespace and slash and pod and port.isdecimal()):
        raise SettingsError(
            f"DSF_REDIS_POD: {text!r} is not NAMESPACE/POD:PORT, such as "
            "open-cluster-management/dynamic-scoring-redis-0:6379"
        )
    return namespace, pod, int(port)


def _make_proxy_options(proxy: str) -> dict[str, Any]:
    parts = urlsplit(proxy)
    options: dict[str, Any] = {"http_proxy_host": parts.hostname, "http_proxy_port": parts.port or 3128}
    options["proxy_type"] = parts.scheme or "http"
    if parts.username:
        options["http_proxy_auth"] = (parts.username, parts.password or "")
    return options


def describe_status(error: websocket.WebSocketBadStatusException) -> str:
    """Return the error text of the API server, at most 300 characters, or the HTTP status."""
    with contextlib.suppress(ValueError, AttributeError):
        message = json.loads(error.resp_body or b"").get("message")
        if isinstance(message, str) and message:
            return clean(message, _MAX_TEXT)
    return f"HTTP {error.status_code}"
