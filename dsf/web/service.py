"""The page, the JSON API and the fleet's metrics as a service."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import dsf.log
from dsf.errors import SettingsError
from dsf.http.front import Front
from dsf.http.hosts import is_loopback
from dsf.http.serving import HttpServer
from dsf.process import hubclock
from dsf.process.clienttoken import TokenFile
from dsf.process.hubclock import HubClock
from dsf.settings import Settings
from dsf.store.client import connect
from dsf.store.clocks import ClockReports
from dsf.web.access import PageUser, UserAccess, behind_proxy, listed, without_users
from dsf.web.actions import ActionRunner
from dsf.web.app import make_app, unready
from dsf.web.objects import ScorerReader, read_from_folder, read_nothing
from dsf.web.pagedata import Reading
from dsf.web.pages import Sources

if TYPE_CHECKING:
    from dsf.kube.session import Session

log = dsf.log.get(__name__)


class WebService:
    """The page, the JSON API and the metrics of the fleet, on one port, from one snapshot of rows."""

    name = "web"

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for invalid settings."""
        self._settings = settings
        # A user is waiting; and a scrape reports Redis as down instead of timing out.
        quick = settings.model_copy(update={"redis_socket_timeout": min(settings.redis_socket_timeout, 5.0)})
        self._redis = connect(quick, name="dsf-web", retries=0)
        self._clock = HubClock(self._redis, on_measured=ClockReports(self._redis, settings).report)
        session = _session(settings)
        sources = Sources(Reading(self._redis), _scorer_reader(settings, session), session, settings)
        self._acting = ActionRunner(sources)
        app = make_app(sources, _access(settings, session), self._acting)
        self._server = HttpServer(Front(app), *settings.listen_address(), name="web", shutdown_seconds=2)

    def start(self) -> None:
        """Listen. Raises SettingsError for an unavailable address."""
        hubclock.use(self._clock)
        self._clock.start()
        self._server.start()
        host, port = self._server.address
        log.info("page listens", host=host, port=port, auth=self._settings.web_auth)

    def stop(self) -> None:
        """Finish open requests and release the port."""
        self._server.stop()
        self._acting.stop()
        self._clock.stop()
        self._redis.close()

    def problem(self) -> str:
        """See `Service`. An unreachable Redis is none: pages say so."""
        return self._server.problem()

    def unready(self) -> str:
        """Why clients would not see the fleet as it is; empty if they do."""
        return unready(self._redis)


def _scorer_reader(settings: Settings, session: Session | None) -> ScorerReader:
    if settings.backend == "dir":
        return functools.partial(read_from_folder, settings.out) if settings.out is not None else read_nothing
    if session is None:
        return read_nothing
    from dsf.web.kube import scorer_reader

    return scorer_reader(session, [settings.namespace, *settings.scorer_namespaces])


def _session(settings: Settings) -> Session | None:
    """Return a session with the hub's API server, if there is one. Raises SettingsError."""
    if settings.web_auth == "proxy" and not settings.web_trusted_proxies:
        raise SettingsError("DSF_WEB_AUTH is proxy, so DSF_WEB_TRUSTED_PROXIES must list the trusted proxies")
    needs_api_server = settings.web_auth == "kubernetes" or (
        settings.web_auth == "proxy" and not settings.web_operators
    )
    in_reach = settings.kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in os.environ
    if not needs_api_server and (settings.backend == "dir" or not in_reach):
        return None
    # Imported here: a page that only reads Redis saves the Kubernetes client's 40 MB.
    from dsf.kube.session import Session

    return Session.load(settings.kubeconfig)


def _access(settings: Settings, session: Session | None) -> UserAccess:
    """Access control by the settings. Raises SettingsError if it would be open to other machines."""
    mode = settings.web_auth
    if mode in ("none", "local", "open", "anyone"):
        host, _ = settings.listen_address()
        if mode in ("none", "local") and not is_loopback(host):
            raise SettingsError(
                f"DSF_WEB_AUTH is {mode} and DSF_LISTEN_HOST is {host}: use 127.0.0.1, or auth open (read "
                f"access for every client), anyone (it may act, too), token, kubernetes or proxy"
            )
        return without_users(acting=mode in ("local", "anyone"))
    if mode == "token":
        if settings.client_token_file is None:
            raise SettingsError("DSF_WEB_AUTH is token, so DSF_CLIENT_TOKEN_FILE has to name the token's file")
        file = TokenFile(settings.client_token_file)
        file.read()

        def holder(token: str, client: str) -> PageUser:
            file.check(token, client)
            return PageUser("token")

        return UserAccess(lambda *_: True, login=holder)
    if session is None or (mode == "proxy" and settings.web_operators):
        # With a list, the API server is only used for objects, if there is one.
        return behind_proxy(listed(settings.web_operators))
    from dsf.web.kube import KubeAccess

    judge = KubeAccess(session, settings.namespace)
    return behind_proxy(judge.allows) if mode == "proxy" else UserAccess(judge.allows, login=judge.holder)
