"""HTTP with bounds: one request, one answer, a deadline for the whole exchange and a limit on the decoded bytes.

    client     get(), post(), ask_for_token(), and probe() for health checks
    access     credentials of a request, its trust, and its proxy; aliases of hosts
    failures   errors of an exchange, as an actionable HttpError
    transport  the session of requests, and its connections
    deadline   the exchanges that run, ended at their deadline
    addresses  resolution of names, and refused addresses
    trust      trusted CAs: public ones, the system's, the operator's; and client certificates
    serving    how the HTTP services listen; `hosts` are the names that they answer to, `apidocs` their /docs

A session of requests that follows no redirects, keeps no cookies and reads no .netrc or proxies from the environment:
none of that must happen to a request that carries a token. There are no retries here, but for a kept connection that
was given up meanwhile: the caller knows the deadline of the cycle.
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
