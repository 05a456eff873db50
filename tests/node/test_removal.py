"""Rollback, uninstallation as docs/install.md has it, and a second installation on the volume that stays."""

from __future__ import annotations

from tests.node import installation
from tests.node.world import HUB_NAMESPACE, MANAGED, InstalledQuickstart
from tests.support.wait import wait_for


def test_rollback_restores_the_values_and_scoring_goes_on(world: InstalledQuickstart) -> None:
    world.judge()
    before = world.revision()
    limit = "--set hub.resources.limits.cpu=900m"
    world.helm("upgrade", "deploy/helm", "--reuse-values", limit, "--wait --timeout 8m")
    assert _hubs_limit(world) == "900m"
    world.helm("rollback", str(before), "--wait --timeout 8m")
    assert _hubs_limit(world) is None
    world.settle()


def _hubs_limit(world: InstalledQuickstart) -> str | None:
    (pod, *_) = world.wait_ready(world.hub, HUB_NAMESPACE, "app.kubernetes.io/component=hub")
    (container,) = pod["spec"]["containers"]
    limit: str | None = container["resources"]["limits"].get("cpu")
    return limit


def test_uninstallation_keeps_the_documented_objects_only_and_a_new_installation_adopts_them(
    world: InstalledQuickstart,
) -> None:
    """The page's commands, then those of the quickstart, on the kept volume."""
    world.judge()
    assert installation.labelled(world.hub)
    installation.uninstall(world)
    installation.install(world)
    world.wait_ready(world.hub, HUB_NAMESPACE, timeout=180)
    world.type(world.command("sample-scorer/manifests/dynamicscorer.yaml"))
    for name in MANAGED:
        wait_for(lambda name=name: world.score(name), 120, f"a score of {name}", interval=1)


def test_removing_the_clusters_leaves_nothing_on_the_machine(world: InstalledQuickstart) -> None:
    """The page's last command."""
    world.judge()
    world.remove()
    assert world.reader.typed[-1].code == 0, str(world.reader.typed[-1])
    for cluster in (world.hub, *world.managed.values()):
        assert not cluster.traces()
