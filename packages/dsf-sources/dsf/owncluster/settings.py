"""Settings of the sources `Kubernetes` and `Object`."""

from __future__ import annotations

from pydantic import Field

from dsf.settings import Settings


class OwnClusterSettings(Settings):
    """The settings of the framework, and those of the sources."""

    # --- further sources ---------------------------------------------------------------------------------------
    agent_objects: list[str] = Field(
        default=[],
        description="JSON array: kinds of objects that scorers with the source Object may read, by plural and API "
        "group such as deployments.apps, or pods. The agent's account also needs the right to list them.",
    )
