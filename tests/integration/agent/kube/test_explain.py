"""dsf explain in an agent's pod: with the environment and the rights that the chart gives to agents, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from dsf.api.types import CONFIGMAP_NAME
from dsf.cli.main import app
from dsf.kube.resources import CONFIG_MAPS
from dsf.settings import ENV_PREFIX, settings
from tests.integration.agent.kube.conftest import SummaryFactory
from tests.integration.agent.kube.spoke import Spoke
from tests.support import chart
from tests.support.clusterobjects import NODES, RULES, add_node
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import ScriptedServer, answer, hang, slow
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

Explain = Callable[..., Result]

CLUSTER = "cluster1"
TOKEN = {"sourceEndpointAuthName": "prometheus", "sourceEndpointAuthKey": "token"}
#: A read-only root file system, except for the folder of temporary files: writes fail as in the pod.
READ_ONLY = """
import errno, os, sys

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate", "os.utime"}

def refuse(event, arguments):
    if event == "open" and arguments[2] & WRITING or event in CHANGES:
        path = os.fspath(arguments[0]) if not isinstance(arguments[0], int) else "/dev/fd"
        if not path.startswith((os.environ["TMPDIR"], "/dev/")):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

sys.addaudithook(refuse)
"""


def _agent_objects() -> list[chart.Object]:
    return chart.agent_objects(chart.render({"spokeSetting": {"agent": {"tokenSecrets": ["prometheus"]}}}))


@pytest.fixture
def spoke(spoke: Spoke) -> Spoke:
    """An agent with the chart's rights, which may read one token."""
    spoke.grant(chart.find_object(_agent_objects(), "Role")["rules"])
    spoke.secret("prometheus", {"token": "first-token"})
    return spoke


@pytest.fixture
def environment(spoke: Spoke, tmp_path: Path) -> dict[str, str]:
    """Return the environment of the agent's container.

    The account is in a kubeconfig instead of the pod, and the volume of trusted CAs is an empty folder.
    """
    (container,) = chart.containers(chart.find_object(_agent_objects(), "Deployment"))
    variables = chart.environment(container)
    assert variables["DSF_AGENT_KUBE"] == "true"
    test_variables = {
        "DSF_AGENT_NAMESPACE": spoke.namespace,
        "DSF_CLUSTER": CLUSTER,
        "DSF_KUBECONFIG": str(spoke.kubeconfig),
    }
    (volume := tmp_path / "trusted-ca").mkdir()
    return variables | test_variables | {"DSF_TRUSTED_CA_DIR": str(volume)}


