"""Alerts, recording rules and the dashboard: queries are valid, name existing metrics and give expected results."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf import metrics
from tests.support import chart, programs
from tests.support.child import run_program

DEPLOY = chart.ROOT / "deploy"
DASHBOARD = json.loads((chart.CHART / "files" / "fleet-dashboard.json").read_text())
#: Metrics of kube-state-metrics.
KUBE = {
    "kube_node_spec_unschedulable",
    "kube_node_status_allocatable",
    "kube_pod_container_resource_requests",
    "kube_pod_status_phase",
}
ALERTS = {
    "DynamicScoringNoScore",
    "DynamicScoringScheduleLag",
    "DynamicScoringNoTicks",
    "DynamicScoringPathInterrupted",
    "DynamicScoringHubProblem",
    "DynamicScoringQueueFull",
    "DynamicScoringResultsRejected",
    "DynamicScoringMessagesDropped",
    "DynamicScoringAgentMissing",
    "DynamicScoringBlind",
    "DynamicScoringHubAway",
    "DynamicScoringHubWithoutRedis",
    "DynamicScoringSeriesLeftOut",
    "DynamicScoringRedisMemory",
    "DynamicScoringRedisConnections",
    "DynamicScoringRedisEvicts",
    "DynamicScoringRedisReplicaLost",
    "DynamicScoringCertificateEnds",
}


def _list_exposed_labels() -> dict[str, set[str]]:
    """Return the labels of every series that the processes expose, by name."""
    labels_by_series: dict[str, set[str]] = {}
    for metric in (value for value in vars(metrics).values() if isinstance(value, metrics.Metric)):
        # Some series of the exporter also have the cluster.
        labels = (
            {*metric.labels, "ds_cluster"}
            if metric in (metrics.REQUESTS, metrics.STAGE_SECONDS)
            else set(metric.labels)
        )
        if metric.kind == "counter":
            labels_by_series[f"{metric.name}_total"] = labels
        elif metric.kind == "gauge":
            labels_by_series[metric.name] = labels
        else:
            labels_by_series |= {f"{metric.name}_{suffix}": labels for suffix in ("sum", "count")}
            labels_by_series[f"{metric.name}_bucket"] = labels | {"le"}
    return labels_by_series


def _rules() -> list[dict[str, Any]]:
    values = {"monitoring": {"prometheusRule": {"enabled": True, "alertLabels": {"team": "platform"}}}}
    (group,) = chart.find_object(chart.render(values), "PrometheusRule")["spec"]["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    return panels


def _dashboard_queries() -> list[str]:
    variables = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    labelled = [re.fullmatch(r"label_values\((\w+), \w+\)", query) for query in variables]
    queries = [target["expr"] for panel in _panels() for target in panel["targets"]]
    return [match[1] for match in labelled if match] + queries


def _names(query: str) -> set[str]:
    """Return the metrics that a query names."""
    without = re.sub(r'"[^"]*"', '""', query)
    return set(re.findall(r"\b(?:dynamic_score|dynamic_scoring_\w+|kube_\w+|cluster_\w+)\b", without))


def _selectors(query: str) -> list[tuple[str, set[str]]]:
    """Yield metrics with the labels that their braces select."""
    return [
        (name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels)))
        for name, labels in re.findall(r"(dynamic_scor\w+|cluster_\w+)\{([^}]*)\}", query)
    ]


def _recording_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _all_queries() -> list[str]:
    keda = chart.find_object(
        chart.render({"mode": "Distributed", "results": {"keda": {"enabled": True}}}), "ScaledObject"
    )
    trigger = keda["spec"]["triggers"][0]["metadata"]["query"]
    return [*_dashboard_queries(), *(rule["expr"] for rule in _rules()), trigger]


def test_every_query_names_metrics_that_exist() -> None:
    exposed = _list_exposed_labels() | {rule["record"]: {"cluster"} for rule in _recording_rules()}
    queries = _all_queries()
    assert len(queries) > 50
    for query in queries:
        assert _names(query), query
        assert _names(query) <= set(exposed), query
        for name, labels in _selectors(query):
            assert labels <= exposed[name] | {"job"}, (query, name)


def test_every_query_of_the_dashboard_can_be_parsed(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": _without_variables(q)} for number, q in enumerate(_dashboard_queries())
    ]
    _promtool("check", {"dashboard": {"groups": [{"name": "dashboard", "rules": rules}]}}, tmp_path)


def _without_variables(query: str) -> str:
    return re.sub(r"\$\w+", ".*", query)


def test_dashboard_shows_the_fleet() -> None:
    kinds = {panel["title"]: panel["type"] for panel in _panels()}
    assert kinds["Scores by cluster and scorer"] == "heatmap"
    assert {"Age of the last success", "Failures by reason", "Schedule lag", "Queue lengths"} <= set(kinds)
    assert {"Memory of Redis", "Connections to Redis", "Days until certificates end"} <= set(kinds)
    assert len({panel["id"] for panel in _panels()}) == len(_panels())
    for panel in _panels():
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"


#: Series of agents and of two pods of the hub for the same cycles: 6 failures of `s` on c1 a minute, and no success on
#: c2.
SERIES = {
    'dynamic_scoring_failures_total{job="%s",instance="%s",ds_score_name="s",stage="fetch",reason="timeout"}': "0+6x10",
    'dynamic_scoring_cycles_total{job="%s",instance="%s",ds_cluster="c1",ds_score_name="s",outcome="error"}': "0+6x10",
    'dynamic_scoring_scheduled_total{job="%s",instance="%s",ds_cluster="c1",ds_score_name="s"}': "0+6x10",
    'dynamic_scoring_scheduled_total{job="%s",instance="%s",ds_cluster="c2",ds_score_name="s"}': "0+2x10",
    'dynamic_scoring_last_success_timestamp_seconds{job="%s",instance="%s",ds_cluster="c1",ds_score_name="s"}': "1x10",
    'cluster_cpu_free{job="%s",instance="%s",cluster="c1"}': "3x10",
}


#: Title of a panel -> labels and value of its series.
PANEL_VALUES = {
    "Failures by reason": ('{stage="fetch", reason="timeout"}', 6.0),
    "Failures by cluster": ('{ds_cluster="c1"}', 6.0),
    "Outcomes of cycles": ('{outcome="error"}', 6.0),
    "Pairs that never succeeded": ('{ds_cluster="c2", ds_score_name="s"}', 20.0),
    "CPU free by cluster": ('{cluster="c1"}', 3.0),
}


def test_panels_count_each_series_once(tmp_path: Path) -> None:
    panels = {panel["title"]: panel for panel in _panels()}
    scraped = [("hub", "1"), ("hub", "2"), ("agent", "3")]
    values = {"cluster": ".*", "score": ".*"}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            # Grafana replaces "All" by every value that the query of the variable returns.
            values[variable["name"]] = variable.get("allValue", "hub")
    test = {
        "interval": "1m",
        "input_series": [
            {"series": name % source, "values": numbers} for name, numbers in SERIES.items() for source in scraped
        ],
        "promql_expr_test": [
            {
                "expr": re.sub(r"\$(\w+)", lambda match: values[match[1]], panels[title]["targets"][0]["expr"]),
                "eval_time": "10m",
                "exp_samples": [{"labels": labels, "value": value}],
            }
            for title, (labels, value) in PANEL_VALUES.items()
        ],
    }
    _promtool("test", {"panels": {"tests": [test]}}, tmp_path)


def test_alerts_are_there_and_can_be_parsed(tmp_path: Path) -> None:
    rules = _rules()
    assert {rule["alert"] for rule in rules} == ALERTS
    for rule in rules:
        assert rule["labels"]["team"] == "platform"
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert {rule["labels"]["severity"] for rule in rules} == {"info", "warning", "critical"}
    _promtool("check", {"alerts": {"groups": [{"name": "alerts", "rules": rules}]}}, tmp_path)


def test_each_alert_has_a_runbook_in_the_documentation() -> None:
    page = (chart.ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    for rule in _rules():
        url, anchor = rule["annotations"]["runbook_url"].split("#")
        assert url.endswith("/docs/troubleshooting.md"), url
        assert f'<a id="{anchor}"></a>`{rule["alert"]}`' in page


def test_dashboard_is_installed_for_the_sidecar_of_grafana() -> None:
    values = {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "OCM"}}}
    dashboard = chart.find_object(chart.render(values), "ConfigMap", "dynamic-scoring-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["metadata"]["annotations"] == {"grafana_folder": "OCM"}
    assert json.loads(dashboard["data"]["dynamic-scoring-fleet.json"]) == DASHBOARD


@pytest.mark.parametrize("mode", chart.MODES)
def test_metrics_of_every_process_are_scraped(mode: str) -> None:
    """Each ServiceMonitor selects one Service and its ports, and a NetworkPolicy admits Prometheus."""
    objects = chart.render(chart.EVERYTHING if mode == "Distributed" else chart.MATRIX["everything-single"])
    monitors = {o["metadata"]["name"]: o for o in chart.of_kind(objects, "ServiceMonitor")}
    assert set(monitors) == {f"dynamic-scoring-{name}" for name in chart.MODES[mode]}
    for name, monitor in monitors.items():
        assert monitor["metadata"]["labels"]["release"] == "kube-prometheus"
        monitor_labels = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [o for o in chart.of_kind(objects, "Service") if monitor_labels <= o["metadata"]["labels"].items()]
        (container,) = chart.containers(chart.workloads(objects)[name])
        numbers = {port["name"]: port["containerPort"] for port in container["ports"]}
        targets = {port["name"]: numbers[port["targetPort"]] for port in service["spec"]["ports"]}
        scraped = {targets[endpoint["port"]] for endpoint in monitor["spec"]["endpoints"]}
        assert scraped == set(numbers.values())
        rules = chart.find_object(objects, "NetworkPolicy", name)["spec"]["ingress"]
        peers = chart.DEFAULTS["networkPolicy"]["metricsFrom"]
        assert {port["port"] for rule in rules if rule["from"] == peers for port in rule["ports"]} == scraped
    assert not chart.of_kind(chart.render(), "ServiceMonitor", "PrometheusRule")


def test_recording_rules_can_be_parsed_and_are_the_same_in_both_forms(tmp_path: Path) -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    assert yaml.safe_load((DEPLOY / "prometheus" / "prometheusrule.yaml").read_text())["spec"] == rules
    recorded = [rule for group in rules["groups"] for rule in group["rules"]]
    assert [rule["record"] for rule in recorded] == ["cluster_cpu_free", "cluster_memory_free"]
    for rule in recorded:
        assert _names(rule["expr"]) <= KUBE
    _promtool("check", {"rules": rules}, tmp_path)


def _promtool(word: str, documents: dict[str, dict[str, Any]], folder: Path) -> None:
    """Run `promtool check rules` or `promtool test rules` on these files. Raises AssertionError with its output."""
    for name, document in documents.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    files = [f"{name}.yaml" for name in documents]
    command = [programs.find("promtool"), word, "rules", *files]
    # promtool prints failures to stderr, below the name of the file on stdout.
    streams: dict[str, Any] = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = run_program(command, cwd=folder, **streams)
    assert process.returncode == 0, process.stdout


def _sample_query() -> str:
    """Return the query for kube-state-metrics from a sample's README."""
    text = (chart.ROOT / "samples" / "resource-usage-scorer" / "README.md").read_text()
    match = re.search(r"SOURCE_QUERY='([^']+)'", text)
    assert match is not None
    return match[1]


