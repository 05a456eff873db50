"""Runs the page, the JSON API and the metrics of the fleet as a service."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final

import dsf.log
from dsf.errors import SettingsError
from dsf.http.front import RequestMiddleware
from dsf.http.hosts import is_loopback
from dsf.http.serving import HttpServer
from dsf.process import hubclock
from dsf.process.clienttoken import TokenFile
from dsf.process.hubclock import HubClock
from dsf.settings import Settings
from dsf.store.client import connect
from dsf.store.clocks import ClockReports
from dsf.web.access import PageUser, UserAccess, allow_everyone, allow_operators, trust_proxy
from dsf.web.actions import ActionRunner
from dsf.web.app import describe_unreadiness, make_app
from dsf.web.objects import ScorerReader, read_from_folder, read_nothing
from dsf.web.pagedata import PageDataReader
from dsf.web.pages import Sources

if TYPE_CHECKING:
    from dsf.kube.session import Session

log = dsf.log.get(__name__)

#: Maximum seconds to wait for Redis, because a user waits for the page. A scrape also has to report within its timeout
#: that Redis is down.
_MAX_REDIS_TIMEOUT: Final = 5.0
#: Seconds to finish open requests when the service stops.
_SHUTDOWN_SECONDS: Final = 2


class WebService:
    """Serves the page, the JSON API and the metrics of the fleet on one port, from one snapshot of rows."""

    name = "web"

    def __init__(self, settings: Settings) -> None:
        """Build the application. Raises SettingsError for invalid settings."""
        self._settings = settings
        timeout = min(settings.redis_socket_timeout, _MAX_REDIS_TIMEOUT)
        redis_settings = settings.model_copy(update={"redis_socket_timeout": timeout})
        self._redis = connect(redis_settings, name="dsf-web", retries=0)
        self._clock = HubClock(self._redis, on_measured=ClockReports(self._redis, settings).report)
        session = _open_session(settings)
        sources = Sources(PageDataReader(self._redis), _make_scorer_reader(settings, session), session, settings)
        self._action_runner = ActionRunner(sources)
        app = make_app(sources, _make_access(settings, session), self._action_runner)
        address = settings.listen_address()
        self._server = HttpServer(RequestMiddleware(app), *address, name="web", shutdown_seconds=_SHUTDOWN_SECONDS)

    def start(self) -> None:
        """Start to listen. Raises SettingsError if the address is unavailable."""
        hubclock.use(self._clock)
        self._clock.start()
        self._server.start()
        host, port = self._server.address
        log.info("page listens", host=host, port=port, auth=self._settings.web_auth)

    def stop(self) -> None:
        """Finish open requests and release the port."""
        self._server.stop()
        self._action_runner.stop()
        self._clock.stop()
        self._redis.close()

    def find_problem(self) -> str:
        """Return why the service cannot continue; empty if it can.

        An unreachable Redis is not a problem of the service, because the pages report it.
        """
        return self._server.find_problem()

    def find_unreadiness(self) -> str:
        """Return why clients would not see the current state of the fleet; empty if they would."""
        return describe_unreadiness(self._redis)


def _make_scorer_reader(settings: Settings, session: Session | None) -> ScorerReader:
    if settings.backend == "dir":
        return functools.partial(read_from_folder, settings.out) if settings.out is not None else read_nothing
    if session is None:
        return read_nothing
    from dsf.web.kube import make_scorer_reader

    return make_scorer_reader(session, [settings.namespace, *settings.scorer_namespaces])


def _open_session(settings: Settings) -> Session | None:
    """Return a session with the hub's API server; None if it is not needed or not configured.

    Raises SettingsError for invalid settings.
    """
    if settings.web_auth == "proxy" and not settings.web_trusted_proxies:
        raise SettingsError("DSF_WEB_AUTH is proxy, so DSF_WEB_TRUSTED_PROXIES must list the trusted proxies")
    needs_api_server = settings.web_auth == "kubernetes" or (
        settings.web_auth == "proxy" and not settings.web_operators
    )
    has_api_server = settings.kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in os.environ
    if not needs_api_server and (settings.backend == "dir" or not has_api_server):
        return None
    # Import the Kubernetes client here, because it takes 40 MB that a page without an API server saves.
    from dsf.kube.session import Session

    return Session.load(settings.kubeconfig)


def _make_access(settings: Settings, session: Session | None) -> UserAccess:
    """Return the access control that DSF_WEB_AUTH selects.

    Raises SettingsError if the token's file is not named, or if a mode for this machine only listens on other
    addresses.
    """
    mode = settings.web_auth
    if mode in ("none", "local", "open", "anyone"):
        host, _ = settings.listen_address()
        if mode in ("none", "local") and not is_loopback(host):
            raise SettingsError(
                f"DSF_WEB_AUTH is {mode} and DSF_LISTEN_HOST is {host}: use 127.0.0.1, or auth open (read "
                f"access for every client), anyone (it may act, too), token, kubernetes or proxy"
            )
        return allow_everyone(acting=mode in ("local", "anyone"))
    if mode == "token":
        if settings.client_token_file is None:
            raise SettingsError("DSF_WEB_AUTH is token, so DSF_CLIENT_TOKEN_FILE has to name the token's file")
        token_file = TokenFile(settings.client_token_file)
        # Raises SettingsError now rather than at the first login.
        token_file.read()

        def identify_holder(token: str, client: str) -> PageUser:
            token_file.check(token, client)
            return PageUser("token")

        return UserAccess(lambda *_: True, login=identify_holder)
    # A list of operators replaces the API server's rights. The session is then used to read objects only.
    if session is None or (mode == "proxy" and settings.web_operators):
        return trust_proxy(allow_operators(settings.web_operators))
    from dsf.web.kube import KubeAccess

    kube_access = KubeAccess(session, settings.namespace)
    if mode == "proxy":
        return trust_proxy(kube_access.allows)
    return UserAccess(kube_access.allows, login=kube_access.identify_holder)
