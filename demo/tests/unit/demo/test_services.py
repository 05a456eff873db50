from __future__ import annotations

import yaml

from dsf.api.promql import split_queries
from dsf.demo import services
from dsf.demo.services import DemoCluster, ScorerService


def test_prometheus_has_the_same_name_on_both_clusters() -> None:
    first, other = DemoCluster("worker01", 1, 2, 3), DemoCluster("worker02", 4, 5, 6)
    assert first.host_aliases == {services.PROMETHEUS_NAME: "127.0.0.1:1"}
    assert other.host_aliases == {services.PROMETHEUS_NAME: "127.0.0.1:4"}


def test_prometheus_scrapes_itself_the_node_and_the_agent() -> None:
    cluster = DemoCluster("worker01", 9990, 9991, 9992)
    config = yaml.safe_load(cluster.prometheus_config("250ms"))
    assert config["global"]["scrape_interval"] == "250ms"
    targets = {
        job["job_name"]: (job["static_configs"][0]["targets"], job["static_configs"][0]["labels"])
        for job in config["scrape_configs"]
    }
    assert targets == {
        "prometheus": (["127.0.0.1:9990"], {"node": "worker01-node", "app": "prometheus"}),
        "node-exporter": (["127.0.0.1:9991"], {"node": "worker01-node", "app": "node-exporter"}),
        "agent": (["127.0.0.1:9992"], {"node": "worker01-node", "app": "agent"}),
    }


def test_sample_scorer_receives_the_queries_of_the_demo() -> None:
    program = ScorerService("sample-scorer", 8000).program()
    assert program.environment is not None
    assert split_queries(program.environment["SOURCE_QUERY"]) == list(services.QUERIES)
    assert program.environment["SOURCE_HOST"] == f"http://{services.PROMETHEUS_NAME}"
    # The last sample of a range query is of now only when the range is a multiple of the step.
    assert int(program.environment["SOURCE_RANGE"]) % int(program.environment["SOURCE_STEP"]) == 0
