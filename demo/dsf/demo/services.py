"""External programs of the demo: a Prometheus and a node exporter for each cluster, and the scoring services."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from dsf.demo.debian import NODE_EXPORTER, PROMETHEUS, find
from dsf.demo.manifests import FOLDER
from dsf.up.httpcheck import fetch_http, make_http_check
from dsf.up.ports import LOCALHOST, Ports
from dsf.up.supervisor import Program

#: Intervals of scrapes, in Prometheus' notation: at first, because the first score needs two scrapes, and later.
FIRST_SCRAPE_INTERVAL, SCRAPE_INTERVAL = "100ms", "500ms"
_CONFIG_FILE = "prometheus.yml"
#: Seconds between two cycles of each scorer.
_INTERVAL = 10
#: Host name in a scorer's /config for the Prometheus of any cluster.
PROMETHEUS_NAME = "kube-prometheus-kube-prome-prometheus.monitoring.svc:9090"

#: Busy CPUs and used memory of the node, and CPU use of the cluster's own programs; all in percent. A point is at a
#: whole second. With the offset it includes the samples of that second, so that the last point is of now.
_BUSY = 'rate(node_cpu_seconds_total{mode!~"idle|iowait"}[10s] offset -1s)'
_USED = "100 * (1 - node_memory_MemAvailable_bytes offset -1s / node_memory_MemTotal_bytes offset -1s)"
QUERIES = (
    f'100 * sum by (node, device) (label_replace({_BUSY}, "device", "cpu$1", "cpu", "(.*)"))',
    f'sum by (node, device) (label_replace({_USED}, "device", "memory", "", ""))',
    "100 * sum by (node, app) (rate(process_cpu_seconds_total[10s] offset -1s))",
)
#: Time range and step in seconds. The range is a multiple of the step, so that the last sample is a current one.
_RANGE, _STEP = 60, 1


def has_data(prometheus_url: str) -> bool:
    """True if this Prometheus has data for the queries, which it has some seconds after its start."""
    last_point_at = int(time.time()) // _STEP * _STEP
    parameters = urlencode({"query": _BUSY, "time": last_point_at})
    response_body = fetch_http(f"{prometheus_url}/api/v1/query?{parameters}")
    return response_body is not None and bool(json.loads(response_body)["data"]["result"])


@dataclass(frozen=True)
class DemoCluster:
    """A managed cluster of the demo."""

    name: str
    prometheus_port: int
    exporter_port: int
    agent_port: int

    @classmethod
    def choose(cls, name: str, index: int, ports: Ports) -> DemoCluster:
        """Return a cluster with the usual ports, incremented per cluster, or other ones if these are in use."""
        return cls(
            name,
            ports.choose(9090 + index, f"the Prometheus of {name}"),
            ports.choose(9100 + index, f"the node exporter of {name}"),
            ports.choose(18080 + index, f"the agent of {name}"),
        )

    @property
    def prometheus_url(self) -> str:
        """URL of its Prometheus on this machine."""
        return f"http://{LOCALHOST}:{self.prometheus_port}"

    @property
    def prometheus_name(self) -> str:
        """Name of the program of its Prometheus."""
        return f"Prometheus of {self.name}"

    @property
    def host_aliases(self) -> dict[str, str]:
        """Host names that lead to a different server on each cluster."""
        return {PROMETHEUS_NAME: f"{LOCALHOST}:{self.prometheus_port}"}

    def programs(self, folder: Path) -> list[Program]:
        """Return Prometheus and node exporter, with files in `folder`. Raises ToolError if a program is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        self.write_prometheus_config(folder, FIRST_SCRAPE_INTERVAL)
        prometheus = Program(
            self.prometheus_name,
            (
                str(find(PROMETHEUS)),
                f"--config.file={folder / _CONFIG_FILE}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                "--storage.tsdb.retention.time=2h",
                f"--web.listen-address={LOCALHOST}:{self.prometheus_port}",
                f"--web.page-title=Prometheus of {self.name}",
                "--log.level=warn",
            ),
            ready=make_http_check(f"{self.prometheus_url}/-/ready"),
        )
        exporter = Program(
            f"node exporter of {self.name}",
            (
                str(find(NODE_EXPORTER)),
                f"--web.listen-address={LOCALHOST}:{self.exporter_port}",
                # Only collectors that the queries need or that are useful: all of them would be expensive every
                # second.
                "--collector.disable-defaults",
                *(f"--collector.{name}" for name in ("cpu", "loadavg", "meminfo", "netdev", "stat", "time")),
                "--log.level=warn",
            ),
            ready=make_http_check(f"http://{LOCALHOST}:{self.exporter_port}/metrics"),
        )
        return [prometheus, exporter]

    def write_prometheus_config(self, folder: Path, scrape_interval: str) -> None:
        """Write the configuration file of its Prometheus, which reads the file at its start and after SIGHUP."""
        (folder / _CONFIG_FILE).write_text(self.prometheus_config(scrape_interval), encoding="utf-8")

    def prometheus_config(self, scrape_interval: str) -> str:
        """Return the configuration of its Prometheus."""
        targets = {"prometheus": self.prometheus_port, "node-exporter": self.exporter_port, "agent": self.agent_port}
        jobs = "".join(
            f"  - job_name: {app}\n"
            f"    static_configs:\n"
            f"      - targets: ['{LOCALHOST}:{port}']\n"
            f"        labels: {{node: {self.name}-node, app: {app}}}\n"
            for app, port in targets.items()
        )
        return (
            f"global:\n  scrape_interval: {scrape_interval}\n  external_labels: {{cluster: {self.name}}}\n"
            f"scrape_configs:\n{jobs}"
        )


@dataclass(frozen=True)
class ScorerService:
    """The server of a sample."""

    name: str
    port: int
    #: Additional variables, which override those of all samples.
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{LOCALHOST}:{self.port}"

    def program(self) -> Program:
        """Return its program."""
        # Imported late, because Prometheus starts before the settings are loaded.
        from dsf.settings import make_child_environment

        folder = FOLDER / "samples" / self.name
        options = ("--app-dir", str(folder), "--host", LOCALHOST, "--port", str(self.port), "--no-access-log")
        command = ("-m", "uvicorn", *options, "app:app")
        environment = make_child_environment() | {"PYTHONUNBUFFERED": "1", "SCORE_INTERVAL": str(_INTERVAL)}
        if self.name == "sample-scorer":
            environment |= {
                "SOURCE_HOST": f"http://{PROMETHEUS_NAME}",
                "SOURCE_QUERY": "; ".join(QUERIES),
                "SOURCE_RANGE": str(_RANGE),
                "SOURCE_STEP": str(_STEP),
            }
        environment |= self.environment
        return Program(self.name, (sys.executable, *command), environment, ready=make_http_check(f"{self.url}/healthz"))
