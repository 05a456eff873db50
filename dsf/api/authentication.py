"""Authentication to a source or a scoring API, with Secrets of the managed cluster, and verification of the server.

The models contain only names and public values, because the agent reads the Secrets for each request. Each method is
one model here and one function of `dsf/auth`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, Field, StrictBool, StrictInt
from pydantic.alias_generators import to_camel

from dsf.api.clouds import CLOUD_SERVERS, Azure, Gcp
from dsf.api.fieldtypes import MAX_PAIRS, HeaderValue, Name, SecretKeyRef, Url, make_schema_pattern
from dsf.api.meta import Rule, SpecModel

_HEADER_NAME_PATTERN: Final = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$"
#: Headers that only HTTP or the framework may set, because custom values would allow request smuggling.
RESERVED_HEADERS: Final = frozenset(
    {
        *("host", "connection", "content-length", "content-type", "content-encoding", "transfer-encoding", "te"),
        *("upgrade", "trailer", "expect", "keep-alive", "proxy-authorization", "proxy-connection", "accept-encoding"),
    }
)
#: Fields of the methods that set the header Authorization.
_AUTHORIZATION: Final = ("token_secret_ref", "basic", "oauth2", "service_account_token", "aws", "azure", "gcp")
#: Value of `account_use` if EKS mounts a token into the agent's pod, so that none is requested.
POD_IDENTITY: Final = "aws.podIdentity"
#: CEL list with a boolean for each of these methods, which is true if the method is set.
_CEL_GIVEN_METHODS: Final = f"[{', '.join(f'has(self.{to_camel(name)})' for name in _AUTHORIZATION)}]"
_CEL_HAS_AUTHENTICATION: Final = (
    f"({_CEL_GIVEN_METHODS}.exists(given, given) || has(self.clientCertificate) || "
    "size(self.headers) > 0 || size(self.queryParameters) > 0)"
)


def _check_header_name(value: str) -> str:
    if re.fullmatch(_HEADER_NAME_PATTERN, value) is None:
        raise ValueError(f"{value!r} is not the name of a header")
    if value.lower() in RESERVED_HEADERS:
        raise ValueError(f"the header {value} is set by HTTP itself and cannot be set here")
    return value


class TokenSecretRef(SpecModel):
    """A key of a Secret in the agent's namespace on the managed cluster."""

    name: str = Field(description="Name of the Secret in the agent's namespace on the managed cluster.")
    key: str = Field(description="Key in the Secret that holds the token.")


class Value(SpecModel):
    """A value, or where it is."""

    rules = (
        Rule(
            "either value or secretRef",
            "has(self.value) != has(self.secretRef)",
            lambda self: (self.value is None) != (self.secret_ref is None),
        ),
    )

    value: HeaderValue | None = Field(default=None, description="The value itself, if it is not secret.")
    secret_ref: SecretKeyRef | None = Field(default=None, description="Reference to the value, if it is secret.")


class Header(Value):
    """A header of each request."""

    rules = (
        # The models check this in the validator of the field.
        Rule(
            "a header of this name is set by HTTP itself and cannot be set here",
            f"!(self.name.lowerAscii() in {sorted(RESERVED_HEADERS)})",
        ),
    )

    name: Annotated[str, AfterValidator(_check_header_name), make_schema_pattern(_HEADER_NAME_PATTERN, 128)] = Field(
        description="Name of the header, such as X-Scope-OrgID."
    )


class Parameter(Value):
    """A parameter of each request's URL."""

    name: HeaderValue = Field(description="Name of the parameter.", min_length=1)


class Basic(SpecModel):
    """A user and a password, as `Authorization: Basic`."""

    username: Value = Field(description="The user.")
    password: SecretKeyRef | None = Field(
        default=None, description="The password; unset: empty, if the user is an API key."
    )


class ClientCertificate(SpecModel):
    """A certificate with its private key, in the format of `kubernetes.io/tls` and cert-manager."""

    secret_name: Name = Field(description="Name of the Secret in the agent's namespace on the managed cluster.")
    certificate_key: str = Field(default="tls.crt", description="Key of the certificate with its chain, in PEM.")
    private_key_key: str = Field(default="tls.key", description="Key of the private key, in PEM without a password.")


