"""Server of a source or scoring API on one cluster: its URL, and the agents' authentication to it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pydantic.alias_generators import to_camel

from dsf.api.authentication import API_SERVER_AUDIENCES, CaKind, Methods, ServerAccess, Tls, find_references
from dsf.api.naming import is_dns_subdomain
from dsf.api.remoteconfig import RemoteConfig, RemoteScoring, RemoteSource
from dsf.api.scorer import DynamicScorer, Scoring, SourceSpec
from dsf.api.scoringauthentication import Authentications, ScoringAuthentication
from dsf.api.templates import Renderer
from dsf.api.types import AGENT_SECRETS, ConfigSyncMode, ResolveReason
from dsf.api.urls import TokenHosts, get_base_url, join_url, parse_origin
from dsf.errors import ResolutionError

#: Maximum characters of a query, host or path before its templates are expanded, which the hub does for each cluster.
#: Longer texts would not fit into a ScorerSummary.
MAX_TEXT: Final = 64 * 1024


class ResolutionInput(NamedTuple):
    """The input for the resolution of a scorer's configuration on a cluster."""

    scorer: DynamicScorer
    #: The `/config` in effect.
    synced_config: RemoteConfig
    #: The servers that `/config` may name for a token.
    token_hosts: TokenHosts
    authentications: Authentications
    renderer: Renderer

    def make_missing_field_error(self, reason: ResolveReason, field: str) -> ResolutionError:
        """Return the error for a missing field, with the reason why `/config` does not provide a value either."""
        if self.scorer.spec.scoring.expression is not None:
            config_text = "and a scorer with an expression has no /config"
        elif self.scorer.spec.config_sync_mode is ConfigSyncMode.None_:
            config_text = "and configSyncMode None does not take it from /config"
        elif self.scorer.status.last_synced_config is None:
            config_text = "and /config was not read yet"
        else:
            config_text = "neither in the spec nor in /config"
        return ResolutionError(reason, f"{field} is not set, {config_text}")


class ServerDeclaration(NamedTuple):
    """The fields of a server in spec and `/config`."""

    #: Path of the fields below `spec`: `source`, `scoring`, or `sources[NAME]`.
    name: str
    spec: SourceSpec | Scoring
    synced_fields: RemoteSource | RemoteScoring
    default_path: str = ""


class Server(NamedTuple):
    """A server in the agents' configuration."""

    endpoint: str
    #: Name and key of the Secret with a token in upstream's format, which agents of any version support.
    auth_name: str = ""
    auth_key: str = ""
    #: Access that needs more than such a token; None otherwise.
    access: ServerAccess | None = None
    authentication: ScoringAuthentication | None = None


def resolve_server(context: ResolutionInput, stage: ServerDeclaration) -> Server:
    """Return the server of a stage.

    Raises ResolutionError if the URL is invalid, or if a token would be sent to a host that its owner does not allow.
    """
    authentication = _find_authentication(context, stage)
    if authentication is not None:
        return _make_server(context, stage, authentication)
    endpoint = _resolve_endpoint(context, stage)
    if (
        stage.synced_fields.host
        and stage.spec.auth is not None
        and not context.renderer.expands_to_placeholder(stage.synced_fields.host)
    ):
        _check_token_host(context, stage, endpoint)
    name, key = _find_token_secret(stage)
    return Server(endpoint, name, key, _make_own_access(context, stage))


def join_unused_endpoint(context: ResolutionInput, stage: ServerDeclaration) -> str:
    """Return the URL of an unused stage; empty if the URL is invalid."""
    try:
        return _resolve_endpoint(context, stage)
    except ResolutionError:
        return ""