def _gallery_query() -> str:
    """Return the query of the expression for free GPUs."""
    manifest = yaml.safe_load((chart.ROOT / "samples" / "expressions" / "free-gpus.yaml").read_text())
    query: str = manifest["spec"]["source"]["params"]["query"]
    return query


def _requests(namespace: str, pod: str, node: str, cores: float, *phases: str) -> dict[str, float]:
    """Return series of a pod with one container, and of its phases as kube-state-metrics exposes them."""
    labels = f'namespace="{namespace}",pod="{pod}"'
    series = {f'kube_pod_container_resource_requests{{{labels},container="x",node="{node}",resource="cpu"}}': cores}
    for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown") if phases else ():
        series[f'kube_pod_status_phase{{{labels},phase="{phase}"}}'] = float(phase in phases)
    return series


_NODES = {f'kube_node_status_allocatable{{node="{node}",resource="cpu"}}': 4.0 for node in ("n1", "n2")}
_CORDONED = {f'kube_node_spec_unschedulable{{node="{node}"}}': float(node == "n2") for node in ("n1", "n2")}
_MEMORY_REQUEST = {'kube_pod_container_resource_requests{pod="m",container="x",node="n1",resource="memory"}': 9.0}


#: Case -> series, and the free cores of n1 and n2; None if a node does not count.
_FREE_CORES: dict[str, tuple[dict[str, float], tuple[float, float | None] | None]] = {
    "running": (_requests("a", "runs", "n1", 1.5, "Running"), (2.5, 4)),
    "full": (_requests("a", "full", "n1", 4, "Running") | _requests("a", "full", "n2", 4, "Running"), (0, 0)),
    "ended": (_requests("a", "ended", "n1", 3, "Succeeded") | _requests("b", "ended", "n2", 3, "Running"), (4, 1)),
    "failed": (_requests("a", "failed", "n1", 3, "Failed"), (4, 4)),
    "starting": (_requests("a", "starts", "n1", 3, "Pending"), (1, 4)),
    "waiting for a node": (_requests("a", "waits", "", 3, "Pending"), (4, 4)),
    "lost": (_requests("a", "lost", "n1", 3, "Unknown"), (1, 4)),
    # A pod without series of its phase counts, since it may run.
    "without a phase": (_requests("a", "runs", "n1", 3), (1, 4)),
    "request of another resource": (_MEMORY_REQUEST, (4, 4)),
    # A cordoned node takes no pods, so its cores are not free, and its pods take none of others.
    "cordoned": (_CORDONED | _requests("a", "runs", "n2", 1.5, "Running"), (4, None)),
    "cordoned beside a full node": (_CORDONED | _requests("a", "full", "n1", 4, "Running"), (0, None)),
    # Without series of any pod, free cores are unknown.
    "no pods": ({}, None),
    "no requests": ({'kube_pod_status_phase{namespace="a",pod="runs",phase="Running"}': 1}, None),
}


