"""Workload identities: cloud tokens for the agents' ServiceAccount."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from dsf.api.fieldtypes import MAX_PAIRS, HeaderValue, HttpsUrl, SecretKeyRef, Url
from dsf.api.meta import Rule, SpecModel

#: Default server for tokens of Azure.
_ENTRA: Final = "https://login.microsoftonline.com"
#: Default server for tokens of Google's service accounts.
_IAM: Final = "https://iamcredentials.googleapis.com"
#: The clouds' own token servers.
CLOUD_SERVERS: Final = frozenset({_ENTRA, _IAM})


def _make_schema_pattern(pattern: str) -> Any:
    # Repeat the pattern for the schema, because the CRD would otherwise contain the pattern of `HeaderValue`.
    return Field(pattern=pattern, json_schema_extra={"pattern": pattern})


class Azure(SpecModel):
    """A token of Microsoft Entra for the agents' ServiceAccount (workload identity), sent as Bearer."""

    tenant_id: HeaderValue = Field(alias="tenantID", description="Id of the tenant.", min_length=1)
    client_id: HeaderValue = Field(
        alias="clientID",
        description="Id of the application or managed identity that trusts the ServiceAccount "
        "dynamic-scoring-agent-tokens.",
        min_length=1,
    )
    scope: HeaderValue = Field(
        default="https://prometheus.monitor.azure.com/.default",
        description="Scope of the token; unset: Azure Monitor's Prometheus.",
        min_length=1,
    )
    token_audience: HeaderValue = Field(
        default="api://AzureADTokenExchange", description="Audience of the ServiceAccount's token.", min_length=1
    )
    authority_url: HttpsUrl = Field(
        default=_ENTRA,
        alias="authorityURL",
        description="Token server; another one in national clouds.",
    )


class Gcp(SpecModel):
    """A token of Google, sent as Bearer: for the agents' ServiceAccount (workload identity), or for a key."""

    rules = (
        Rule(
            "either audience or key",
            "has(self.audience) != has(self.key)",
            lambda self: (self.audience is None) != (self.key is None),
        ),
        Rule(
            "serviceAccount goes with audience alone",
            "has(self.audience) || !has(self.serviceAccount)",
            lambda self: self.audience is not None or self.service_account is None,
        ),
    )

    audience: Annotated[HeaderValue, _make_schema_pattern(r"^(//|identitynamespace:)")] | None = Field(
        default=None,
        description="The provider of the pool that trusts the ServiceAccount dynamic-scoring-agent-tokens: "
        "//iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER.",
    )
    key: SecretKeyRef | None = Field(
        default=None, description="JSON key of a Google service account, without a workload identity."
    )
    service_account: Annotated[HeaderValue, _make_schema_pattern(r"^[^/?#\s]+@[^/?#\s]+$")] | None = Field(
        default=None, description="With audience: address of the Google service account to impersonate; unset: none."
    )
    scopes: tuple[HeaderValue, ...] = Field(
        default=("https://www.googleapis.com/auth/monitoring.read",),
        description="Scopes of the token; unset: reading Managed Prometheus.",
        min_length=1,
        max_length=MAX_PAIRS,
    )
    token_audience: HeaderValue | None = Field(
        default=None, description="Audience of the ServiceAccount's token; unset: `https:` and the audience above."
    )
    token_url: Url | None = Field(default=None, alias="tokenURL", description="Token server; unset: Google's.")
    credentials_url: Url = Field(
        default=_IAM,
        alias="credentialsURL",
        description="Server that issues tokens of the service account.",
    )

    @property
    def server(self) -> str:
        """The URL of the token server."""
        default = "https://sts.googleapis.com/v1/token" if self.key is None else "https://oauth2.googleapis.com/token"
        return self.token_url or default
