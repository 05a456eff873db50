"""Two clusters with a day of the past, and the sample scorer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.web.conftest import browser, closed, page, token_file
from tests.support.recordedprometheus import RecordedPrometheus
from tests.support.scoringservices import ROOT, load, served

__all__ = ["browser", "closed", "page", "token_file"]

CLUSTERS = ("worker01", "worker02")
DAY = 86_400


def busy(cluster: str, at: int) -> float:
    """Share of busy CPUs: a day's slow wave, the clusters' in turns, and a fast one on top."""
    phase = CLUSTERS.index(cluster) * math.pi
    slow = 0.12 * math.sin(2 * math.pi * at / DAY + phase)
    return round(0.5 + slow + 0.1 * math.sin(2 * math.pi * at / 1020 + phase), 4)


@pytest.fixture(scope="package")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RecordedPrometheus]]:
    """Cluster -> its Prometheus, with a sample each minute of the last 25 hours."""
    end = int(time.time()) // 60 * 60
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                RecordedPrometheus(
                    tmp_path_factory.mktemp("past") / name,
                    {'instance:node_cpu_busy:ratio{instance="n1"}': lambda at, name=name: busy(name, at)},  # type: ignore[misc]
                    range(end - 25 * 3600, end + 600, 60),
                )
            )
            for name in CLUSTERS
        }


@pytest.fixture(scope="package")
def sample_scorer() -> Iterator[str]:
    """URL of samples/sample-scorer."""
    with served(load(Path(ROOT) / "samples" / "sample-scorer" / "app.py").app) as url:
        yield url
