"""HTTP with bounds: one request, one response, a deadline for the whole exchange and a limit on the decoded bytes.

Clients:

    client     get(), post(), ask_for_token(), and probe() for health checks
    access     credentials of a request, its trust, and its proxy; aliases of hosts
    failures   errors of an exchange, as an actionable HttpError
    transport  the session of requests, and its connections
    deadline   the exchanges that run, ended at their deadline
    addresses  resolution of names, and refused addresses
    trust      trusted CAs: public ones, the system's, the operator's; and client certificates

Services:

    serving    runs an HTTP service until it is told to end
    listening  the listening socket, whose connections are shared out among clients
    front      middleware for every request
    hosts      names by which a service may be asked
    probes     /healthz, /readyz and /metrics on a port of their own
    apidocs    /docs

The session of requests follows no redirects, keeps no cookies and reads no .netrc or proxies from the environment: a
request that carries a token must do none of that. A request is retried only on a kept connection that was given up
meanwhile: the caller knows the deadline of the cycle.
"""

from dsf.errors import SettingsError
from dsf.http import addresses, trust
from dsf.http.access import set_aliases
from dsf.http.client import Answer, Sink, Stream, ask_for_token, get, post, probe
from dsf.http.failures import Explain
from dsf.settings import Settings

__all__ = ["Answer", "Explain", "Sink", "Stream", "ask_for_token", "get", "post", "probe", "use"]


def use(settings: Settings) -> None:
    """Set this process's trusted CAs, host aliases and allowed addresses. Raises SettingsError."""
    try:
        set_aliases(settings.agent_host_aliases)
    except ValueError as error:
        raise SettingsError(f"DSF_AGENT_HOST_ALIASES: {error}") from None
    trust.use_folder(settings.trusted_ca_dir)
    addresses.allow_link_local(settings.allow_link_local)
