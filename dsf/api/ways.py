"""The agents' authentication to a server, from a DynamicScorer and a ScoringAuthentication."""

from __future__ import annotations

from typing import Final, NamedTuple

from dsf.api.authentication import CaKind, Methods, Reference, ServerAccess, Tls, references
from dsf.api.naming import is_dns_subdomain
from dsf.api.resolvereason import ResolveReason
from dsf.api.scorer import DynamicScorer, Scoring, SourceSpec
from dsf.api.scoringauthentication import Authentications, ScoringAuthentication
from dsf.api.tokenhosts import TokenHosts
from dsf.api.types import CREDENTIALS_NAME
from dsf.api.urls import base_url
from dsf.errors import ResolutionError


class Way(NamedTuple):
    """Authentication to a server by a ScoringAuthentication."""

    authentication: ScoringAuthentication | None = None
    #: Path of its endpoint below the host.
    path: str = ""


NO_WAY: Final = Way()


def authentication_of(
    stage: str, spec: SourceSpec | Scoring, scorer: DynamicScorer, known: Authentications
) -> ScoringAuthentication | None:
    """The ScoringAuthentication of a stage."""
    if spec.auth is None or spec.auth.authentication_ref is None:
        return None
    name, namespace = spec.auth.authentication_ref.name, scorer.metadata.namespace
    authentication = known.get(f"{namespace}/{name}")
    if authentication is None:
        raise ResolutionError(
            ResolveReason.MissingAuthentication,
            f"spec.{stage}.auth.authenticationRef: there is no ScoringAuthentication {name!r} without mistakes in "
            f"namespace {namespace!r}",
        )
    if isinstance(authentication, str):
        raise ResolutionError(
            ResolveReason.InvalidAuthentication,
            f"spec.{stage}.auth.authenticationRef: the ScoringAuthentication {name!r} has mistakes: {authentication}",
        )
    if spec.tls is not None:
        raise ResolutionError(
            ResolveReason.InvalidAuthentication,
            f"spec.{stage}.tls: ScoringAuthentication {name!r} says how its servers prove who they are: put it there",
        )
    return authentication


def check_allowed(stage: str, authentication: ScoringAuthentication, endpoint: str) -> None:
    """Raise ResolutionError unless the object is bound to the server of this URL."""
    if not TokenHosts(authentication.spec.allowed_hosts).allow(endpoint):
        raise ResolutionError(
            ResolveReason.HostNotAllowed,
            f"spec.{stage}.auth.authenticationRef: the ScoringAuthentication {authentication.metadata.name!r} is not "
            f"for {base_url(endpoint)}; if it may be asked with it, add the server to its allowedHosts",
        )


def access_of(stage: str, spec: SourceSpec | Scoring, way: Way, endpoint: str) -> ServerAccess | None:
    """The authentication to this server beyond a token in upstream's format; None if there is none."""
    authentication = way.authentication
    if authentication is not None:
        where = f"spec of ScoringAuthentication {authentication.metadata.name!r}"
        return access_with(authentication, authentication.spec, authentication.spec.tls, where)
    for part, field in ((spec.auth, "auth"), (spec.tls, "tls")):
        if part is not None:
            _check_references(part, f"spec.{stage}.{field}")
    methods = methods_of(spec.auth)
    if use := methods.account_use:
        raise ResolutionError(
            ResolveReason.InvalidAuthentication,
            f"spec.{stage}.auth.{use}: a token of the agent's own account needs a ScoringAuthentication, "
            "whose allowedHosts say whom it may be sent to",
        )
    if spec.tls is None and methods == Methods(token_secret_ref=methods.token_secret_ref):
        return None
    return ServerAccess(methods=methods, tls=spec.tls)


def access_with(authentication: ScoringAuthentication, methods: Methods, tls: Tls | None, where: str) -> ServerAccess:
    """The agents' configuration for a server with this object. Raises ResolutionError."""
    for part in (methods, tls):
        if part is not None:
            _check_references(part, where)
    return ServerAccess(
        methods=methods_of(methods),
        tls=tls,
        authentication=authentication.metadata.name,
        allowed_hosts=authentication.spec.allowed_hosts,
        proxy_url=authentication.spec.proxy_url,
    )


def methods_of(part: Methods | None) -> Methods:
    """Only the methods of a model with more fields."""
    return Methods() if part is None else Methods(**{name: getattr(part, name) for name in Methods.model_fields})


def _check_references(part: Methods | Tls, where: str) -> None:
    for path, reference in references(part):
        if not is_dns_subdomain(reference.name):
            raise ResolutionError(
                ResolveReason.InvalidTokenSecretRef,
                f"{where}.{path}: {reference.name!r} is no name that a {reference.kind} can have",
            )
        if reference == Reference(CaKind.Secret, CREDENTIALS_NAME):
            raise ResolutionError(
                ResolveReason.InvalidTokenSecretRef,
                f"{where}.{path}: {reference.name} is the agents' own Secret; name the one that is meant",
            )
