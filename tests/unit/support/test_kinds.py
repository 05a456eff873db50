"""Files without tests that `-m` selects are not imported, no others are skipped, and all API servers are named."""

from __future__ import annotations

import re

import pytest

from tests.support.kinds import MARKS_BY_PATH, may_select
from tests.support.uv import ROOT

#: Files that start API servers beside the shared one, and the reason.
OWN_API_SERVERS = {
    "deploy/tests/integration/test_portforward_rights.py": "a server that behaves as the oldest supported version",
    "tests/e2e/test_migration.py": "a hub and two managed clusters, of which upstream's programs and ours take turns",
    "tests/e2e/test_placement_order.py": "OCM's placement controller schedules all Placements of a server",
    "tests/e2e/test_registration.py": "a hub and a managed cluster, which OCM's own registration joins",
    "tests/e2e/world.py": "a hub and two managed clusters, each with a server",
    "tests/integration/docs/clusters.py": "a hub and a managed cluster, for the commands of pages",
    "tests/support/controlplane_fixtures.py": "the shared one",
}
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


@pytest.mark.parametrize("place", MARKS_BY_PATH)
def test_place_of_a_mark_exists(place: str) -> None:
    assert (ROOT / place).is_dir() if place.endswith("/") else (ROOT / place).is_file()


def test_api_servers_beside_the_shared_one_are_named() -> None:
    folders = [ROOT / "tests", ROOT / "demo" / "tests", ROOT / "deploy" / "tests", *ROOT.glob("packages/*/tests")]
    starting = {
        str(file.relative_to(ROOT))
        for folder in folders
        for file in folder.rglob("*.py")
        if re.search(r"(?<!class )\bControlPlane\(", file.read_text(encoding="utf-8"))
    }
    assert starting == OWN_API_SERVERS.keys()
