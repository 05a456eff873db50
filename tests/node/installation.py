"""Installs the framework on the hub as docs/quickstart.md does, uninstalls it as docs/install.md does, and checks what
remains.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.integration.docs import pages
from tests.node.lab.cluster import Cluster
from tests.node.world import AGENT_NAMESPACE, HUB_IMAGE, HUB_NAMESPACE, MANAGED, RELEASE, InstalledQuickstart
from tests.support.wait import wait_for

LABEL = f"app.kubernetes.io/name={RELEASE}"
#: Objects with the chart's label that remain according to docs/install.md.
STAYS = {"persistentvolumeclaim/data-dynamic-scoring-redis-0"}
_INSTALL = pages.ROOT / "docs" / "install.md"
#: Objects that OCM or Kubernetes keeps in the agents' namespace, which remains for Secrets that users created there.
_KUBERNETES_OWN = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
#: Kinds whose objects appear and disappear by themselves.
_PASSING = {
    "events",
    "events.events.k8s.io",
    "endpointslices.discovery.k8s.io",
    "endpoints",
    "leases.coordination.k8s.io",
}


def install(world: InstalledQuickstart, folder: str = ".", *helm_options: str) -> None:
    """Type the page's command for the chart, with that of another folder and more of helm's words."""
    command = world.command("helm upgrade --install dynamic-scoring-framework")
    world.type(" ".join((command.replace(" deploy/", f" {folder}/deploy/"), *helm_options)))


def furnish(world: InstalledQuickstart, image: str = HUB_IMAGE) -> None:
    """Run the page's test pod with this image, and its scorers, and wait until both clusters have a score."""
    place_test_pod(world, image)
    world.type(world.command("sample-scorer/manifests/dynamicscorer.yaml"))
    world.type(world.command("deploy/utils/cluster-free-scorer.yaml"))
    for name in MANAGED:
        wait_for(lambda name=name: world.score(name), 300, f"a score of {name}", interval=1)


def place_test_pod(world: InstalledQuickstart, image: str = HUB_IMAGE) -> None:
    """Replace the page's test pod by a new one."""
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "pod", "dynamic-scoring-test", "--ignore-not-found", "--now")
    manifest = (pages.ROOT / "deploy" / "utils" / "test-pod.yaml").read_text()
    world.hub.kubectl("apply", "-f", "-", stdin=manifest.replace(HUB_IMAGE, image))
    world.type(world.command("pod/dynamic-scoring-test --timeout"))


def uninstall(world: InstalledQuickstart) -> None:
    """Type the page's commands, and wait until only the documented objects remain."""
    for command in _section("Uninstall"):
        world.type(command)
    wait_until_gone(world)


def wait_until_gone(world: InstalledQuickstart) -> None:
    """Wait until only the documented objects of docs/install.md remain, on the hub and elsewhere."""
    # The page's pod has the chart's label, so that Redis lets it in.
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "pod", "dynamic-scoring-test", "--ignore-not-found", "--now")

    def nothing() -> bool:
        remaining = {name for name in labelled(world.hub) if "customresourcedefinition" not in name} - STAYS
        for name in MANAGED:
            works = world.hub.items("manifestworks", "-n", name) + world.hub.items("addonplacementscores", "-n", name)
            remaining |= {f"{name}: {work['kind']}/{work['metadata']['name']}" for work in works}
            remaining |= {
                f"on {name}: {name_of_object}"
                for name_of_object in _left(world.managed[name], AGENT_NAMESPACE) - _KUBERNETES_OWN
            }
        assert not remaining, sorted(remaining)
        return True

    wait_for(nothing, 120, "nothing to be left", interval=2)


def forget(world: InstalledQuickstart) -> None:
    """Remove the objects that an uninstallation keeps: the volume of Redis' data, the owners of names, and the CRDs."""
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "pvc", "data-dynamic-scoring-redis-0", "--ignore-not-found")
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "configmap", "dynamic-scoring-names", "--ignore-not-found")
    world.hub.kubectl("delete", "-f", str(pages.ROOT / "deploy" / "helm" / "files" / "crds.yaml"), "--ignore-not-found")


def labelled(cluster: Cluster) -> set[str]:
    """Return every object that has the chart's label, of all kinds and namespaces."""
    kinds = ",".join(_kinds(cluster, namespaced=True) + _kinds(cluster, namespaced=False))
    return set(cluster.kubectl("get", kinds, "-A", "-l", LABEL, "-o", "name", "--ignore-not-found").split())


def _kinds(cluster: Cluster, *, namespaced: bool) -> list[str]:
    api_resources = ("api-resources", "--verbs=list", "-o", "name", f"--namespaced={str(namespaced).lower()}")
    return sorted(set(cluster.kubectl(*api_resources).split()) - _PASSING)


def _left(cluster: Cluster, namespace: str) -> set[str]:
    kinds = ",".join(_kinds(cluster, namespaced=True))
    return set(cluster.kubectl("get", kinds, "-n", namespace, "-o", "name", "--ignore-not-found").split())


def _section(title: str) -> Iterator[str]:
    lines = _INSTALL.read_text().splitlines()
    first = lines.index(f"## {title}") + 1
    last = next((n for n, line in enumerate(lines[first:], first + 1) if line.startswith("## ")), len(lines))
    yield from (command.text for command in pages.commands(_INSTALL) if first < command.line < last)
