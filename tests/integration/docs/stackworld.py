"""A running stack for tests that run the commands of the documentation.

It has a scorer on two clusters, a Flower that can start tasks, and two Prometheus servers.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import requests
import yaml

from dsf.up.httpcheck import make_http_check
from dsf.worker import commands
from tests.faults.fleet import Fleet, scores
from tests.integration.docs import pages
from tests.integration.docs.pages import ROOT, Command
from tests.integration.docs.venues import EXPORTS
from tests.support import forked
from tests.support.child import Child, run_program
from tests.support.httpserver import ScriptedServer, answer
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

SCORER = "sample-scorer"
CLUSTERS = ("worker01", "worker02")
#: Interval in seconds. Long, so that a scheduled cycle does not meet one that a test requests, and so that cycles do
#: not time out on a busy machine.
INTERVAL = 60
_LOGIN = "admin:a-password"
#: Metrics of kube-state-metrics for a cluster with two nodes and their pods.
_KUBE_STATE = """
kube_node_status_allocatable{node="n1",resource="cpu"} 4
kube_node_status_allocatable{node="n2",resource="cpu"} 4
kube_node_status_allocatable{node="n1",resource="memory"} 1000
kube_pod_container_resource_requests{namespace="a",pod="runs",container="x",node="n1",resource="cpu"} 1.5
kube_pod_container_resource_requests{namespace="a",pod="ended",container="x",node="n1",resource="cpu"} 3
kube_pod_container_resource_requests{namespace="a",pod="runs",container="x",node="n1",resource="memory"} 250
kube_pod_status_phase{namespace="a",pod="runs",phase="Running"} 1
kube_pod_status_phase{namespace="a",pod="ended",phase="Running"} 0
kube_pod_status_phase{namespace="a",pod="ended",phase="Succeeded"} 1
"""


class StackWorld(Fleet):
    """Starts all processes on enter; may fail if another process takes a free port first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CLUSTERS)
        self.flower_port = free_port()
        self.prometheus_port, self.receiver_port = free_port(), free_port()
        self._kube_state = ScriptedServer(answer(_KUBE_STATE, Content_Type="text/plain; version=0.0.4"))

    def start(self) -> None:
        """Start everything and wait for the first score of each cluster."""
        self.scorer(SCORER, scores(12.5, 140.0), interval=INTERVAL, query="up")
        super().start()
        self._servers.enter_context(self._kube_state)
        self._start_flower()
        self._start_prometheus()
        self.until(
            lambda: all(self.state(SCORER, cluster).count("ok") for cluster in CLUSTERS), "a score of each cluster", 40
        )
        wait_for(make_http_check(f"http://127.0.0.1:{self.flower_port}/healthcheck"), 30, "Flower")

    def flower_knows(self, task: str) -> dict[str, Any]:
        """Return Flower's view of a task; empty before its first event."""
        user, _, password = _LOGIN.partition(":")
        url = f"http://127.0.0.1:{self.flower_port}/api/task/info/{task}"
        response = requests.get(url, auth=(user, password), timeout=300)
        task_fields: dict[str, Any] = response.json() if response.ok else {}
        return task_fields

    def _start_flower(self) -> None:
        # As the chart does with flower.readOnly false.
        command = commands.make_flower_command("127.0.0.1", self.flower_port, read_only=False)
        environment = self.environment("flower") | {"FLOWER_BASIC_AUTH": _LOGIN}
        environment.pop("FLOWER_UNAUTHENTICATED_API", None)
        self.processes["flower"] = forked.child(command, self.logs / "flower.log", environment, inherit=False)

    def _start_prometheus(self) -> None:
        values = yaml.safe_load((ROOT / "deploy" / "prometheus" / "values.yaml").read_text(encoding="utf-8"))
        spec = values["prometheus"]["prometheusSpec"]
        targets = {"dynamic-scoring-exporter": self.port("web"), "kube-state-metrics": self._kube_state.port}
        targets |= {f"agent-{cluster}": self.port(f"agent {cluster}") for cluster in CLUSTERS}
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "external_labels": spec["externalLabels"]},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
                for name, port in targets.items()
            ],
            "remote_write": [_remote_write(remote, self.receiver_port) for remote in spec["remoteWrite"]],
        }
        rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text(encoding="utf-8"))
        rules["groups"][0]["interval"] = "1s"
        self._prometheus("prometheus", self.prometheus_port, config, rules)
        self._prometheus(
            "receiver", self.receiver_port, {"scrape_configs": []}, {}, "--web.enable-remote-write-receiver"
        )

    def _prometheus(self, name: str, port: int, config: object, rules: object, *options: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules or {"groups": []}), encoding="utf-8")
        command = [
            str(find("prometheus")),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            *options,
        ]
        self.processes[name] = Child(command, self.logs / f"{name}.log")
        wait_for(make_http_check(f"http://127.0.0.1:{port}/-/ready"), 30, f"{name}; {self.tail(name)}")

    def query(self, expression: str, port: int | None = None) -> list[dict[str, Any]]:
        """Run a query on Prometheus and return its result. Raises AssertionError with its error."""
        url = f"http://127.0.0.1:{port or self.prometheus_port}/api/v1/query"
        response = requests.get(url, params={"query": expression}, timeout=300).json()
        assert response["status"] == "success", f"{expression}: {response.get('error')}"
        result: list[dict[str, Any]] = response["data"]["result"]
        return result

    def type(self, command: Command) -> str:
        """Run a command of a page and return its output. Raises AssertionError with its output."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
        user, _, password = _LOGIN.partition(":")
        config = self.out / "clusters" / CLUSTERS[0] / "dynamic-scoring-config.yaml"
        environment = variables | self.environment("cli")
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:{find('curl').parent}",
            "DSF_AGENT_CONFIG": str(config),
            **EXPORTS,
            "FLOWER_USER": user,
            "FLOWER_PASSWORD": password,
        }
        text = re.sub(r"\blocalhost:5555\b", f"127.0.0.1:{self.flower_port}", command.text)
        text = re.sub(r"--interval 5\b", f"--interval {INTERVAL}", text)
        match Command(command.page, command.line, text).words:
            case ["dsf", *arguments]:
                with contextlib.chdir(self.folder):
                    process = forked.dsf(arguments, environment)
            case ["celery", "-A", "dsf.celery", *arguments]:
                with contextlib.chdir(self.folder):
                    process = forked.celery(arguments, environment)
            case _:
                process = run_program(
                    ["/bin/bash", "-o", "pipefail", "-euc", text], cwd=self.folder, env=environment, timeout=180
                )
        assert process.returncode == 0, (
            f"{command.page}:{command.line}\n$ {command.text}\n{process.stdout}{process.stderr}"
        )
        return process.stdout

    def run_program(self, page: str) -> str:
        """Run the blocks of Python on a page as one program, and return its output. Raises AssertionError with it."""
        (path,) = [path for path in pages.PAGES if pages.name(path) == page]
        code = "\n".join(block.text for block in pages.blocks(path) if block.language == "python")
        code = re.sub(r"\blocalhost:8080\b", f"127.0.0.1:{self.port('web')}", code)
        environment = self.environment("cli") | {"PATH": os.environ["PATH"]}
        # The page says that a program needs no role.
        environment.pop("DSF_ROLE")
        process = run_program([sys.executable, "-c", code], cwd=self.folder, env=environment, timeout=180)
        assert process.returncode == 0, f"{page}\n{process.stdout}{process.stderr}"
        return process.stdout


def _remote_write(remote: dict[str, Any], port: int) -> dict[str, Any]:
    """Convert a `remoteWrite` of the Prometheus operator to prometheus.yml, with the receiver as URL."""
    relabel = [
        {
            "source_labels": rule["sourceLabels"],
            "regex": rule["regex"],
            "action": rule["action"],
        }
        for rule in remote["writeRelabelConfigs"]
    ]
    return {"url": f"http://127.0.0.1:{port}/api/v1/write", "write_relabel_configs": relabel}
