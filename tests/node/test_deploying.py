"""`make image`, `make deploy` and `make undeploy`, typed on the hub that the quickstart made: an engine builds, nodes
take the images, and helm installs them. Each test brings about what it needs, so any of them may run alone."""

from __future__ import annotations

import pytest

from tests.node import installation
from tests.node.lab.cluster import Cluster
from tests.node.world import AGENT_IMAGE, AGENT_NAMESPACE, HUB_IMAGE, HUB_NAMESPACE, MANAGED, InstalledQuickstart
from tests.support.wait import wait_for

_NAMES = {"hub": HUB_IMAGE.rpartition(":")[0], "agent": AGENT_IMAGE.rpartition(":")[0]}
_HELM = "--wait --timeout 8m"
_BUNDLED_REDIS = "app.kubernetes.io/component=redis"


@pytest.fixture(scope="module")
def images(world: InstalledQuickstart) -> dict[str, str]:
    """Part -> the image that `make image` has built and loaded."""
    world.judge()
    world.type("kubectl config use-context kind-hub")
    world.type(f'make image CLUSTERS="{" ".join(MANAGED)}"')
    tagged_images = {}
    for part, name in _NAMES.items():
        image_id = world.type(f"docker image inspect --format '{{{{.Id}}}}' {name}:dev").strip()
        tagged_images[part] = f"{name}:dev-{image_id.removeprefix('sha256:')[:12]}"
    return tagged_images


@pytest.fixture(scope="module")
def deployed(world: InstalledQuickstart, images: dict[str, str]) -> dict[str, str]:
    """The page's release, upgraded by `make deploy`."""
    world.type(f'make deploy ARGS="{_HELM}"')
    return images


def _on_node(cluster: Cluster) -> set[str]:
    """Return the names of images on a cluster's node, as kubelet reports them."""
    (node,) = cluster.items("nodes")
    return {name for image in node["status"].get("images") or [] for name in image.get("names") or []}


def test_make_image_loads_each_image_where_its_pods_run(world: InstalledQuickstart, images: dict[str, str]) -> None:
    for cluster in (world.hub, *world.managed.values()):
        expected_images = set(images.values()) if cluster is world.hub else {images["agent"]}

        def loaded(cluster: Cluster = cluster, expected: set[str] = expected_images) -> bool:
            loaded_images = {name for name in _on_node(cluster) if name in images.values()}
            assert loaded_images == expected, f"{cluster.name} has {loaded_images}"
            return True

        wait_for(loaded, 120, f"the images on {cluster.name}", interval=1)


def _runs_them(world: InstalledQuickstart, images: dict[str, str]) -> bool:
    """Check that every pod of ours has an image that was built here. Raises AssertionError while one has another
    image.
    """
    redis = {pod["metadata"]["name"] for pod in world.pods(world.hub, HUB_NAMESPACE, _BUNDLED_REDIS)}
    for part, cluster, namespace in (
        ("hub", world.hub, HUB_NAMESPACE),
        *(("agent", managed_cluster, AGENT_NAMESPACE) for managed_cluster in world.managed.values()),
    ):
        pods = [pod for pod in world.all_ready(cluster, namespace) if pod["metadata"]["name"] not in redis]
        running_images = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
        assert running_images == {images[part]}, f"{cluster.name}: {running_images}"
    return True


def test_make_deploy_updates_the_images_of_an_installation(
    world: InstalledQuickstart, deployed: dict[str, str]
) -> None:
    wait_for(lambda: _runs_them(world, deployed), 180, "pods with the images that were built", interval=1)
    world.rescore()


def test_make_undeploy_leaves_nothing_and_make_deploy_installs_anew(
    world: InstalledQuickstart, deployed: dict[str, str]
) -> None:
    world.type('make undeploy ARGS="--timeout 8m"')
    installation.wait_until_gone(world)
    world.type(f'make deploy ARGS="--values deploy/exposure/nodeport.yaml --set redis.exposure.host=$HUB_IP {_HELM}"')
    installation.furnish(world)
    wait_for(lambda: _runs_them(world, deployed), 180, "pods with the images that were built", interval=1)
    world.rescore()