def test_free_resources_count_each_pod_once_and_no_pod_that_is_unknown(tmp_path: Path) -> None:
    """A single promtool runs all cases, and its output names the file of a failed case."""
    (tmp_path / "rules.yaml").write_text((DEPLOY / "prometheus" / "rules.yaml").read_text())
    documents = {
        f"{name}, instances: {instances}": {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": "1m",
            "tests": [_make_free_cores_test(series, free, instances)],
        }
        for name, (series, free) in _FREE_CORES.items()
        for instances in (1, 2)
    }
    _promtool("test", documents, tmp_path)


def _make_free_cores_test(
    series: dict[str, float], free: tuple[float, float | None] | None, instances: int
) -> dict[str, Any]:
    """Return a test of promtool, with the series of so many instances of kube-state-metrics."""
    inputs = [
        {"series": f'{sample[:-1]},instance="{instance}"}}', "values": f"{value}x10"}
        for sample, value in (_NODES | series).items()
        for instance in range(instances)
    ]
    by_node = [
        (node, cores) for node, cores in zip(("n1", "n2"), free or (), strict=free is not None) if cores is not None
    ]
    total = sum(cores for _, cores in by_node)
    return {
        "interval": "1m",
        "input_series": inputs,
        "promql_expr_test": [
            {
                "expr": f"sum by (node, resource) ({_sample_query()})",
                "eval_time": "10m",
                "exp_samples": [
                    {"labels": f'{{node="{node}", resource="cpu"}}', "value": value} for node, value in by_node
                ],
            },
            {
                "expr": "cluster_cpu_free",
                "eval_time": "10m",
                "exp_samples": [] if free is None else [{"labels": "cluster_cpu_free", "value": total}],
            },
            {
                # A cluster without GPUs has none that are free.
                "expr": _gallery_query(),
                "eval_time": "10m",
                "exp_samples": [] if free is None else [{"labels": "{}", "value": 0}],
            },
            {
                "expr": _gallery_query().replace("nvidia_com_gpu", "cpu"),
                "eval_time": "10m",
                "exp_samples": [] if free is None else [{"labels": "{}", "value": total}],
            },
        ],
    }


