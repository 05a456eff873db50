"""A real Prometheus with past samples, which promtool imports as blocks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from dsf.up.httpcheck import make_http_check
from tests.support.child import Child
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

#: A metric with its labels as PromQL writes them -> its value at a time in unix seconds.
Past = Mapping[str, Callable[[int], float]]


class RecordedPrometheus:
    """A Prometheus with these samples, which scrapes nothing. A context manager."""

    def __init__(self, folder: Path, past: Past, times: range) -> None:
        self._folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True)
        (folder / "prometheus.yml").write_text("scrape_configs: []\n", encoding="utf-8")
        lines: list[str] = []
        for series, value in past.items():
            lines.append(f"# TYPE {series.partition('{')[0]} gauge")
            lines += [f"{series} {value(at)!r} {at}" for at in times]
        (folder / "past").write_text("\n".join([*lines, "# EOF", ""]), encoding="utf-8")
        command = ["tsdb", "create-blocks-from", "openmetrics", str(folder / "past"), str(folder / "data")]
        process = subprocess.run([find("promtool"), *command], capture_output=True, text=True, check=False, timeout=300)
        assert process.returncode == 0, process.stdout + process.stderr

    def __enter__(self) -> Self:
        command = [
            str(find("prometheus")),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            "--storage.tsdb.retention.time=10y",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        self._child = Child(command, self._folder / "log")
        wait_for(make_http_check(f"{self.url}/-/ready"), 30, f"Prometheus; {self._child.tail()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._child.kill()
