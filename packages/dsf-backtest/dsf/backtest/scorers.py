"""The summary of a scorer as an agent would get it: from a manifest that is registered nowhere, or from the hub."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from dsf import http
from dsf.api.cluster import ManagedCluster
from dsf.api.manifest import ApiObject, ManifestProblem, parse_documents, read_known_fields
from dsf.api.problems import explain
from dsf.api.remoteconfig import CHECK_TIMEOUT, parse_remote_config
from dsf.api.resolve import resolve_everywhere
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ClusterFacts, ScoringAuthentication
from dsf.api.summary import ScorerSummary
from dsf.api.types import ConfigSyncMode, SourceType
from dsf.api.urls import NO_HOSTS, base_url, is_valid_url
from dsf.backtest.errors import BacktestError
from dsf.errors import HttpError, ManifestError, RemoteConfigError, ResolutionError, UnknownScorerError
from dsf.kube.lists import list_objects
from dsf.kube.resources import (
    DYNAMIC_SCORERS,
    MANAGED_CLUSTER_SETS,
    MANAGED_CLUSTERS,
    SCORING_AUTHENTICATIONS,
    Resource,
)
from dsf.kube.session import Session
from dsf.text import shown_url


def from_manifest(file: Path, name: str | None, cluster: str, scorer_url: str = "") -> ScorerSummary:
    """The DynamicScorer `name` in this file, as an agent of `cluster` would run it; without a name, the only one.

    A ManagedCluster in the file has the labels for templates and selectors. Raises ManifestError, and as `from_hub`.
    """
    objects = read_objects(file)
    names = [each.metadata.name for each in objects if isinstance(each, DynamicScorer)]
    if name is None and len(names) != 1:
        raise ManifestError(f"{file}: has {len(names)} DynamicScorers; name one of: {', '.join(names) or 'none'}")
    return _of(objects, name or names[0], cluster, scorer_url, str(file))


def read_objects(file: Path) -> list[ApiObject]:
    """Return the objects in a file of manifests. Raises ManifestError."""
    try:
        parsed = parse_documents(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file}: cannot be read: {error}") from None
    if wrong := [each for each in parsed if isinstance(each, ManifestProblem) and each.severity == "error"]:
        raise ManifestError(str(wrong[0]))
    return [each.object for each in parsed if not isinstance(each, ManifestProblem)]


def from_hub(session: Session, name: str, cluster: str, scorer_url: str = "") -> ScorerSummary:
    """Return the DynamicScorer `name` of the hub, as an agent of `cluster` would run it.

    Other objects that cannot be read, such as those of a later version, count as missing, as they do for the hub.
    Raises BackendError, UnknownScorerError, ManifestError, ResolutionError, BacktestError.
    """
    kinds: tuple[tuple[Resource, type[ApiObject]], ...] = (
        (DYNAMIC_SCORERS, DynamicScorer),
        (SCORING_AUTHENTICATIONS, ScoringAuthentication),
        (MANAGED_CLUSTERS, ManagedCluster),
    )
    understood_objects: list[ApiObject] = []
    problem = ""
    for resource, model in kinds:
        for manifest in list_objects(session, resource):
            try:
                understood_objects.append(read_known_fields(manifest, model))
            except ValidationError as error:
                if model is DynamicScorer and manifest["metadata"]["name"] == name:
                    mistake = explain(error, model, manifest)[0]
                    problem = f"DynamicScorer {name!r} of the hub cannot be read: {mistake}"
    in_force = (each for each in understood_objects if isinstance(each, DynamicScorer) and not each.is_refused)
    if problem and all(each.metadata.name != name for each in in_force):
        raise ManifestError(problem)
    # Rights to read them are needed only if they decide something.
    has_sets = any(
        override.cluster_sets
        for each in understood_objects
        if isinstance(each, ScoringAuthentication)
        for override in each.spec.overrides
    )
    cluster_sets = [*list_objects(session, MANAGED_CLUSTER_SETS)] if has_sets else []
    return _of(understood_objects, name, cluster, scorer_url, "the hub", cluster_sets)


def _of(
    objects: Sequence[ApiObject],
    name: str,
    cluster: str,
    scorer_url: str,
    where: str,
    cluster_sets: Sequence[Mapping[str, Any]] = (),
) -> ScorerSummary:
    dynamic_scorers = [each for each in objects if isinstance(each, DynamicScorer)]
    # The one in force replaces others of its name.
    scorers = {each.metadata.name: each for each in sorted(dynamic_scorers, key=lambda each: not each.is_refused)}
    if name not in scorers:
        raise UnknownScorerError(
            f"{where} has no DynamicScorer {name!r}; it has: {', '.join(sorted(scorers)) or 'none'}"
        )
    scorer = scorers[name]
    is_unread = scorer.status.last_synced_config is None or bool(scorer_url)
    if scorer.spec.config_sync_mode is ConfigSyncMode.Full and is_unread:
        scorer = _synced(scorer, scorer_url)
    authentications = {
        f"{each.metadata.namespace}/{each.metadata.name}": each
        for each in objects
        if isinstance(each, ScoringAuthentication)
    }
    clusters = {each.metadata.name: each for each in objects if isinstance(each, ManagedCluster)}
    facts = clusters[cluster].facts(cluster_sets) if cluster in clusters else None
    everywhere = resolve_everywhere(scorer, NO_HOSTS, authentications, [facts or ClusterFacts(cluster)], {})
    variant = everywhere.variants.get(cluster, everywhere.resolved.summary)
    if isinstance(variant, ResolutionError):
        raise variant
    if variant is None:
        raise BacktestError(f"{where}: scorer {name!r} does not select cluster {cluster!r}")
    return variant


def _synced(scorer: DynamicScorer, scorer_url: str) -> DynamicScorer:
    """With what its /config says now."""
    url = moved(scorer.spec.config_url, _server(scorer_url)) if scorer_url else scorer.spec.config_url
    try:
        body = http.get(url, deadline=time.monotonic() + CHECK_TIMEOUT, max_bytes=1024 * 1024)
        config = parse_remote_config(body)
    except (HttpError, RemoteConfigError) as error:
        raise BacktestError(
            f"scorer {scorer.metadata.name!r}: {error}; --scorer-url names the scoring API's address from here"
        ) from None
    status = scorer.status.model_copy(update={"last_synced_config": config})
    return scorer.model_copy(update={"status": status})


def moved(url: str, other: str) -> str:
    """`url` at the server of `other`; `other` itself if it has a path. Raises BacktestError for no URL."""
    server = _server(other)
    if urlsplit(other).path not in ("", "/"):
        return other
    return server + url.removeprefix(base_url(url))


def _server(url: str) -> str:
    if not is_valid_url(url):
        raise BacktestError(f"{shown_url(url)!r} is no URL such as http://localhost:8000")
    return base_url(url)


def redirected(summary: ScorerSummary, scorer_url: str = "", source_url: str = "") -> ScorerSummary:
    """Return the scorer with its scoring API, and its Prometheus servers, at other addresses. Raises BacktestError."""
    if scorer_url:
        if summary.expression is not None:
            raise BacktestError(f"scorer {summary.name!r} has an expression and no scoring API: leave out --scorer-url")
        summary = summary.model_copy(update={"scoring_endpoint": moved(summary.scoring_endpoint, scorer_url)})
    if source_url:
        other_sources = tuple(
            source.model_copy(update={"endpoint": moved(source.endpoint, source_url)})
            if source.type == SourceType.Prometheus
            else source
            for source in summary.sources or ()
        )
        endpoint = moved(summary.source_endpoint, source_url) if summary.source_endpoint else ""
        summary = summary.model_copy(update={"source_endpoint": endpoint, "sources": other_sources or None})
    return summary
