"""External programs of the demo: a Prometheus and a node exporter for each cluster, and the scoring services."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from dsf.demo.debian import NODE_EXPORTER, PROMETHEUS, find
from dsf.demo.manifests import FOLDER
from dsf.settings import make_child_environment
from dsf.up.ports import LOCALHOST, Ports
from dsf.up.stack import fetch_http, make_http_check
from dsf.up.supervisor import Program

#: Interval of scrapes, in Prometheus' notation. The first score needs two scrapes.
_SCRAPE_INTERVAL = "500ms"
#: Seconds between two cycles of each scorer.
_INTERVAL = 10
#: Host name in a scorer's /config for the Prometheus of any cluster.
PROMETHEUS_NAME = "kube-prometheus-kube-prome-prometheus.monitoring.svc:9090"

#: Busy CPUs and used memory of the node, and CPU use of the cluster's own programs; all in percent.
_BUSY = 'rate(node_cpu_seconds_total{mode!~"idle|iowait"}[10s])'
_USED = "100 * (1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)"
QUERIES = (
    f'100 * sum by (node, device) (label_replace({_BUSY}, "device", "cpu$1", "cpu", "(.*)"))',
    f'sum by (node, device) (label_replace({_USED}, "device", "memory", "", ""))',
    "100 * sum by (node, app) (rate(process_cpu_seconds_total[10s]))",
)
#: Time range and step in seconds. The range is a multiple of the step, so that the last sample is a current one. The
#: time of that sample is a multiple of the step, so the first score needs data that are a step old.
_RANGE, _STEP = 60, 1


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
    def host_aliases(self) -> dict[str, str]:
        """Host names that lead to a different server on each cluster."""
        return {PROMETHEUS_NAME: f"{LOCALHOST}:{self.prometheus_port}"}

    @property
    def has_data(self) -> bool:
        """True if its Prometheus has data for the queries, which it has some seconds after its start."""
        last_sample_at = int(time.time()) // _STEP * _STEP
        parameters = urlencode({"query": _BUSY, "time": last_sample_at})
        response_body = fetch_http(f"{self.prometheus_url}/api/v1/query?{parameters}")
        return response_body is not None and b'"result":[]' not in response_body

    def programs(self, folder: Path) -> list[Program]:
        """Return Prometheus and node exporter, with files in `folder`. Raises ToolError if a program is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "prometheus.yml"
        config.write_text(self.prometheus_config(), encoding="utf-8")
        prometheus = Program(
            f"Prometheus of {self.name}",
            (
                str(find(PROMETHEUS)),
                f"--config.file={config}",
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

    def prometheus_config(self) -> str:
        """Return the configuration file of its Prometheus."""
        targets = {"prometheus": self.prometheus_port, "node-exporter": self.exporter_port, "agent": self.agent_port}
        jobs = "".join(
            f"  - job_name: {app}\n"
            f"    static_configs:\n"
            f"      - targets: ['{LOCALHOST}:{port}']\n"
            f"        labels: {{node: {self.name}-node, app: {app}}}\n"
            for app, port in targets.items()
        )
        return (
            f"global:\n  scrape_interval: {_SCRAPE_INTERVAL}\n  external_labels: {{cluster: {self.name}}}\n"
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
