"""Renderings without access to the cluster, as by Argo CD and `helm template`, are all equal."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.support import chart

SETTLED: chart.Values = yaml.safe_load((chart.ROOT / "deploy" / "gitops" / "values.yaml").read_text())
_OWN_REDIS: chart.Values = {
    "mode": "external",
    "usersSecret": "users",
    "external": {"url": "rediss://redis.example.com:6380/0", "caSecret": "redis-ca"},
    "tls": {"ca": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"},
}
#: Expressions that change with each rendering, or query the cluster.
_UNSETTLED = re.compile(r"\b(lookup|rand\w+|gen[A-Z]\w+|now|uuidv4|derivePassword)\b")
_ACTION = re.compile(r"\{\{-?\s*(?!-?\s*/\*)(\$\w+ :?= )?(.*?)-?\}\}", re.DOTALL)


def _copy_strict_chart(folder: Path) -> Path:
    """Return a copy of the chart whose rendering fails at look-ups and random values."""
    copy = folder / "chart"
    shutil.copytree(chart.CHART, copy)
    for file in (copy / "templates").rglob("*.*"):
        file.write_text(_ACTION.sub(_refuse_function, file.read_text(encoding="utf-8")), encoding="utf-8")
    return copy


def _refuse_function(action: re.Match[str]) -> str:
    function = _UNSETTLED.search(action[2])
    return f'{{{{ {action[1] or ""}fail "{function[1]} was asked" }}}}' if function else action[0]


def _render_files(folder: Path, values: chart.Values) -> dict[str, str]:
    with helm_python.Chart.load(folder) as loaded:
        loaded.validate_schema(values)
        files: dict[str, str] = loaded.render(values, name=chart.RELEASE, namespace=chart.NAMESPACE)
    return files


def _make_values(redis: dict[str, Any]) -> chart.Values:
    return {**SETTLED, "redis": redis, "optimizer": {"enabled": True}}


@pytest.mark.parametrize("values", [SETTLED, _make_values(SETTLED["redis"]), _make_values(_OWN_REDIS)])
def test_rendering_with_existing_secrets_is_deterministic(tmp_path: Path, values: chart.Values) -> None:
    first, second = (_render_files(chart.CHART, values) for _ in range(2))
    assert first == second
    assert _render_files(_copy_strict_chart(tmp_path), values) == first
    objects = [
        manifest
        for name, text in first.items()
        if name.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]
    assert not chart.of_kind(objects, "Secret"), "a Secret in the repository"
    assert "made these itself" not in first[f"{chart.RELEASE}/templates/NOTES.txt"]


def test_argo_cd_application_renders_without_random_values(tmp_path: Path) -> None:
    spec = yaml.safe_load((chart.ROOT / "deploy" / "argocd" / "application.yaml").read_text())["spec"]
    source = spec["source"]
    assert source["path"] == chart.CHART.relative_to(chart.ROOT).as_posix()
    [file] = source["helm"]["valueFiles"]
    values: chart.Values = yaml.safe_load((chart.ROOT / source["path"] / file).read_text())
    values["redis"]["tls"] |= source["helm"]["valuesObject"]["redis"]["tls"]
    assert _render_files(_copy_strict_chart(tmp_path), values) == _render_files(chart.CHART, values)
    version = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["appVersion"]
    assert source["targetRevision"] == f"v{version}"
    assert spec["destination"]["namespace"] == chart.NAMESPACE


def test_settled_chart_uses_the_existing_secrets() -> None:
    redis = chart.find_object(chart.render(SETTLED), "StatefulSet", "dynamic-scoring-redis")
    volumes = {
        volume["name"]: volume["secret"]["secretName"] for volume in chart.pod(redis)["volumes"] if "secret" in volume
    }
    assert volumes == {"users": "our-redis-users", "tls": "our-redis-tls"}
    for name, workload in chart.workloads(chart.render(SETTLED)).items():
        assert "dynamic-scoring-redis-users" not in str(workload), name


@pytest.mark.parametrize("value_path", ["signing", "flower", "usersSecret", "ca", "source", "host"])
def test_missing_gitops_value_is_named(tmp_path: Path, value_path: str) -> None:
    values: chart.Values = yaml.safe_load(yaml.safe_dump(SETTLED))
    values["redis"]["exposure"] = {"type": "LoadBalancer", "host": "redis.hub.example.com"}
    part, name = {
        "usersSecret": (values["redis"], "redis.usersSecret"),
        "ca": (values["redis"]["tls"], "redis.tls.ca"),
        "source": (values["redis"]["tls"], "redis.tls.source"),
        "host": (values["redis"]["exposure"], "redis.exposure.host"),
    }.get(value_path, (values, f"{value_path}.existingSecret"))
    del part[value_path]
    text = _render_files(chart.CHART, values)[f"{chart.RELEASE}/templates/NOTES.txt"]
    assert re.findall(r"^  (\S+)$", text.partition("made these itself")[2].partition("\n\n")[0], re.MULTILINE) == [name]
    with pytest.raises(helm_python.HelmError, match="was asked"):
        _render_files(_copy_strict_chart(tmp_path), values)


def test_gitops_page_and_values_list_the_keys_of_the_secrets() -> None:
    page = (chart.ROOT / "docs" / "gitops.md").read_text(encoding="utf-8")
    for secret in ("our-signing", "our-flower", "our-redis-users", "our-redis-tls"):
        assert f"`{secret}`" in page
    # Every process on the hub has the key of its user.
    expected_keys = {
        item["key"]
        for workload in chart.workloads(chart.render(_make_values(SETTLED["redis"]))).values()
        for volume in chart.pod(workload)["volumes"]
        if volume.get("secret", {}).get("secretName") == "our-redis-users"
        for item in volume["secret"].get("items", ())
    }
    row = next(line for line in page.splitlines() if "`our-redis-users`" in line)
    assert expected_keys <= set(re.findall(r"`([\w-]+)`", row))
