"""Each method has a model, a function and a manifest on its page, and the manifests are valid."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api.authentication import Methods, Tls, find_references
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ClusterFacts, ScoringAuthentication
from dsf.api.servers import select_methods
from dsf.auth import authenticator
from dsf.auth.authenticator import GROUP, METHODS
from dsf.auth.secrets import SecretError

PAGE = (Path(__file__).parents[3] / "docs" / "sources.md").read_text(encoding="utf-8")
#: The manifests of the part about authentication, by their headings.
MANIFESTS: dict[str, Any] = {
    heading: yaml.load(text, Loader=yaml.CSafeLoader)
    for heading, text in re.findall(r"^### (\w+)\n(?:(?!^###).)*?^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}
#: The objects on the page, by their names.
AUTHENTICATIONS: dict[str, dict[str, Any]] = {
    document["metadata"]["name"]: document
    for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    if isinstance(document := yaml.load(text, Loader=yaml.CSafeLoader), dict)
    and document.get("kind") == "ScoringAuthentication"
}


def scorer(source: dict[str, Any]) -> DynamicScorer:
    """Return a DynamicScorer with this source."""
    spec = {
        "description": "d",
        "configURL": "http://scorer.example/config",
        "configSyncMode": "None",
        "scoring": {"params": {"name": "s", "interval": 30}},
        "source": source,
    }
    metadata = {"name": "one", "namespace": "open-cluster-management"}
    return DynamicScorer.from_manifest(
        {
            "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
            "kind": "DynamicScorer",
            "metadata": metadata,
            "spec": spec,
        }
    )


def test_each_method_has_a_function() -> None:
    assert set(METHODS) == set(Methods.model_fields)
    for field, name in METHODS.items():
        [function] = (
            [pkgutil.resolve_name(name)] if name else [each.load() for each in entry_points(group=GROUP, name=field)]
        )
        assert callable(function)


def test_method_of_another_distribution_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "another_cloud-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: another-cloud\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\naws = another_cloud:add\n")
    (tmp_path / "another_cloud.py").write_text("def add(method, builder):\n    return None\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    authenticator._find_entry_point.cache_clear()
    try:
        assert authenticator._load_function("aws").__module__ == "another_cloud"
        monkeypatch.setattr(authenticator, "entry_points", lambda **_: ())
        authenticator._find_entry_point.cache_clear()
        with pytest.raises(SecretError, match=r"aws needs the extra `aws` in this agent"):
            authenticator._load_function("aws")
    finally:
        authenticator._find_entry_point.cache_clear()


def test_each_method_has_a_manifest() -> None:
    documented_methods: set[str] = set()
    for manifest in MANIFESTS.values():
        source = scorer(manifest["source"]).spec.source
        documented_methods |= {
            name for name in Methods.model_fields if source.auth is not None and getattr(source.auth, name)
        }
    for manifest in AUTHENTICATIONS.values():
        source = ScoringAuthentication.from_manifest(manifest)
        documented_methods |= {name for name in Methods.model_fields if getattr(source.spec, name)}
        where = ClusterFacts("one", sets=frozenset({"america"}))
        assert all(override.is_any or override.tls for override in filter(None, [source.spec.find_override(where)]))
    assert documented_methods == set(Methods.model_fields)


#: Rows of the table: method, the rest of the row, and the heading that it links to.
ROWS: list[tuple[str, str, str]] = re.findall(
    r"^\| `(\w+)`(?: with (?:a )?`?(\w+)`?)? \|.*\| \[\w+\]\(#([\w-]+)\) \|$", PAGE, re.MULTILINE
)


@pytest.mark.parametrize(("method", "further_method", "anchor"), ROWS)
def test_each_row_leads_to_a_manifest_with_its_method(method: str, further_method: str, anchor: str) -> None:
    headings = re.findall(r"^(#{2,3}) (.*)$", PAGE, re.MULTILINE)
    (level, heading) = next(
        (level, heading)
        for level, heading in headings
        if re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") == anchor
    )
    section = re.split(rf"^#{{2,{len(level)}}} ", PAGE.partition(f"\n{level} {heading}\n")[2], flags=re.MULTILINE)[0]
    manifest_parts: list[dict[str, Any]] = []
    for text in re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        document = yaml.load(text, Loader=yaml.CSafeLoader)
        spec = document.get("spec") or {}
        manifest_parts += [document.get("source") or {}, (document.get("source") or {}).get("auth") or {}, spec]
        manifest_parts += spec.get("overrides") or []
    method_manifests = [part[method] for part in manifest_parts if method in part]
    assert method_manifests
    assert not further_method or any(further_method in part for part in method_manifests)


def test_documented_table_has_every_method() -> None:
    names = {field.alias for field in Methods.model_fields.values()} | {"tls"}
    assert {method for method, *_ in ROWS} == names


@pytest.mark.parametrize("name", AUTHENTICATIONS)
def test_documented_authentications_reach_their_agents(name: str) -> None:
    scoring_authentication = ScoringAuthentication.from_manifest(AUTHENTICATIONS[name])
    host = scoring_authentication.spec.allowed_hosts[0]
    source = {
        "type": "Prometheus",
        "host": host,
        "params": {"query": "up", "range": 60, "step": 15},
        "auth": {"authenticationRef": {"name": name}},
    }
    access = resolve(
        scorer(source), authentications={f"open-cluster-management/{name}": scoring_authentication}
    ).summary.source_access
    assert access is not None
    assert access.methods == select_methods(scoring_authentication.spec)
    assert (access.authentication, access.allowed_hosts) == (name, scoring_authentication.spec.allowed_hosts)


@pytest.mark.parametrize("heading", MANIFESTS)
def test_documented_manifests_resolve(heading: str) -> None:
    source = scorer(MANIFESTS[heading]["source"])
    summary = resolve(source).summary
    expected_references = {
        reference
        for part in (source.spec.source.auth, source.spec.source.tls)
        if part
        for _, reference in find_references(part)
    }
    assert expected_references == summary.references
    tls = summary.source_access.tls if summary.source_access else None
    assert (heading == "tls") == isinstance(tls, Tls) or heading == "mtls"
