"""Pages about clusters, followed command by command on real API servers.

Without nodes and controllers, these tests show only that the API server accepts the objects. The tests of the hub, of
the chart and of the whole path show that they do their work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.integration.docs import pages, venues
from tests.integration.docs.clusters import Clusters
from tests.integration.docs.pages import PAGES, Command
from tests.integration.docs.venues import Venue
from tests.support.controlplane import ControlPlaneMissingError

# All tests run in one worker, as they share servers and follow each other. Followed in this order, on clusters that
# nobody has used before: the quickstart. Then each of the others.
QUICKSTART = "docs/quickstart.md"
#: Pages on which Helm really changes the release; on the others its values are checked and rendered.
REAL = {QUICKSTART, "docs/install.md", "docs/upgrade.md", "docs/rotation.md", "docs/migration.md"}
#: An address of the hub's node, which a container engine would report.
HUB_IP = "192.0.2.10"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Hub and managed clusters. Without the programs the tests are skipped; in CI they fail."""
    try:
        new_clusters = Clusters(tmp_path_factory.mktemp("clusters"))
    except ControlPlaneMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with new_clusters:
        yield new_clusters


def _commands(page: str) -> list[Command]:
    return [command for command in venues.of(Venue.CLUSTER) if command.page == page]


def test_quickstart_commands_run_on_real_api_servers(clusters: Clusters) -> None:
    clusters.variables["HUB_IP"] = HUB_IP
    outputs = {command.text: clusters.run(command) for command in _commands(QUICKSTART)}
    assert len(outputs) >= 15
    scorer_table = next(output for text, output in outputs.items() if "get dynamicscorers" in text)
    assert "sample-scorer" in scorer_table
    hub = clusters.hub
    agent = json.loads(hub.kubectl("get", "addontemplate", "dynamic-scoring-framework", "-o", "json"))
    assert "rediss://dynamic-scoring-redis.open-cluster-management.svc:6379/0" in json.dumps(agent)
    assert agent["spec"]["registration"] == [{"type": "KubeClient"}]
    for name, port in (("sample-scorer", 30007), ("cluster-free", 30007)):
        scorer = json.loads(hub.kubectl("-n", "open-cluster-management", "get", "dynamicscorer", name, "-o", "json"))
        assert scorer["spec"]["configURL"] == f"http://{HUB_IP}:{port}/config"
    service = json.loads(hub.kubectl("-n", "dynamic-scoring", "get", "service", "sample-scorer-nodeport", "-o", "json"))
    assert service["spec"]["ports"][0]["nodePort"] == 30007
    placement = json.loads(hub.kubectl("-n", "default", "get", "placement", "most-free", "-o", "json"))
    (prioritizer,) = placement["spec"]["prioritizerPolicy"]["configurations"]
    assert prioritizer["scoreCoordinate"]["addOn"] == {"resourceName": "cluster-free", "scoreName": "cluster_free"}


def _others() -> list[str]:
    """Return the pages in order. The one that removes the chart comes last, because the others need it."""
    names = [name for page in PAGES if (name := pages.name(page)) != QUICKSTART and _commands(name)]
    return sorted(names, key=lambda name: name == "docs/install.md")


@pytest.mark.parametrize("page", _others())
def test_page_commands_run_on_real_api_servers(clusters: Clusters, page: str) -> None:
    clusters.install()
    clusters.write_files(pages.blocks(pages.ROOT / page))
    clusters.variables["HUB_IP"] = HUB_IP
    for command in _commands(page):
        clusters.run(command, render=page not in REAL)
