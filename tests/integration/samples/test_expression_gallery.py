"""The expressions of samples/expressions on a real Prometheus with recorded series of kube-prometheus-stack."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ClusterFacts
from dsf.api.templates import Renderer
from dsf.cycle.stages import Cycle, Stages
from dsf.settings import Settings
from tests.integration.cycle.test_stages import NoSecrets
from tests.support.recordedprometheus import RecordedPrometheus

_ROOT = Path(__file__).parents[3]
_MANIFESTS = sorted(
    set((_ROOT / "samples" / "expressions").glob("*.yaml")) - {_ROOT / "samples/expressions/scorer-test.yaml"}
)
_PAGE = _ROOT / "docs" / "expression-gallery.md"
_CLUSTER = ClusterFacts(name="paris", labels={"price-per-hour": "0.14", "region": "eu-west-1"}, claims={})
#: Time of the newest sample, at which every source is queried.
_END = int(time.time()) // 300 * 300 - 3600
_LENGTH = 7 * 3600

#: Series of two nodes -> their value so many seconds after the first sample.
_SERIES = {
    # 60 and 40 percent idle at the end; the first node had one tenth more in each hour before.
    'node_cpu_seconds_total{instance="a",mode="idle"}': lambda at: 0.8 * at - 0.2 / (2 * _LENGTH) * at * at,
    'node_cpu_seconds_total{instance="b",mode="idle"}': lambda at: 0.4 * at,
    'node_memory_MemAvailable_bytes{instance="a"}': lambda at: 3e9,
    'node_memory_MemAvailable_bytes{instance="b"}': lambda at: 1e9,
    'node_memory_MemTotal_bytes{instance="a"}': lambda at: 8e9,
    'node_memory_MemTotal_bytes{instance="b"}': lambda at: 8e9,
    'kube_node_status_allocatable{node="a",resource="nvidia_com_gpu"}': lambda at: 8.0,
    'kube_pod_container_resource_requests{pod="p",node="a",resource="nvidia_com_gpu"}': lambda at: 2.0,
    'kepler_node_platform_joules_total{instance="a"}': lambda at: 300.0 * at,
    'kepler_node_platform_joules_total{instance="b"}': lambda at: 350.0 * at,
    'apiserver_request_duration_seconds_bucket{verb="GET",le="0.1"}': lambda at: 0.5 * at,
    'apiserver_request_duration_seconds_bucket{verb="GET",le="0.5"}': lambda at: 1.0 * at,
    'apiserver_request_duration_seconds_bucket{verb="GET",le="+Inf"}': lambda at: 1.0 * at,
    'apiserver_request_total{code="200"}': lambda at: 0.99 * at,
    'apiserver_request_total{code="500"}': lambda at: 0.01 * at,
    'node_power_supply_capacity{instance="a"}': lambda at: 100.0 - 40.0 * at / _LENGTH,
}
#: Score by the name of the manifest.
_SCORES = {
    "api-latency": 6.9,
    "battery": 60.0,
    "carbon": -12.0,
    "error-rate": 60.0,
    "free-cpu": 50.2,
    "free-gpus": 50.0,
    "free-memory": 25.0,
    "headroom": 47.4,
    "power": 50.0,
    "price": 60.0,
}


def manifest(path: Path) -> DynamicScorer:
    (document,) = parse_documents(path.read_text(encoding="utf-8"), path.name)
    assert isinstance(document, ParsedDocument), str(document)
    assert isinstance(document.object, DynamicScorer)
    return document.object


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    begin = _END - _LENGTH
    past = {series: lambda at, value=value: float(value(at - begin)) for series, value in _SERIES.items()}
    with RecordedPrometheus(tmp_path_factory.mktemp("gallery") / "data", past, range(begin, _END + 1, 30)) as server:
        yield server.url


def test_gallery_has_ten_manifests() -> None:
    assert [path.stem for path in _MANIFESTS] == sorted(_SCORES)


@pytest.mark.parametrize("path", _MANIFESTS, ids=lambda path: path.stem)
def test_score_of_recorded_series(prometheus: str, path: Path) -> None:
    summary = resolve(manifest(path), renderer=Renderer(_CLUSTER)).summary
    endpoint = re.sub("^http://[^/]*", prometheus, summary.source_endpoint)
    summary = summary.model_copy(update={"source_endpoint": endpoint})
    cycle = Cycle(summary.name, "run", summary, math.inf, range_end=float(_END), cluster=_CLUSTER.name)
    stages = Stages(Settings(), NoSecrets())
    stages.score(cycle, b"".join(stages.fetch(cycle).pieces))
    assert cycle.response is not None
    (result,) = cycle.response.results
    assert result.score == pytest.approx(_SCORES[path.stem], abs=0.3)
    assert not cycle.response.refusal_counts


@pytest.mark.parametrize("path", _MANIFESTS, ids=lambda path: path.stem)
def test_page_shows_query_and_expression_of_each_manifest(path: Path) -> None:
    spec = manifest(path).spec
    row = next(line for line in _PAGE.read_text(encoding="utf-8").splitlines() if f"{path.name})" in line)
    assert f"`{spec.scoring.expression}`" in row
    query = spec.source.params.query if spec.source.params else None
    assert query is None or f"`{query}`".replace("|", "\\|") in row