@pytest.fixture
def explain(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Explain]:
    """`explain("sample", DSF_CLUSTER=None)` in the agent's environment, in this process."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*arguments: str, **changes: str | None) -> Result:
        # `None` takes a variable out.
        return CliRunner().invoke(app, ["explain", *arguments], prog_name="dsf", env={**environment, **changes})

    yield run
    settings.cache_clear()


def error(result: Result) -> str:
    """Return the single error line of a command that failed."""
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def error_of_failed_run(result: Result) -> str:
    """Return the last line of a report of a cycle that failed."""
    assert (result.exit_code, result.stderr) == (1, ""), result.output
    return str(result.stdout.splitlines()[-1])


def report(result: Result) -> Any:
    """Return the report as JSON."""
    assert result.stderr == ""
    return json.loads(result.stdout)


# --- it works --------------------------------------------------------------------------------------------------------


def test_explain_runs_in_the_pod_of_an_agent(
    environment: dict[str, str],
    spoke: Spoke,
    summarise: SummaryFactory,
    source: ScriptedServer,
    scorer: ScriptedServer,
    tmp_path: Path,
) -> None:
    spoke.deliver(summarise(**TOKEN), summarise("second"))
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(READ_ONLY)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    image = {"HOME": str(temporary), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    shell = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "python"), **image, **environment}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], env=shell, cwd=Path(__file__).parents[4], capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    assert "Read-only file system" in run("-c", f"open({str(tmp_path / 'file')!r}, 'w')").stderr
    process = run("-m", "dsf.cli", "explain", "sample", "--cluster", CLUSTER)
    assert (process.returncode, process.stderr) == (0, ""), process.stdout
    assert f"GET      {source.url}/api/v1/query_range?query=up&start=" in process.stdout
    assert process.stdout.splitlines()[-1].rstrip() == "ok: 1 of 1 results are used. Nothing was published."
    assert [request.headers["Authorization"] for request in source.requests] == ["Bearer first-token"]
    assert len(scorer.requests) == 1
    assert "first-token" not in process.stdout
    # A backtest there has the same configuration and Secrets, and needs no Redis: this one has none.
    past = run("-m", "dsf.cli", "backtest", "sample", "--since", "10m", "--rate", "100", "-o", "jsonl")
    assert past.returncode == 0, past.stderr
    question, *records = map(json.loads, past.stdout.splitlines())
    assert question["question"]["cluster"] == CLUSTER
    assert [record["outcome"] for record in records] == ["ok"] * 3
    assert [request.headers["Authorization"] for request in source.requests] == ["Bearer first-token"] * 4
    # The first request is that of `explain`, whose second may be one of these moments.
    assert len({request.query["end"] for request in source.requests[1:]}) == 3
    assert "first-token" not in past.stdout + past.stderr
    assert list(temporary.iterdir()) == []


def test_explain_defaults_to_the_cluster_of_the_agent(
    explain: Explain, spoke: Spoke, summarise: SummaryFactory
) -> None:
    spoke.deliver(summarise(scoreDimensionFormat="${cluster}"))
    printed_report = report(explain("sample", "-o", "json"))
    assert (printed_report["cluster"], printed_report["outcome"]) == (CLUSTER, "ok")
    assert printed_report["results"][0]["name"] == CLUSTER
    assert report(explain("sample", "--cluster", "any", "-o", "json", DSF_CLUSTER=None))["cluster"] == "any"
    other = error(explain("sample", "--cluster", "cluster2"))
    assert "this is the agent of cluster 'cluster1'; run this in the agent of 'cluster2'" in other
    nowhere = explain("sample", DSF_CLUSTER=None)
    assert nowhere.exit_code == 2
    assert "--cluster" in nowhere.stderr


def test_explain_waits_for_a_slow_api_server(
    explain: Explain, spoke: Spoke, summarise: SummaryFactory, tmp_path: Path
) -> None:
    spoke.deliver(summarise())
    configmap = spoke.session.get(CONFIG_MAPS.path(spoke.namespace, CONFIGMAP_NAME))
    configmap_list = {"metadata": {"resourceVersion": "1"}, "items": [configmap]}
    # More seconds than the agent itself waits for an object.
    with ScriptedServer(slow(7.0, answer(configmap_list)), hang) as slow_api_server:
        config = yaml.safe_load(spoke.kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": slow_api_server.url}
        kubeconfig = tmp_path / "slow"
        kubeconfig.write_text(yaml.safe_dump(config))
        assert report(explain("sample", "-o", "json", DSF_KUBECONFIG=str(kubeconfig)))["outcome"] == "ok"


def test_explain_prefers_the_named_file_to_the_configmap(
    explain: Explain, spoke: Spoke, summarise: SummaryFactory, tmp_path: Path
) -> None:
    spoke.deliver(summarise())
    file = tmp_path / "changed.json"
    file.write_text(json.dumps([summarise("changed")]))
    assert report(explain("changed", "--config", str(file), "-o", "json"))["scorer"] == "changed"
    assert report(explain("changed", "-o", "json", DSF_AGENT_CONFIG=str(file)))["scorer"] == "changed"
    # A hub on a folder does not.
    assert "has: sample)" in error(explain("changed", DSF_OUT_DIR=str(tmp_path)))


def test_explain_names_the_cluster_role_that_a_kubernetes_source_needs(
    explain: Explain, spoke: Spoke, summarise: SummaryFactory, control_plane: ControlPlane, scorer: ScriptedServer
) -> None:
    query = 'kubernetes_available{resource="cpu"}'
    spoke.deliver(summarise(sourceType="Kubernetes", sourceEndpoint="", sourceQuery=query))
    assert "(unauthorized): the source Kubernetes needs a ClusterRole with get, list and watch" in error_of_failed_run(
        explain("sample")
    )
    control_plane.set_rules(spoke.namespace, "agent", RULES)
    add_node(spoke.session, "n1", cpu="4")
    try:
        result = explain("sample")
        assert result.exit_code == 0, result.output
        (request,) = [line.strip() for line in result.stdout.splitlines() if line.strip().startswith("GET")]
        assert request == "GET      nodes and pods of this cluster"
        values_by_node = {
            series["metric"].get("node", ""): series["values"][-1][1] for series in scorer.requests[-1].json()["data"]
        }
        assert values_by_node == {"": "4", "n1": "4"}
    finally:
        spoke.session.delete(NODES.path(name="n1"))


def test_explain_names_the_missing_right_of_an_object_source(
    explain: Explain, spoke: Spoke, summarise: SummaryFactory, control_plane: ControlPlane, scorer: ScriptedServer
) -> None:
    query = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "namespace": spoke.namespace,
        "fields": [{"name": "cpu_quota", "path": "spec.hard['requests.cpu']"}],
    }
    spoke.deliver(summarise(sourceType="Object", sourceEndpoint="", sourceQuery=json.dumps(query)))
    message = error_of_failed_run(explain("sample"))
    assert "(unauthorized): this agent may not read resourcequotas: " in message
    assert "{apiGroup: '', resource: resourcequotas} to the chart's spokeSetting.agent.sources.objects" in message
    control_plane.set_rules(
        spoke.namespace, "agent", [{"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]}]
    )
    path = f"/api/v1/namespaces/{spoke.namespace}/resourcequotas"
    spoke.session.create(path, {"metadata": {"name": "team"}, "spec": {"hard": {"requests.cpu": "1500m"}}})

    def works() -> Result | None:
        result = explain("sample", DSF_AGENT_OBJECTS='["resourcequotas"]')
        return result if result.exit_code == 0 else None

    result = wait_for(works, 60, "the right works")
    (request,) = [line.strip() for line in result.stdout.splitlines() if line.strip().startswith("GET")]
    assert request == f"GET      {path}?limit=100 of this cluster"
    (series,) = scorer.requests[-1].json()["data"]
    assert series["metric"] == {"__name__": "cpu_quota", "namespace": spoke.namespace, "name": "team"}
    assert series["values"][-1][1] == "1.5"


def test_explain_refuses_a_source_that_is_pushed_to_the_agent(
    explain: Explain, spoke: Spoke, summarise: SummaryFactory
) -> None:
    spoke.deliver(summarise(sourceType="OpenTelemetry", sourceEndpoint="http://collector/v1/metrics"))
    assert "(`dsf explain` cannot show what is in an agent's memory)" in error_of_failed_run(explain("sample"))


# --- failures ---------------------------------------------------------------------------------------------------------


def test_explain_reports_a_missing_configmap(explain: Explain, spoke: Spoke) -> None:
    message = error(explain("sample"))
    assert f"ConfigMap dynamic-scoring-config in namespace {spoke.namespace} is missing; the hub delivers it" in message


def test_explain_names_the_missing_right_to_read_the_configmap(
    explain: Explain, spoke: Spoke, summarise: SummaryFactory
) -> None:
    spoke.deliver(summarise())
    spoke.grant([])
    message = error(explain("sample"))
    assert (
        f"is missing for this agent: its Role in namespace {spoke.namespace} has no rule for get, list and watch of "
        "configmaps with resourceNames [dynamic-scoring-config] (GET " in message
    )
    assert "403" in message


def test_explain_of_an_undelivered_scorer_lists_the_delivered_scorers(
    explain: Explain, spoke: Spoke, summarise: SummaryFactory
) -> None:
    spoke.deliver(summarise("second"), summarise("first"))
    message = error(explain("sample"))
    assert f"(ConfigMap dynamic-scoring-config in namespace {spoke.namespace} has: first, second)" in message
    spoke.deliver()
    assert "has: none)" in error(explain("sample"))


@pytest.mark.parametrize("broken", ["not JSON", '[{"name": "sample"}]'])
def test_explain_names_an_unusable_configmap(explain: Explain, spoke: Spoke, broken: str) -> None:
    spoke.deliver_text(broken)
    assert f"ConfigMap dynamic-scoring-config in namespace {spoke.namespace}: " in error(explain("sample"))


def test_explain_reports_an_unreachable_api_server(
    explain: Explain, spoke: Spoke, tmp_path: Path, control_plane: ControlPlane
) -> None:
    missing_folder = tmp_path / "away"
    missing_folder.write_text(spoke.kubeconfig.read_text().replace(f":{control_plane.port}", f":{free_port()}"))
    message = error(explain("sample", DSF_KUBECONFIG=str(missing_folder)))
    assert "is missing or cannot be read (GET " in message
    assert "Connection refused" in message
    outside = error(explain("sample", DSF_KUBECONFIG=None, KUBERNETES_SERVICE_HOST=None))
    assert "no Kubernetes API server is configured" in outside