def test_alerts_fire_at_the_expected_times(tmp_path: Path) -> None:
    """Evaluates two hours of invented series."""
    pair = 'ds_cluster="c1",ds_score_name="s"'
    quiet = 'ds_cluster="c2",ds_score_name="s"'
    series = [
        # Cluster c1 succeeded until minute 60, with an interval of a minute; c2 always.
        (f"dynamic_scoring_last_success_timestamp_seconds{{{pair}}}", "0+60x60 3600x60"),
        (f"dynamic_scoring_last_success_timestamp_seconds{{{quiet}}}", "0+60x120"),
        (f"dynamic_scoring_scheduled_total{{{pair}}}", "0+1x120"),
        (f"dynamic_scoring_scheduled_total{{{quiet}}}", "0+1x120"),
        (f"dynamic_scoring_interval_seconds{{{pair}}}", "60x120"),
        (f"dynamic_scoring_interval_seconds{{{quiet}}}", "60x120"),
        # Cluster c3 never succeeded.
        ('dynamic_scoring_scheduled_total{ds_cluster="c3",ds_score_name="s"}', "0+1x120"),
        ('dynamic_scoring_interval_seconds{ds_cluster="c3",ds_score_name="s"}', "60x120"),
        # Cluster c5 is paused; c6 runs once an hour and lost one cycle.
        ('dynamic_scoring_scheduled_total{ds_cluster="c5",ds_score_name="s"}', "0+1x120"),
        ('dynamic_scoring_interval_seconds{ds_cluster="c6",ds_score_name="s"}', "3600x120"),
        ('dynamic_scoring_cycles_total{ds_cluster="c6",ds_score_name="s",outcome="lost"}', "0x80 1x40"),
        # A scorer with an interval of a minute gets no ticks.
        ('dynamic_scoring_interval_seconds{ds_cluster="c6",ds_score_name="down"}', "60x120"),
        # Cycles of c1 fail occasionally and are all lost from minute 60.
        (f'dynamic_scoring_cycles_total{{{pair},outcome="ok"}}', "0+1x60 60x60"),
        (f'dynamic_scoring_cycles_total{{{pair},outcome="error"}}', "0x120"),
        (f'dynamic_scoring_cycles_total{{{pair},outcome="lost"}}', "0x60 0+1x60"),
        (f'dynamic_scoring_cycles_total{{{quiet},outcome="ok"}}', "0+1x120"),
        (f'dynamic_scoring_cycles_total{{{quiet},outcome="lost"}}', "0+1x120"),
        ('dynamic_scoring_queue_length{queue="spoke.c1"}', "0x60 100x60"),
        ('dynamic_scoring_queue_length{queue="spoke.c4"}', "100x120"),
        ('dynamic_scoring_queue_length{queue="hub.results"}', "5000x120"),
        ('dynamic_scoring_results_rejected_total{reason="stale"}', "0x60 1x60"),
        ('dynamic_scoring_results_rejected_total{reason="bad_signature"}', "0x60 1x60"),
        ('dynamic_scoring_results_rejected_total{reason="malformed"}', "3x120"),
        ('dynamic_scoring_schedule_lag_seconds_bucket{le="1.0"}', "0+60x60 3600x60"),
        ('dynamic_scoring_schedule_lag_seconds_bucket{le="30.0"}', "0+60x120"),
        ('dynamic_scoring_schedule_lag_seconds_bucket{le="+Inf"}', "0+60x120"),
        ("dynamic_scoring_up", "1x100 0x20"),
        # The leader loses Redis, then no hub leads. A standby without Redis raises no alert.
        ('dynamic_scoring_hub_leading{pod="hub-1"}', "1x100 0x20"),
        ('dynamic_scoring_hub_leading{pod="hub-2"}', "0x120"),
        ('dynamic_scoring_hub_redis_up{pod="hub-1"}', "1x70 0x50"),
        ('dynamic_scoring_hub_redis_up{pod="hub-2"}', "0x120"),
        ("dynamic_scoring_ticks_stopped", "0x59 1x10 0x100"),
        # Stopped ticks have a separate alert, which ignores a short interruption.
        ('dynamic_scoring_path_problem{stage="ticks"}', "1x120"),
        ('dynamic_scoring_path_problem{stage="results"}', "0x59 1x10 0x100"),
        ('dynamic_scoring_path_problem{stage="agents"}', "0x60 1 0x100"),
        ('dynamic_scoring_hub_problem{kind="eviction"}', "_x59 1x10 _x100"),
        ("dynamic_scoring_series_limit", "30000x120"),
        ("dynamic_scoring_series_wanted", "20000x80 40000x40"),
    ]
    never = {
        "DynamicScoringNoScore": {"c3"},
        "DynamicScoringQueueFull": {"spoke.c4"},
        "DynamicScoringAgentMissing": {"c4"},
    }
    expected: dict[int, dict[str, set[str]]] = {
        55: never,
        90: {
            "DynamicScoringNoScore": {"c1", "c3"},
            "DynamicScoringScheduleLag": {""},
            "DynamicScoringQueueFull": {"spoke.c1", "spoke.c4"},
            "DynamicScoringAgentMissing": {"c1", "c4"},
            "DynamicScoringHubWithoutRedis": {"hub-1"},
        },
        115: {"DynamicScoringBlind": {""}, "DynamicScoringHubAway": {""}, "DynamicScoringSeriesLeftOut": {""}},
        # A single message from a person is no attack.
        62: {
            "DynamicScoringMessagesDropped": {"stale"},
            "DynamicScoringResultsRejected": {"bad_signature"},
            "DynamicScoringNoTicks": {""},
            "DynamicScoringPathInterrupted": {"results"},
            "DynamicScoringHubProblem": {"eviction"},
        },
    }
    cases = []
    for minute, alerts in expected.items():
        # Some moments check only the named alerts.
        names = ALERTS if minute in (55, 90) else set(alerts)
        for name in sorted(names):
            expected_alerts = [_expected(name, label_value) for label_value in sorted(alerts.get(name, set()))]
            cases.append({"eval_time": f"{minute}m", "alertname": name, "exp_alerts": expected_alerts})
    _check_alerts(series, cases, tmp_path)


