"""Rollback, uninstallation as docs/install.md has it, and a second installation on the volume that stays."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.docs import pages
from tests.node.lab.cluster import Cluster
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, MANAGED, PAGE, RELEASE, World
from tests.support.wait import wait_for

INSTALL = pages.ROOT / "docs" / "install.md"
LABEL = f"app.kubernetes.io/name={RELEASE}"
#: What OCM or Kubernetes keeps in the agents' namespace, which stays for the Secrets that people made in it.
_KUBERNETES_OWN = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
#: Kinds that come and go by themselves.
_PASSING = {
    "events",
    "events.events.k8s.io",
    "endpointslices.discovery.k8s.io",
    "endpoints",
    "leases.coordination.k8s.io",
}


def _kinds(cluster: Cluster, *, namespaced: bool) -> list[str]:
    words = ("api-resources", "--verbs=list", "-o", "name", f"--namespaced={str(namespaced).lower()}")
    return sorted(set(cluster.kubectl(*words).split()) - _PASSING)


def _labelled(cluster: Cluster) -> set[str]:
    """Every object that has the chart's label, of all kinds and namespaces."""
    kinds = ",".join(_kinds(cluster, namespaced=True) + _kinds(cluster, namespaced=False))
    return set(cluster.kubectl("get", kinds, "-A", "-l", LABEL, "-o", "name", "--ignore-not-found").split())


def _left(cluster: Cluster, namespace: str) -> set[str]:
    kinds = ",".join(_kinds(cluster, namespaced=True))
    return set(cluster.kubectl("get", kinds, "-n", namespace, "-o", "name", "--ignore-not-found").split())


def _section(page: str, title: str) -> Iterator[pages.Command]:
    lines = (pages.ROOT / page).read_text().splitlines()
    first = lines.index(f"## {title}") + 1
    last = next((n for n, line in enumerate(lines[first:], first + 1) if line.startswith("## ")), len(lines))
    yield from (command for command in pages.commands(pages.ROOT / page) if first < command.line < last)


def test_a_rollback_scores_as_before(world: World) -> None:
    """The files before this one end with a rollback, of a limit and of a Redis outside of the chart."""
    world.judge()
    *_, last = json.loads(world.helm("history", "--output json"))
    assert last["description"].startswith("Rollback to"), last
    world.wait_ready(world.hub, HUB_NAMESPACE, "app.kubernetes.io/component=redis")
    (container,) = world.pods(world.hub, HUB_NAMESPACE, "app.kubernetes.io/component=exporter")[0]["spec"]["containers"]
    assert "cpu" not in container["resources"]["limits"]
    world.wait_ready(world.hub, HUB_NAMESPACE)
    world.rescore()


def test_an_uninstallation_leaves_nothing_but_what_the_page_says(world: World) -> None:
    assert _labelled(world.hub)
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "pod", "dynamic-scoring-test", "--wait=false")
    for command in _section("docs/install.md", "Uninstall"):
        done = world.reader.type(command)
        assert done.code == 0, str(done)

    def nothing() -> bool:
        kept = {"persistentvolumeclaim/data-dynamic-scoring-redis-0"}
        left = {name for name in _labelled(world.hub) if "customresourcedefinition" not in name} - kept
        for name in MANAGED:
            works = world.hub.items("manifestworks", "-n", name) + world.hub.items("addonplacementscores", "-n", name)
            left |= {f"{name}: {one['kind']}/{one['metadata']['name']}" for one in works}
            left |= {f"on {name}: {one}" for one in _left(world.managed[name], AGENT_NAMESPACE) - _KUBERNETES_OWN}
        assert not left, sorted(left)
        return True

    wait_for(nothing, 90, "nothing to be left", interval=2)


@pytest.mark.parametrize("words", ["helm upgrade", "dynamicscorer.yaml"])
def test_a_second_installation_on_the_kept_volume(world: World, words: str) -> None:
    """The quickstart's own commands once more; both parts in their order."""
    (command, *_) = (one for one in pages.commands(PAGE) if words in one.text and "prometheus" not in one.text)
    done = world.reader.type(command)
    assert done.code == 0, str(done)
    if words == "dynamicscorer.yaml":
        world.wait_ready(world.hub, HUB_NAMESPACE)
        for name in MANAGED:
            wait_for(lambda name=name: world.score(name), 120, f"a score of {name}", interval=1)


def test_removing_the_clusters_leaves_nothing_on_the_machine(world: World) -> None:
    """The page's last command."""
    world.remove()
    assert world.reader.typed[-1].code == 0, str(world.reader.typed[-1])
    for cluster in (world.hub, *world.managed.values()):
        assert not cluster.traces()
