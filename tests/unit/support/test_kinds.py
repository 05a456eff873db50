"""Files without tests that `-m` selects are not imported, and no others are left out."""

from __future__ import annotations

import pytest

from tests.support.kinds import PLACES, may_select
from tests.support.uv import ROOT

CORE = "not (kube or browser or whole)"


@pytest.mark.parametrize(
    ("expression", "mark", "expected"),
    [
        (CORE, "kube", False),
        (CORE, "whole", False),
        ("kube", "kube", True),
        # A test of the documentation may need an API server, too.
        ("kube", "whole", True),
        ("browser", "kube", True),
        ("kube or browser or whole", "whole", True),
        (f"not ({CORE})", "whole", True),
        ("soak", "whole", True),
        ("soak and not whole", "whole", False),
    ],
)
def test_place_is_skipped_if_no_test_with_its_mark_is_selected(expression: str, mark: str, expected: bool) -> None:
    assert may_select(expression, {mark}) is expected


@pytest.mark.parametrize("place", PLACES)
def test_place_of_a_mark_exists(place: str) -> None:
    assert (ROOT / place).is_dir() if place.endswith("/") else (ROOT / place).is_file()
