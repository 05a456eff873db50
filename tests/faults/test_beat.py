"""Beat stands still: everything that people look at says that no ticks are sent, although all scores are fresh."""

from __future__ import annotations

from pathlib import Path

from dsf import keys
from dsf.store.ticks import LATE
from tests.faults.fleet import Fleet, scores
from tests.support.child import stopped
from tests.support.webprocess import WebProcess

INTERVAL = 10


def test_a_beat_that_stands_still_is_seen_everywhere(tmp_path: Path) -> None:
    with Fleet(tmp_path / "stack") as fleet:
        fleet.scorer("sample", scores(10), interval=INTERVAL)
        fleet.wait_success("sample", more=1)
        url = fleet.redis_server.url
        with WebProcess(url, tmp_path / "web.log", manifests=fleet.manifests) as page:
            beat = fleet.processes["beat"]
            with stopped(beat):
                # As if that much time had passed since: the pair is due, and beat does not move its due time.
                fleet.redis.zincrby(keys.DUE, -LATE - INTERVAL, "c1/sample")
                fleet.until(lambda: fleet.page("exporter", "/readyz").status_code == 503, "the exporter's readiness")
                assert "no ticks are sent: c1/sample" in fleet.page("exporter", "/readyz").text
                assert fleet.metric("exporter", "dynamic_scoring_ticks_stopped") == 1
                status = fleet.dsf("status")
                assert (status.returncode, "no ticks are sent: c1/sample" in status.stdout) == (1, True)
                # The page shows what it has read for some seconds.
                fleet.until(lambda: "No ticks are sent: c1/sample" in page.get("/").text, "the page's headline")
                assert "scores are fresh" not in page.get("/").text

            fleet.until(lambda: fleet.page("exporter", "/readyz").status_code == 200, "the exporter's readiness")
            assert fleet.metric("exporter", "dynamic_scoring_ticks_stopped") == 0
            fleet.until(lambda: fleet.dsf("status").returncode == 0, "`dsf status` to find nothing wrong")
            fleet.until(lambda: "No ticks are sent" not in page.get("/").text, "the page's headline")
