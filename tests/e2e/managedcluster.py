"""A managed cluster: its API server, a Prometheus with a metric that a test can change, its work agent, our agent."""

from __future__ import annotations

import base64
import contextlib
import signal
from pathlib import Path

from dsf.api.types import CREDENTIALS_KEY, CREDENTIALS_NAME
from dsf.errors import BackendError
from dsf.kube.resources import SECRETS
from dsf.up.httpcheck import fetch_http, make_http_check
from tests.integration.agent.kube.spoke import Spoke
from tests.support.child import Child
from tests.support.controlplane import ControlPlane
from tests.support.forked import Forked
from tests.support.httpserver import ScriptedServer, answer
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.wait import wait_for
from tests.support.workagent import work_agent

#: Host name by which each agent finds the Prometheus of its own cluster.
PROMETHEUS = "prometheus.monitoring.svc:9090"
METRIC = "e2e_free_capacity"
NAMESPACE = "dynamic-scoring"


class ManagedCluster:
    """Used as a context manager. The agent is started on its own, by `start_agent`."""

    def __init__(self, name: str, folder: Path, plane: ControlPlane, hub: ControlPlane, redis_url: str) -> None:
        self.name = name
        self.plane = plane
        self.metrics_port = free_port()
        self._folder = folder
        self._ready = folder / "ready"
        self.prometheus_port = free_port()
        self._exporter = ScriptedServer(answer(""))
        self._hub = hub
        self._redis_url = redis_url
        self._agent: Child | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ManagedCluster:
        with contextlib.ExitStack() as stack:
            self._folder.mkdir(parents=True)
            stack.enter_context(self._exporter)
            prometheus = self._start_prometheus()
            stack.callback(prometheus.kill)
            stack.enter_context(self.plane)
            # The agent's rights: only its ConfigMap and its key, by name.
            self.spoke = Spoke(self.plane, namespace=NAMESPACE)
            self.work_agent = stack.enter_context(work_agent(self.name, self._hub, self.plane))
            wait_for(make_http_check(f"http://127.0.0.1:{self.prometheus_port}/-/ready"), 30, prometheus.tail())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_agent()
        self._stack.close()

    def measure(self, value: float) -> None:
        """Set the value that Prometheus reads at its next scrape, at most one second later."""
        text = f'# TYPE {METRIC} gauge\n{METRIC}{{node="n1"}} {value}\n'
        self._exporter.script(answer(text, Content_Type="text/plain; version=0.0.4"))

    def start_agent(self) -> None:
        """Start the agent when its key can be mounted, as a kubelet does."""
        key = self._folder / "signing-key"
        key.write_bytes(wait_for(self._signing_key, 60, "the key of the agent's cluster"))
        environment = {
            "DSF_CLUSTER": self.name,
            "DSF_REDIS_URL": self._redis_url,
            "DSF_AGENT_KUBE": "true",
            "DSF_KUBECONFIG": str(self.spoke.kubeconfig),
            "DSF_AGENT_NAMESPACE": NAMESPACE,
            "DSF_SIGNING_KEY_FILE": str(key),
            "DSF_AGENT_HOST_ALIASES": f'{{"{PROMETHEUS}": "127.0.0.1:{self.prometheus_port}"}}',
            "DSF_AGENT_SPOOL_DIR": str(self._folder / "spool"),
            "DSF_LISTEN_HOST": "127.0.0.1",
            "DSF_LISTEN_PORT": str(self.metrics_port),
            "DSF_PROBE_DIR": str(self._folder),
            "DSF_REDIS_POLLING_INTERVAL": "1",
        }
        self._agent = Forked("dsf.agent", self._folder / "agent.log", environment)

    def _signing_key(self) -> bytes | None:
        with contextlib.suppress(BackendError):
            secret = self.spoke.session.get(SECRETS.path(NAMESPACE, CREDENTIALS_NAME))
            return base64.b64decode(secret["data"][CREDENTIALS_KEY])
        return None

    def stop_agent(self) -> None:
        """SIGTERM, as a cluster does; kills it when it does not end."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.signal(signal.SIGTERM)
            try:
                agent.wait(60)
            finally:
                agent.kill()

    @property
    def is_ready(self) -> bool:
        """Whether the agent takes ticks."""
        return self._ready.exists()

    @property
    def has_data(self) -> bool:
        """True if Prometheus has the metric, which its first scrape brings."""
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/query?query={METRIC}"
        return b'"value"' in (fetch_http(url) or b"")

    def tail(self) -> str:
        """Return the end of the agent's log."""
        return self._agent.tail() if self._agent is not None else ""

    def _start_prometheus(self) -> Child:
        config = self._folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            "scrape_configs:\n"
            "  - job_name: e2e\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{self._exporter.port}']}}]\n"
        )
        command = [
            str(find("prometheus")),
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.prometheus_port}",
            "--log.level=warn",
        ]
        return Child(command, self._folder / "prometheus.log")
