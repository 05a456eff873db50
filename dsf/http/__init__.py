"""HTTP with bounds: each exchange of a request and a response has a deadline, and a limit of decompressed bytes.

Clients:

    client     get(), post(), request_token(), and probe() for health checks
    access     credentials, TLS options and proxy of a request, and aliases of hosts
    failures   conversion of the errors of an exchange to HttpError
    transport  the session of requests, and its connections
    deadline   running exchanges, which end at their deadline
    addresses  resolution of names, and refused addresses
    trust      trusted CAs (public ones, the system's, the operator's), and client certificates

Services:

    serving          configuration, start and stop of an HTTP service
    listening        the listening socket, which divides its connections among clients
    front            middleware for every request
    hosts            host names under which clients may reach a service
    probes           /healthz, /readyz and /metrics on a separate port
    metricsrenderer  renders metrics, once for concurrent requests
    apidocs          /docs

The session follows no redirects, keeps no cookies, and reads no .netrc or proxies from the environment, because each of
these could send a token to another server. A request is retried only if it failed on a kept connection that the peer
had closed. All other retries are left to the caller, which knows the deadline of the cycle.
"""

from dsf.errors import SettingsError
from dsf.http import addresses, trust
from dsf.http.access import set_aliases
from dsf.http.client import Response, Sink, Stream, get, post, probe, request_token
from dsf.http.failures import Explain
from dsf.settings import Settings

__all__ = ["Explain", "Response", "Sink", "Stream", "get", "post", "probe", "request_token", "use"]


def use(settings: Settings) -> None:
    """Set the trusted CAs, host aliases and allowed addresses of this process. Raises SettingsError."""
    try:
        set_aliases(settings.agent_host_aliases)
    except ValueError as error:
        raise SettingsError(f"DSF_AGENT_HOST_ALIASES: {error}") from None
    trust.use_folder(settings.trusted_ca_dir)
    addresses.allow_link_local(settings.allow_link_local)
