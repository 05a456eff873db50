"""Turns the configuration of a server, which the agent gets from its hub, into the credentials of a request."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal

from dsf.api.authentication import Methods, ServerAccess, Tls, TokenSecretRef
from dsf.api.summary import ScorerSummary
from dsf.api.urls import NO_HOSTS, TokenHosts, get_base_url
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import SecretError, SecretSource
from dsf.auth.tokencache import TokenCache
from dsf.http.access import DIRECT, PLAIN, Access, TlsOptions
from dsf.text import shorten_url

#: Entry point group for functions in other distributions; entry points are named after the fields of `Methods`.
GROUP: Final = "dsf.authentication"
#: Function by field of `Methods`, in order of use; empty for functions in `GROUP`. Functions are loaded on first use.
METHODS: Final = {
    "token_secret_ref": "dsf.auth.methods:add_token_from_secret",
    "basic": "dsf.auth.methods:add_basic_auth",
    "oauth2": "dsf.auth.oauth2:add_oauth2_token",
    "service_account_token": "dsf.auth.methods:add_service_account_token",
    # The extra with the field's name installs the distribution and the cloud's library.
    **dict.fromkeys(("aws", "azure", "gcp"), ""),
    "client_certificate": "dsf.auth.methods:add_client_certificate",
    "headers": "dsf.auth.methods:add_headers",
    "query_parameters": "dsf.auth.methods:add_query_parameters",
}


class Authenticator:
    """Turns a server's configuration into the credentials of a request. Thread-safe.

    Reads Secrets for each request, so that changes take effect immediately.
    """

    def __init__(self, source: SecretSource) -> None:
        self._source = source
        self._tokens = TokenCache()

    def make_access(self, summary: ScorerSummary, stage: Literal["fetch", "score"], deadline: float) -> Access:
        """Return the credentials for the requests of a stage. Raises HttpError, including SecretError.

        `deadline` (time.monotonic()) limits requests to token servers.
        """
        if stage == "fetch":
            spec, url = summary.source_access, summary.source_endpoint
            secret_name, secret_key = summary.source_endpoint_auth_name, summary.source_endpoint_auth_key
        else:
            spec, url = summary.scoring_access, summary.scoring_endpoint
            secret_name, secret_key = summary.scoring_endpoint_auth_name, summary.scoring_endpoint_auth_key
        is_direct = stage == "score" and summary.location == "Internal"
        if spec is None:
            if not secret_name and not secret_key:
                return DIRECT if is_direct else PLAIN
            spec = ServerAccess(methods=Methods(token_secret_ref=TokenSecretRef(name=secret_name, key=secret_key)))
        if spec.problem:
            raise SecretError(
                f"this agent cannot authenticate to {shorten_url(url)}: {spec.problem}; it is older than its hub: "
                "upgrade it",
                "auth_unsupported",
            )
        return self._build_access(spec, url, deadline, is_direct)

    def _build_access(
        self, spec: ServerAccess, url: str, deadline: float, is_direct: bool, rejected_token: str | None = None
    ) -> Access:
        proxy = None if is_direct else spec.proxy_url
        hosts, tls = self._list_hosts(spec, url), self._make_tls_options(spec.tls)
        builder = CredentialsBuilder(url, deadline, hosts, self._source, self._tokens, tls, rejected_token, proxy)
        builder.is_direct = is_direct
        for line in _describe_connection(spec):
            builder.add_description(line)
        for field in METHODS:
            if method := getattr(spec.methods, field):
                _load_function(field)(method, builder)
        return builder.build(
            lambda rejected_token, renewal_deadline: self._build_access(
                spec, url, renewal_deadline, is_direct, rejected_token
            )
        )

    def _list_hosts(self, spec: ServerAccess, url: str) -> TokenHosts:
        """Return the servers that may receive the Secrets of a ScoringAuthentication. Raises SecretError.

        Secrets outside of a ScoringAuthentication are not bound to servers.
        """
        if not spec.authentication:
            return NO_HOSTS
        hosts = TokenHosts(spec.allowed_hosts)
        if not hosts.allow(url):
            # The hub has already checked the URL. Check again, so that a faulty hub cannot redirect Secrets.
            raise SecretError(
                f"ScoringAuthentication {spec.authentication!r} is not for {shorten_url(url)}: nothing was sent",
                "secret_refused",
            )
        # The ScoringAuthentication also names its token servers and its proxy.
        server_urls = (*spec.methods.token_urls, *((spec.proxy_url,) if spec.proxy_url else ()))
        return TokenHosts([*spec.allowed_hosts, *map(get_base_url, server_urls)]) if server_urls else hosts

    def _make_tls_options(self, spec: Tls | None) -> TlsOptions:
        if spec is None:
            return TlsOptions()
        ca = b""
        if spec.ca_ref is not None:
            ca = self._source.get_certificates(spec.ca_ref.kind, spec.ca_ref.name, spec.ca_ref.key)
        return TlsOptions(ca, server_name=spec.server_name, verify=not spec.insecure_skip_verify)


@functools.cache
def _find_entry_point(field: str) -> EntryPoint | None:
    """Return the entry point for this field of `Methods`; None if no installed package has one."""
    return next(iter(entry_points(group=GROUP, name=field)), None)


def _load_function(field: str) -> Callable[[Any, CredentialsBuilder], None]:
    """Load the function of a method. Raises SecretError (auth_unsupported)."""
    try:
        function: Callable[[Any, CredentialsBuilder], None]
        if METHODS[field]:
            function = pkgutil.resolve_name(METHODS[field])
        else:
            entry = _find_entry_point(field)
            if entry is None:
                raise ModuleNotFoundError(f"no installed package has an entry point {field} of {GROUP}")
            function = entry.load()
        return function
    except ModuleNotFoundError as error:
        text = f"{field} needs the extra `{field}` in this agent: pip install 'dynamic-scoring-framework[{field}]'"
        raise SecretError(f"{text} ({error})", "auth_unsupported") from None


def _describe_connection(spec: ServerAccess) -> Iterator[str]:
    """Yield lines for display that describe the verification of the server and the proxy."""
    if spec.tls is not None and spec.tls.insecure_skip_verify:
        yield "the server's certificate is not verified"
    elif spec.tls is not None and (ca := spec.tls.ca_ref) is not None:
        yield f"the CA in key {ca.key!r} of {ca.kind} {ca.name!r} is trusted, too"
    if spec.tls is not None and spec.tls.server_name:
        yield f"the server's certificate is for {spec.tls.server_name}"
    if spec.proxy_url:
        yield f"through the proxy {shorten_url(spec.proxy_url)}"
