"""The project's own images, run as the chart runs them: no writes, any user, no rights, no network."""

from __future__ import annotations

import pytest

from tests.node.lab import engine
from tests.node.lab.command import run
from tests.node.lab.folders import ROOT
from tests.node.lab.images import PYTHON
from tests.node.world import AGENT_IMAGE, HUB_IMAGE, InstalledQuickstart

#: Bytes that an agent's image may have beyond its base.
AGENT_SIZE = 120_000_000
#: As OpenShift has it: a user that no file knows, in group 0.
_CONFINED = (
    *("run", "--rm", "--read-only", "--tmpfs=/tmp", "--user=1000650000:0", "--cap-drop=ALL", "--network=none"),
    "--security-opt=no-new-privileges",
)

pytestmark = pytest.mark.usefixtures("own_nodes", "world")


@pytest.mark.parametrize("image", [HUB_IMAGE, AGENT_IMAGE])
def test_image_runs_without_rights_and_network(image: str) -> None:
    assert "Usage" in run(*engine.docker(*_CONFINED, image, "--help"))


@pytest.mark.parametrize("image", [HUB_IMAGE, AGENT_IMAGE])
def test_image_contains_no_writable_folders(image: str) -> None:
    """Even without --read-only, no folder but /tmp belongs to the image's user or to group 0."""
    left_out = " ".join(f"-not -path '{path}*'" for path in ("/tmp", "/var/tmp", "/proc", "/dev"))
    find = rf"find / -xdev -type d \( ! -readable -o ! -executable \) -prune -o -type d -writable {left_out} -print"
    writable_folders = run(
        *engine.docker("run", "--rm", "--network=none", "--entrypoint=sh", image, "-c", find)
    ).split()
    assert [path for path in writable_folders if not path.startswith(("/run/lock", "/var/lib/dsf"))] == []


def test_agent_image_is_small(world: InstalledQuickstart) -> None:
    sizes = [int(run(*engine.docker("image", "inspect", "--format={{.Size}}", name))) for name in (AGENT_IMAGE, PYTHON)]
    assert sizes[0] - sizes[1] <= AGENT_SIZE, sizes


def test_sample_plugin_is_built_into_the_agent_image() -> None:
    image = "local/agent-with-csv:test"
    engine.build(ROOT / "samples" / "csv-source", image, "--build-arg", f"AGENT={AGENT_IMAGE}")
    say = "from dsf.sources import find_source; print(find_source('csv.example.com').args[1])"
    output = run(*engine.docker(*_CONFINED, "--entrypoint=python3", image, "-c", say))
    assert output.strip() == "source type 'csv.example.com' (dsf-csv-source 0.1.0, dsf_csv_source:CSV)"