def _resolve_endpoint(
    context: ResolutionInput, stage: ServerDeclaration, override_host: tuple[str, str] | None = None
) -> str:
    """Return the URL of a stage. `override_host` is (host, its field), which takes precedence over the declaration."""
    config_url = context.scorer.spec.config_url
    if not config_url and not override_host and not stage.spec.host:
        raise ResolutionError(ResolveReason.InvalidURL, f"spec.{stage.name}.host is not set")
    try:
        fallback = get_base_url(config_url) if config_url else ""
    except ValueError as error:
        raise ResolutionError(ResolveReason.InvalidURL, f"spec.configURL: {error}") from None
    host, host_field = override_host or choose_text(
        stage.name, "host", stage.synced_fields.host, stage.spec.host or fallback
    )
    path, path_field = choose_text(stage.name, "path", stage.synced_fields.path, stage.spec.path or stage.default_path)
    try:
        return join_url(context.renderer.expand_host(host, host_field), context.renderer.expand_path(path, path_field))
    except ValueError as error:
        raise ResolutionError(ResolveReason.InvalidURL, f"{host_field}: {error}") from None


def choose_text(stage: str, field: str, synced_text: str, declared_text: str) -> tuple[str, str]:
    """Return the text of a field in `/config`, or else in the spec, and the name of the field for messages.

    Raises ResolutionError for a text that is too long.
    """
    text, name = (
        (synced_text, f"{stage}.{field} in /config") if synced_text else (declared_text, f"spec.{stage}.{field}")
    )
    if len(text) > MAX_TEXT:
        raise ResolutionError(
            ResolveReason.TooLarge, f"{name} has {len(text)} characters, more than {MAX_TEXT}: make it shorter"
        )
    return text, name


def _find_authentication(context: ResolutionInput, stage: ServerDeclaration) -> ScoringAuthentication | None:
    spec, field = stage.spec, f"spec.{stage.name}.auth.authenticationRef"
    if spec.auth is None or spec.auth.authentication_ref is None:
        return None
    name, namespace = spec.auth.authentication_ref.name, context.scorer.metadata.namespace
    authentication = context.authentications.get(f"{namespace}/{name}")
    if authentication is None:
        raise ResolutionError(
            ResolveReason.MissingAuthentication,
            f"{field}: there is no ScoringAuthentication {name!r} without mistakes in namespace {namespace!r}",
        )
    if isinstance(authentication, str):
        raise ResolutionError(
            ResolveReason.InvalidAuthentication,
            f"{field}: the ScoringAuthentication {name!r} has mistakes: {authentication}",
        )
    if spec.tls is not None:
        raise ResolutionError(
            ResolveReason.InvalidAuthentication,
            f"spec.{stage.name}.tls: ScoringAuthentication {name!r} says how its servers prove who they are: put it "
            "there",
        )
    return authentication


def _make_server(context: ResolutionInput, stage: ServerDeclaration, authentication: ScoringAuthentication) -> Server:
    """Return the server with a ScoringAuthentication and its override for the cluster."""
    name, spec = authentication.metadata.name, authentication.spec
    override = context.renderer.find_override(spec)
    origin = f"{'spec' if override is None else 'an override'} of ScoringAuthentication {name!r}"
    override_host = (override.host, origin) if override is not None and override.host is not None else None
    endpoint = _resolve_endpoint(context, stage, override_host)
    is_placeholder = context.renderer.expands_to_placeholder(
        override_host[0] if override_host else stage.synced_fields.host or stage.spec.host
    )
    if not is_placeholder and not TokenHosts(spec.allowed_hosts).allow(endpoint):
        raise ResolutionError(
            ResolveReason.HostNotAllowed,
            f"spec.{stage.name}.auth.authenticationRef: the ScoringAuthentication {name!r} is not "
            f"for {get_base_url(endpoint)}; if it may be asked with it, add the server to its allowedHosts",
        )
    # Without the overrides, of which a tenant may write many.
    methods = select_methods(override if override is not None and override.is_any else spec)
    if methods.account_audience in API_SERVER_AUDIENCES:
        raise ResolutionError(
            ResolveReason.InvalidAuthentication,
            f"{origin}: {methods.account_audience!r} is an audience of the API servers themselves, with which a server "
            "could act as the account there; name the audience of the server that gets the token",
        )
    tls = (override.tls if override is not None else None) or spec.tls
    for part in (methods, tls):
        if part is not None:
            _check_references(part, origin)
    access = ServerAccess(
        methods=_expand_templates(methods, context.renderer, stage.name),
        tls=tls,
        authentication=name,
        allowed_hosts=spec.allowed_hosts,
        proxy_url=spec.proxy_url,
    )
    return Server(endpoint, access=access, authentication=authentication)