def test_alerts_of_redis_fire_at_the_expected_times(tmp_path: Path) -> None:
    """Redis fills at minute 20, refuses connections at 40, evicts at 60, and loses a replica at 80."""
    day = 86400
    series = [
        ("dynamic_scoring_redis_memory_bytes", "50x20 90x10 50x120"),
        ("dynamic_scoring_redis_memory_limit_bytes", "100x120"),
        ("dynamic_scoring_redis_clients", "10x30 90x4 10x120"),
        ("dynamic_scoring_redis_client_limit", "100x120"),
        ("dynamic_scoring_redis_rejected_connections_total", "0x40 1x120"),
        ("dynamic_scoring_redis_evicted_keys_total", "0x60 1x120"),
        ("dynamic_scoring_redis_replicas", "1x80 0x120"),
        ('dynamic_scoring_certificate_end_timestamp_seconds{certificate="redis"}', f"{14 * day + 3000}x120"),
        ('dynamic_scoring_certificate_end_timestamp_seconds{certificate="redis-ca"}', f"{30 * day}x120"),
        # The leader loses Redis: the alert is there within two minutes.
        ('dynamic_scoring_hub_leading{pod="hub-1"}', "1x120"),
        ('dynamic_scoring_hub_redis_up{pod="hub-1"}', "1x89 0x5 1x120"),
    ]
    firing = {
        19: {},
        27: {"DynamicScoringRedisMemory": {""}},
        32: {"DynamicScoringRedisConnections": {""}},
        36: {},
        42: {"DynamicScoringRedisConnections": {""}},
        62: {"DynamicScoringRedisEvicts": {""}, "DynamicScoringCertificateEnds": {"redis"}},
        87: {"DynamicScoringRedisReplicaLost": {""}, "DynamicScoringCertificateEnds": {"redis"}},
        91: {"DynamicScoringHubWithoutRedis": {"hub-1"}},
    }
    names = sorted(name for name in ALERTS if re.search("Redis(?!$)|Certificate", name) and "Hub" not in name)
    cases = [
        {
            "eval_time": f"{minute}m",
            "alertname": name,
            "exp_alerts": [_expected(name, label_value) for label_value in sorted(alerts.get(name, set()))],
        }
        for minute, alerts in firing.items()
        for name in (names if minute != 91 else alerts)
    ]
    _check_alerts(series, cases, tmp_path)