class OAuth2(SpecModel):
    """OAuth2 client credentials: a token is requested, cached until shortly before it expires, and sent as Bearer."""

    token_url: Url = Field(alias="tokenURL", description="URL of the token server.")
    client_id: Value = Field(alias="clientID", description="The client's id.")
    client_secret: SecretKeyRef = Field(description="The client's secret.")
    scopes: tuple[HeaderValue, ...] = Field(default=(), description="Requested scopes.", max_length=MAX_PAIRS)
    audience: str = Field(default="", description="Parameter audience of the token request.", max_length=2048)
    parameters: tuple[Parameter, ...] = Field(
        default=(), description="Additional parameters of the token request.", max_length=MAX_PAIRS
    )
    client_authentication: Literal["Basic", "Post"] = Field(
        default="Basic",
        description="Basic: id and secret as a header. Post: as parameters of the token request.",
    )


#: Usual audiences of API servers. A server that receives a token for such an audience could act as the account.
API_SERVER_AUDIENCES: Final = frozenset(
    f"{scheme}kubernetes.default{end}" for scheme in ("", "https://") for end in ("", ".svc", ".svc.cluster.local")
) | {"kubernetes"}


class ServiceAccountToken(SpecModel):
    """A token of the ServiceAccount dynamic-scoring-agent-tokens for one audience, sent as Bearer."""

    audience: HeaderValue = Field(description="Only audience of the token.", min_length=1)
    expiration_seconds: StrictInt = Field(
        default=3600, description="Validity of a token in seconds; it is renewed before.", ge=600, le=86400
    )


class Aws(SpecModel):
    """Amazon's signature of each request (SigV4)."""

    rules = (
        Rule(
            "either roleARN, or accessKeyID and secretAccessKey, or podIdentity",
            "[has(self.roleARN), has(self.podIdentity) && self.podIdentity, has(self.accessKeyID)].filter(given, given)"
            ".size() == 1 && "
            "has(self.accessKeyID) == has(self.secretAccessKey) && (!has(self.sessionToken) || has(self.accessKeyID))",
            lambda self: (
                (self.role_arn is not None) + bool(self.pod_identity) + (self.access_key_id is not None) == 1
                and (self.access_key_id is None) == (self.secret_access_key is None)
                and (self.session_token is None or self.access_key_id is not None)
            ),
        ),
    )

    region: HeaderValue = Field(description="Region, such as eu-west-1.", min_length=1)
    service: HeaderValue = Field(default="aps", description="Service: aps is Managed Prometheus.", min_length=1)
    access_key_id: Value | None = Field(default=None, alias="accessKeyID", description="Id of the access key.")
    secret_access_key: SecretKeyRef | None = Field(default=None, description="The access key itself.")
    session_token: SecretKeyRef | None = Field(default=None, description="Token of a temporary access key.")
    role_arn: HeaderValue | None = Field(
        default=None,
        alias="roleARN",
        description="A role that trusts the ServiceAccount dynamic-scoring-agent-tokens, instead of a key (IRSA).",
        min_length=20,
    )
    # The default is None and not false, so that the field is omitted for older agents, which do not know it.
    pod_identity: StrictBool | None = Field(
        default=None,
        description="Use the role that EKS Pod Identity associates with the agent's ServiceAccount, instead of a key.",
    )
    token_audience: HeaderValue = Field(
        default="sts.amazonaws.com", description="Audience of the ServiceAccount's token, with roleARN.", min_length=1
    )
    sts_url: Url | None = Field(
        default=None, alias="stsURL", description="Server that issues keys for a role; unset: that of the region."
    )


class CaKind(StrEnum):
    """Kind of object with a CA."""

    ConfigMap = "ConfigMap"
    Secret = "Secret"  # noqa: S105 - the name of a kind