def _check_token_host(context: ResolutionInput, stage: ServerDeclaration, endpoint: str) -> None:
    """Raise ResolutionError for a host in `/config` that the user did not name.

    Otherwise, a scoring API could redirect a user's token.
    """
    if context.token_hosts.allow(endpoint):
        return
    field = f"spec.{stage.name}.host"
    spec_host = context.renderer.expand_host(stage.spec.host, field)
    try:
        declared_servers = {parse_origin(url) for url in (spec_host, context.scorer.spec.config_url) if url}
    except ValueError as error:
        raise ResolutionError(ResolveReason.InvalidURL, f"{field}: {error}") from None
    if parse_origin(endpoint) not in declared_servers:
        raise ResolutionError(
            ResolveReason.TokenHostMismatch,
            f"spec.{stage.name}.auth: /config would send the token to {get_base_url(endpoint)}, which is neither "
            f"{field} nor the host of configURL; if it may have the token, set {field} to it, or "
            "have the hub's admin add it to DSF_TOKEN_HOSTS (the chart's hubSetting.tokenHosts)",
        )


def _find_token_secret(stage: ServerDeclaration) -> tuple[str, str]:
    """Return name and key of the token in upstream's format; empty without a token."""
    ref = stage.spec.auth.token_secret_ref if stage.spec.auth is not None else None
    if ref is None:
        return "", ""
    for field, value in (("name", ref.name), ("key", ref.key)):
        if not value:
            raise ResolutionError(
                ResolveReason.InvalidTokenSecretRef, f"spec.{stage.name}.auth.tokenSecretRef.{field} is empty"
            )
    return ref.name, ref.key


def _make_own_access(context: ResolutionInput, stage: ServerDeclaration) -> ServerAccess | None:
    """Return the DynamicScorer's own authentication; None if it is at most a token in upstream's format."""
    spec = stage.spec
    for part, field in ((spec.auth, "auth"), (spec.tls, "tls")):
        if part is not None:
            _check_references(part, f"spec.{stage.name}.{field}")
    methods = select_methods(spec.auth)
    if account_use := methods.account_use:
        raise ResolutionError(
            ResolveReason.InvalidAuthentication,
            f"spec.{stage.name}.auth.{account_use}: a token of the agent's own account needs a ScoringAuthentication, "
            "whose allowedHosts say whom it may be sent to",
        )
    if spec.tls is None and methods == Methods(token_secret_ref=methods.token_secret_ref):
        return None
    return ServerAccess(methods=_expand_templates(methods, context.renderer, stage.name), tls=spec.tls)


def select_methods(part: Methods | None) -> Methods:
    """Return only the methods of a model with more fields."""
    return Methods() if part is None else Methods(**{name: getattr(part, name) for name in Methods.model_fields})


def _expand_templates(methods: Methods, renderer: Renderer, stage: str) -> Methods:
    """Return the methods with expanded templates in the values of headers and parameters."""
    update: dict[str, Any] = {}
    for name in ("headers", "query_parameters"):
        update[name] = tuple(
            pair
            if pair.value is None
            else pair.model_copy(
                update={"value": renderer.expand_value(pair.value, f"{to_camel(name)}[{index}].value of the {stage}")}
            )
            for index, pair in enumerate(getattr(methods, name))
        )
    return methods.model_copy(update=update)


def _check_references(part: Methods | Tls, origin: str) -> None:
    for path, reference in find_references(part):
        if not is_dns_subdomain(reference.name):
            raise ResolutionError(
                ResolveReason.InvalidTokenSecretRef,
                f"{origin}.{path}: {reference.name!r} is no name that a {reference.kind} can have",
            )
        if reference.kind is CaKind.Secret and reference.name in AGENT_SECRETS:
            raise ResolutionError(
                ResolveReason.InvalidTokenSecretRef,
                f"{origin}.{path}: {reference.name} is the agents' own Secret; name the one that is meant",
            )
