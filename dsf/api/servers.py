"""Server of a source or scoring API: its URL, and its token in upstream's format."""

from __future__ import annotations

from typing import NamedTuple

from dsf.api.authentication import Auth
from dsf.api.remoteconfig import RemoteScoring, RemoteSource
from dsf.api.resolvereason import ResolveReason
from dsf.api.scorer import DynamicScorer, Scoring, SourceSpec
from dsf.api.scoringauthentication import Authentications
from dsf.api.tokenhosts import TokenHosts
from dsf.api.urls import base_url, join_url, origin
from dsf.api.ways import Way, authentication_of, check_allowed
from dsf.errors import ResolutionError


class Secret(NamedTuple):
    name: str
    key: str


class Stage(NamedTuple):
    """Settings of one server, with their origin."""

    #: Below spec: source, scoring, or sources[NAME].
    name: str
    config_url: str
    spec: SourceSpec | Scoring
    synced: RemoteSource | RemoteScoring
    #: None: the servers are placeholders, to which no list applies.
    token_hosts: TokenHosts | None


def endpoint(
    stage: Stage,
    default_path: str,
    scorer: DynamicScorer,
    authentications: Authentications,
) -> tuple[str, Way]:
    """The URL of a stage. Raises ResolutionError if it is invalid, or if a token would be sent to a foreign host."""
    name, config_url, spec, synced, token_hosts = stage
    path = synced.path or spec.path or default_path
    try:
        fallback = base_url(config_url)
    except ValueError as error:
        raise ResolutionError(ResolveReason.InvalidURL, f"spec.configURL: {error}") from None
    if synced.host:
        host, field = synced.host, f"{name}.host in /config"
    else:
        host, field = spec.host or fallback, f"spec.{name}.host"
    try:
        endpoint = join_url(host, path)
    except ValueError as error:
        raise ResolutionError(ResolveReason.InvalidURL, f"{field}: {error}") from None
    authentication = authentication_of(name, spec, scorer, authentications)
    if token_hosts is None:
        return endpoint, Way(authentication, path)
    if authentication is not None:
        check_allowed(name, authentication, endpoint)
    elif synced.host and spec.auth is not None and not token_hosts.allow(synced.host):
        _check_token_host(name, synced.host, spec.host, fallback)
    return endpoint, Way(authentication, path)


def unused_endpoint(stage: Stage) -> str:
    """The URL of a stage that nothing is sent to; empty if it is invalid."""
    try:
        host = stage.synced.host or stage.spec.host or base_url(stage.config_url)
        return join_url(host, stage.synced.path or stage.spec.path)
    except ValueError:
        return ""


def _check_token_host(stage: str, synced_host: str, spec_host: str, fallback: str) -> None:
    """Refuse a host from `/config` that the user did not name: a scoring API must not redirect a user's token."""
    try:
        named = {origin(url) for url in (spec_host, fallback) if url}
    except ValueError as error:
        raise ResolutionError(ResolveReason.InvalidURL, f"spec.{stage}.host: {error}") from None
    if origin(synced_host) not in named:
        raise ResolutionError(
            ResolveReason.TokenHostMismatch,
            f"spec.{stage}.auth: /config would send the token to {base_url(synced_host)}, which is neither "
            f"spec.{stage}.host nor the host of configURL; if it may have the token, set spec.{stage}.host to it, or "
            "have the hub's admin add it to DSF_TOKEN_HOSTS (the chart's hubSetting.tokenHosts)",
        )


def secret(stage: str, auth: Auth | None) -> Secret:
    """The token in upstream's format, which agents of any version support."""
    if auth is None or auth.token_secret_ref is None:
        return Secret("", "")
    ref = auth.token_secret_ref
    for field, value in (("name", ref.name), ("key", ref.key)):
        if not value:
            raise ResolutionError(
                ResolveReason.InvalidTokenSecretRef, f"spec.{stage}.auth.tokenSecretRef.{field} is empty"
            )
    return Secret(ref.name, ref.key)