class CaRef(SpecModel):
    """A key of a ConfigMap or Secret in the agent's namespace on the managed cluster, with certificates in PEM."""

    kind: CaKind = Field(default=CaKind.ConfigMap, description="Kind of the object.")
    name: Name = Field(description="Name of the ConfigMap or Secret.")
    key: str = Field(default="ca.crt", description="Key with the certificates.", max_length=253)


class Tls(SpecModel):
    """Verification of the server."""

    ca_ref: CaRef | None = Field(default=None, description="An additional trusted CA for this server.")
    server_name: str = Field(
        default="", description="Name that the server's certificate must have; unset: the host.", max_length=253
    )
    insecure_skip_verify: StrictBool = Field(
        default=False,
        description="Do not verify the server's certificate, which allows man-in-the-middle attacks. The condition "
        "TLSVerified shows it.",
    )


class Methods(SpecModel):
    """Authentication methods. At most one sets the header Authorization; the others can be combined with it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "at most one of tokenSecretRef, basic, oauth2, serviceAccountToken, aws, azure and gcp: each is the header "
            "Authorization",
            f"{_CEL_GIVEN_METHODS}.filter(given, given).size() <= 1",
            lambda self: sum(getattr(self, name) is not None for name in _AUTHORIZATION) <= 1,
        ),
        Rule(
            "headers: Authorization is set by another method already",
            f"!{_CEL_GIVEN_METHODS}.exists(given, given) || "
            "!self.headers.exists(one, one.name.lowerAscii() == 'authorization')",
            lambda self: (
                "authorization" not in self.header_names or all(getattr(self, name) is None for name in _AUTHORIZATION)
            ),
        ),
        # The list key of the API server is case-sensitive, so the models also check names in lower case.
        Rule(
            "headers: a name is there twice",
            holds=lambda self: len(set(self.header_names)) == len(self.header_names),
        ),
    )

    token_secret_ref: TokenSecretRef | None = Field(
        default=None, description="The token to send as `Authorization: Bearer`."
    )
    basic: Basic | None = Field(default=None, description="User and password.")
    oauth2: OAuth2 | None = Field(default=None, description="A token of an OAuth2 server.")
    service_account_token: ServiceAccountToken | None = Field(
        default=None, description="A token of the ServiceAccount dynamic-scoring-agent-tokens."
    )
    aws: Aws | None = Field(default=None, description="Amazon's signature; needs the extra `aws` in the agent.")
    azure: Azure | None = Field(default=None, description="A token of Azure; needs the extra `azure` in the agent.")
    gcp: Gcp | None = Field(default=None, description="A token of Google; needs the extra `gcp` in the agent.")
    client_certificate: ClientCertificate | None = Field(
        default=None, description="A certificate of the client (mTLS)."
    )
    headers: tuple[Header, ...] = Field(
        default=(),
        description="Headers of each request.",
        max_length=MAX_PAIRS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    query_parameters: tuple[Parameter, ...] = Field(
        default=(), description="Parameters of each request's URL.", max_length=MAX_PAIRS
    )

    @property
    def header_names(self) -> list[str]:
        """Names of the headers in lower case."""
        return [header.name.lower() for header in self.headers]

    @property
    def is_any(self) -> bool:
        """True if there is a method."""
        return any(getattr(self, name) for name in Methods.model_fields)

    @property
    def account_use(self) -> str:
        """The field that sends tokens of the agent's own account to a server; empty without such a field."""
        if self.aws is not None and self.aws.role_arn is not None:
            return "aws.roleARN"
        if self.aws is not None and self.aws.pod_identity:
            return POD_IDENTITY
        if self.gcp is not None and self.gcp.audience is not None:
            return "gcp.audience"
        return "azure" if self.azure is not None else "serviceAccountToken" if self.service_account_token else ""

    @property
    def account_audience(self) -> str:
        """The audience of the tokens of `account_use`; empty without any."""
        if self.service_account_token is not None:
            return self.service_account_token.audience
        if self.gcp is not None and self.gcp.audience is not None:
            return self.gcp.token_audience or f"https:{self.gcp.audience}"
        if self.aws is not None and self.aws.role_arn is not None:
            return self.aws.token_audience
        return self.azure.token_audience if self.azure is not None else ""

    @property
    def token_urls(self) -> tuple[str, ...]:
        """The token servers that receive Secrets or values derived from them."""
        if self.gcp is not None and self.gcp.key is not None:
            return (self.gcp.server,)
        return (self.oauth2.token_url,) if self.oauth2 is not None else ()

    @property
    def named_servers(self) -> tuple[str, ...]:
        """URLs of all token servers that the author has set, except the clouds' own servers."""
        urls = [
            self.oauth2.token_url if self.oauth2 is not None else None,
            self.aws.sts_url if self.aws is not None else None,
            self.azure.authority_url if self.azure is not None else None,
            *((self.gcp.token_url, self.gcp.credentials_url) if self.gcp is not None else ()),
        ]
        return tuple(url for url in urls if url and url not in CLOUD_SERVERS)


