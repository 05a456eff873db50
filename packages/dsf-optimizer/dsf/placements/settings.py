"""Settings of the explanation of Placements."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dsf.settings import Settings


class PlacementSettings(Settings):
    """The settings of the framework, and those of OCM's scheduler."""

    # --- placements --------------------------------------------------------------------------------------------
    placement_debugger: str = Field(
        default="",
        pattern=r"^$|^https?://[^/\s]+/?$",
        description="Address of OCM's placement controller, https://HOST:PORT, whose scheduler then evaluates "
        "Placements. Without it, `dsf` computes the values.",
    )
    placement_debugger_token_file: Path | None = Field(
        default=None,
        description="File with a token for it, whose user may `get` the nonResourceURL /debug/placements/*.",
    )
