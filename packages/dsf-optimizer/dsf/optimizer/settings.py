"""Settings of the optimiser."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from dsf.settings import Settings

#: Port of `dsf optimizer`.
DEFAULT_PORT: Final = 8338


class OptimizerSettings(Settings):
    """The settings of the framework, and those of the optimiser."""

    # --- optimiser ---------------------------------------------------------------------------------------------
    optimizer_auth: Literal["kubernetes", "token", "none"] = Field(
        default="kubernetes",
        description="Authentication: kubernetes checks tokens on the hub (TokenReview, SubjectAccessReview); token is "
        "one token with all rights, from client_token_file; none is refused unless listen_host is a loopback "
        "address.",
    )
    optimizer_cluster_selector: str = Field(
        default="label:cluster-name",
        description="How Placements select a cluster: label:KEY, claim:NAME, or name (CEL, OCM 1.0 or newer).",
    )
    optimizer_time_limit: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="Seconds of one search, the limit for requests, and how long a plan waits for those before it.",
    )
