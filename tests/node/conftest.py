"""All tests on real pods share one set of clusters. Without root or other requirements they are skipped; in CI they
fail.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.node.lab import clusters, folders, host, kind
from tests.node.lab.command import CannotRunError
from tests.node.world import InstalledQuickstart

#: The files in the order in which they can share the clusters: files that remove things come last. Enforcement of
#: NetworkPolicies interrupts connections, which costs cycles, so no file that counts cycles follows it directly.
_ORDER = [
    "quickstart",
    "hub_api",
    "page",
    "commands",
    "images",
    "restarts",
    "policies",
    "resources",
    "sources",
    "upgrades",
    "modes",
    "redis",
    "sentinel",
    "deploying",
    "removal",
    "compose",
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files by _ORDER. The first test also waits for the clusters; if they cannot run, only one test reports
    why.
    """
    node_items = [item for item in items if item.path.parent == folders.HERE]
    node_items.sort(key=lambda item: _ORDER.index(item.path.stem.removeprefix("test_")))
    if reason_against():
        config.hook.pytest_deselected(items=node_items[1:])
        node_items = node_items[:1]
    items[:] = [item for item in items if item.path.parent != folders.HERE] + node_items
    for item in node_items:
        item.add_marker(pytest.mark.timeout(1500))
    if node_items and not (reason_against() or kind.is_selected() or config.option.collectonly):
        # Build outside of a test's timeout: on a busy machine the programs take half an hour to build.
        with contextlib.suppress(CannotRunError):
            clusters.programs()


def reason_against() -> str:
    return kind.reason_against() if kind.is_selected() else host.reason_against()


@pytest.fixture(scope="session")
def lab() -> Iterator[None]:
    """Prepare the machine for clusters, and restore it after the last test."""
    if obstacle := reason_against():
        cannot(obstacle)
    if kind.is_selected():
        yield
        return
    with clusters.lock():
        try:
            try:
                clusters.prepare()
            except CannotRunError as error:
                cannot(str(error))
            yield
        finally:
            if not folders.KEPT.exists():
                clusters.down()


@pytest.fixture(scope="session")
def world(lab: None) -> Iterator[InstalledQuickstart]:
    """The clusters as docs/quickstart.md leaves them."""
    with InstalledQuickstart() as environment:
        yield environment


@pytest.fixture(scope="session")
def own_nodes() -> None:
    """For tests that reach into a node: its processes, networks and cgroups."""
    if kind.is_selected():
        pytest.skip("reaches into the nodes, which are kind's here")


def cannot(obstacle: str) -> None:
    """Skip, or fail in CI."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(obstacle, pytrace=False)
    pytest.skip(obstacle)