class AuthenticationRef(SpecModel):
    """A ScoringAuthentication in the DynamicScorer's namespace."""

    name: Name = Field(description="Name of the ScoringAuthentication.")


class Auth(Methods):
    """How the agent authenticates itself."""

    rules = (
        Rule(
            "names no method: set authenticationRef, tokenSecretRef, basic, oauth2, aws, clientCertificate, headers or "
            "queryParameters",
            f"has(self.authenticationRef) || {_CEL_HAS_AUTHENTICATION}",
            lambda self: self.authentication_ref is not None or self.is_any,
        ),
        Rule(
            "authenticationRef excludes other methods",
            f"!has(self.authenticationRef) || !{_CEL_HAS_AUTHENTICATION}",
            lambda self: self.authentication_ref is None or not self.is_any,
        ),
    )

    authentication_ref: AuthenticationRef | None = Field(
        default=None, description="A ScoringAuthentication with all settings."
    )


class ServerAccess(SpecModel):
    """Authentication to one server, in the agent's configuration."""

    methods: Methods = Field(default_factory=Methods)
    tls: Tls | None = None
    #: Name of the ScoringAuthentication, if it is in the hub's own namespace; else empty.
    authentication: str = ""
    #: The servers to which this ScoringAuthentication binds its Secrets.
    allowed_hosts: tuple[str, ...] = ()
    proxy_url: str | None = Field(default=None, alias="proxyURL")
    #: Description of unknown settings from a newer hub; empty without any. An agent sends no requests with them.
    problem: str = Field(default="", exclude=True)

    @property
    def unbound(self) -> ServerAccess:
        """A copy without the binding of Secrets to servers, so that the Secrets themselves must list the server."""
        return self.model_copy(update={"authentication": "", "allowed_hosts": ()})

    @property
    def references(self) -> frozenset[Reference]:
        """The referenced Secrets and ConfigMaps."""
        return frozenset(reference for _, reference in find_references(self))


class Reference(NamedTuple):
    """A Secret or ConfigMap in the agent's namespace."""

    kind: CaKind
    name: str


def find_references(part: BaseModel, path: str = "") -> Iterator[tuple[str, Reference]]:
    """Yield the references in a part of a spec, each with the path of its field."""
    match part:
        case SecretKeyRef() | TokenSecretRef():
            yield f"{path}.name", Reference(CaKind.Secret, part.name)
        case ClientCertificate():
            yield f"{path}.secretName", Reference(CaKind.Secret, part.secret_name)
        case CaRef():
            yield f"{path}.name", Reference(part.kind, part.name)
        case _:
            for name, field in type(part).model_fields.items():
                for nested_reference, nested_path in _iterate_models(
                    getattr(part, name), f"{path}.{field.alias or name}".lstrip(".")
                ):
                    yield from find_references(nested_reference, nested_path)


def _iterate_models(value: Any, path: str) -> Iterator[tuple[BaseModel, str]]:
    if isinstance(value, BaseModel):
        yield value, path
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _iterate_models(item, f"{path}[{index}]")