def test_long_interval_alerts_after_three_turns_and_keeps_alerting(tmp_path: Path) -> None:
    """Cluster c1 runs every 4 hours and takes 10 minutes; c2, every 2 hours, succeeded only once."""
    slow, dead = 'ds_cluster="c1",ds_score_name="s"', 'ds_cluster="c2",ds_score_name="s"'
    series = [
        (f"dynamic_scoring_interval_seconds{{{slow}}}", "14400x900"),
        (f"dynamic_scoring_interval_seconds{{{dead}}}", "7200x900"),
        (f"dynamic_scoring_scheduled_total{{{slow}}}", "1x239 2x239 3x239 4x180"),
        (f"dynamic_scoring_scheduled_total{{{dead}}}", "1x119 2x119 3x119 4x119 5x119 6x119 7x119 8x60"),
        (f"dynamic_scoring_last_success_timestamp_seconds{{{slow}}}", "0x249 14400x239 28800x239 43200x170"),
        (f"dynamic_scoring_last_success_timestamp_seconds{{{dead}}}", "0x900"),
    ]
    # Checks from the sixth hour, just after ticks and long after them.
    moments = {245: set(), 355: set(), 363: {"c2"}, 450: {"c2"}, 485: {"c2"}, 700: {"c2"}, 890: {"c2"}}
    cases = [
        {
            "eval_time": f"{minute}m",
            "alertname": "DynamicScoringNoScore",
            "exp_alerts": [_expected("DynamicScoringNoScore", label_value) for label_value in sorted(silent)],
        }
        for minute, silent in moments.items()
    ]
    _check_alerts(series, cases, tmp_path)


