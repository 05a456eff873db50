"""Numbers from environment variables, for the parameters of a scorer."""

from __future__ import annotations

import math
import os

from dsf.scorer.errors import ScorerError


def env_number(variable: str, default: float, *, least: float | None = None, whole: bool = False) -> float:
    """Return the number in an environment variable; `default` when it is not set or empty.

    Raises ScorerError when it is not finite, less than `least`, or has a fraction where it must be `whole`: a
    scorer with a mistyped threshold must not start.
    """
    text = os.environ.get(variable, "").strip()
    try:
        value = float(text or default)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (least is not None and value < least) or (whole and not value.is_integer()):
        requirement = "a whole number" if whole else "a number"
        requirement += "" if least is None else f" from {least:g} on"
        raise ScorerError(f"the environment variable {variable} is {text!r}; it must be {requirement}")
    return value
