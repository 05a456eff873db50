"""Memory of an agent whose scorers are due together, with sources whose responses have the maximum size."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, Stages, store_payload
from dsf.settings import Settings
from dsf.sources.responsestorage import ResponseBudget, ResponseStorage
from tests.support.httpserver import ScriptedServer, zipped

_CYCLES = 8


def _answer(megabytes: int) -> bytes:
    """Return a matrix of one series after the other."""
    series = b'{"metric":{"a":"b"},"values":[%s]}' % b",".join([b'[1700000000,"1"]'] * 1000)
    return b'{"status":"success","data":{"resultType":"matrix","result":[%s]}}' % b",".join(
        [series] * (megabytes * 1_000_000 // len(series))
    )


def _anonymous() -> float:
    """Megabytes of this process that the system cannot take back."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def _measure(url: str, folder: Path) -> dict[str, Any]:
    """Fetch in as many threads as an agent has, in a separate process."""
    settings = Settings(agent_spool_dir=folder)
    stages, budget = Stages(settings, None), ResponseBudget(2 * settings.max_source_bytes)  # type: ignore[arg-type]
    summary = ScorerSummary(
        name="s", score_name="s", source_type="Prometheus", source_endpoint=url, source_query="up", scoring_endpoint=url
    )
    sizes, cycles_finished = [], threading.Event()

    def run() -> None:
        cycle = Cycle("s", "1", summary, time.monotonic() + 300, storage=ResponseStorage(budget, folder))
        with cycle.storage:
            sizes.append(len(store_payload(folder, stages.fetch(cycle).pieces)))

    before = peak = _anonymous()
    threads = [threading.Thread(target=run) for _ in range(_CYCLES)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        peak = max(peak, _anonymous())
        cycles_finished.wait(0.005)
    return {"grown": peak - before, "sizes": sizes}


def test_cycles_due_together_have_bounded_memory(tmp_path: Path) -> None:
    with ScriptedServer(zipped(_answer(40))) as server:
        process = subprocess.run(
            [sys.executable, "-m", __name__, server.url, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[3],
        )
    assert process.returncode == 0, process.stderr[-2000:]
    measurement = json.loads(process.stdout)
    assert [size > 39_000_000 for size in measurement["sizes"]] == [True] * _CYCLES
    assert measurement["grown"] < 100, measurement
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]))))