def _check_alerts(series: list[tuple[str, str]], cases: list[dict[str, Any]], tmp_path: Path) -> None:
    """Evaluate all alerts with Prometheus, with one sample a minute."""
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "alerts", "rules": _without_annotations(_rules())}]})
    )
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "alert_rule_test": cases,
            }
        ],
    }
    _promtool("test", {"alerts": test}, tmp_path)


def _without_annotations(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an expected alert without annotations, whose texts contain figures."""
    return [{name: value for name, value in rule.items() if name != "annotations"} for rule in rules]


def _expected(name: str, label_value: str) -> dict[str, Any]:
    (rule,) = [rule for rule in _rules() if rule["alert"] == name]
    label = {
        "DynamicScoringNoScore": {"ds_cluster": label_value, "ds_score_name": "s"},
        "DynamicScoringPathInterrupted": {"stage": label_value},
        "DynamicScoringQueueFull": {"queue": label_value},
        "DynamicScoringAgentMissing": {"ds_cluster": label_value},
        "DynamicScoringResultsRejected": {"reason": label_value},
        "DynamicScoringMessagesDropped": {"reason": label_value},
        "DynamicScoringHubWithoutRedis": {"pod": label_value},
        "DynamicScoringHubProblem": {"kind": label_value},
        "DynamicScoringCertificateEnds": {"certificate": label_value},
    }.get(name, {})
    return {"exp_labels": {**rule["labels"], **label}, "exp_annotations": {}}
