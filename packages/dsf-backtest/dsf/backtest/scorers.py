"""Builds the summary of a scorer as an agent gets it, from a file with manifests or from the hub."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from dsf import http
from dsf.api.cluster import ManagedCluster
from dsf.api.manifest import ApiObject, ManifestProblem, parse_documents, read_known_fields
from dsf.api.problems import explain
from dsf.api.remoteconfig import CHECK_TIMEOUT, parse_remote_config
from dsf.api.resolve import resolve_for_clusters
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ClusterFacts, ScoringAuthentication
from dsf.api.summary import ScorerSummary
from dsf.api.types import ConfigSyncMode, SourceType
from dsf.api.urls import NO_HOSTS, get_base_url, is_valid_url
from dsf.backtest.errors import BacktestError
from dsf.errors import HttpError, ManifestError, RemoteConfigError, ResolutionError, UnknownScorerError
from dsf.kube.resources import (
    DYNAMIC_SCORERS,
    MANAGED_CLUSTER_SETS,
    MANAGED_CLUSTERS,
    SCORING_AUTHENTICATIONS,
    Resource,
)
from dsf.text import list_names, shorten_url

if TYPE_CHECKING:
    from dsf.kube.session import Session


class ManifestFile:
    """A file with DynamicScorers, and the other files of its folder."""

    def __init__(self, file: Path) -> None:
        """Read the file, which may be a pipe, once. Raises ManifestError."""
        self._file = file
        self._objects = read_objects(file)

    def make_summary(self, name: str | None, cluster: str, scorer_url: str = "") -> ScorerSummary:
        """Return the summary of the DynamicScorer `name` of the file, as an agent of `cluster` would get it.

        Without a name, the only DynamicScorer that is not an input of another one is used. A ManagedCluster in the file
        has the labels for templates and selectors. Raises ManifestError, and the errors of `read_summary_from_hub`.
        """
        scorers = [scorer for scorer in self._objects if isinstance(scorer, DynamicScorer)]
        input_names = {score.scorer for scorer in scorers for score in scorer.spec.source.scores or ()}
        names = [scorer.metadata.name for scorer in scorers]
        chosen_names = [name] if name else [other for other in names if len(names) == 1 or other not in input_names]
        if len(chosen_names) != 1:
            raise ManifestError(
                f"{self._file}: has {len(names)} DynamicScorers; name one of: {', '.join(names) or 'none'}"
            )
        return _resolve_scorer(self._objects, chosen_names[0], cluster, scorer_url, str(self._file))

    def find_input(self, name: str, namespace: str, cluster: str, scorer_url: str = "") -> ScorerSummary | None:
        """Return the summary of the DynamicScorer `name` of a namespace in the file, or else in its folder, or None.

        Raises BacktestError if several files of the folder have it, and the errors of `read_summary_from_hub`.
        """

        def has_scorer(objects: Sequence[ApiObject]) -> bool:
            return any(scorer.metadata.name == name for scorer in _list_scorers(objects, namespace))

        if has_scorer(self._objects):
            return _resolve_scorer(self._objects, name, cluster, scorer_url, str(self._file), namespace=namespace)
        folder = self._file.parent
        matches: dict[Path, list[ApiObject]] = {}
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
            if path.name != self._file.name and has_scorer(objects := _read_other_objects(path)):
                matches[path] = objects
        if len(matches) > 1:
            raise BacktestError(
                f"several files have a DynamicScorer {name!r}: {list_names([*map(str, matches)], 3)}; write the one "
                f"that is meant into {self._file}"
            )
        if not matches:
            return None
        ((path, objects),) = matches.items()
        return _resolve_scorer([*objects, *self._objects], name, cluster, scorer_url, str(path), namespace=namespace)


def read_summary_from_manifest(file: Path, name: str | None, cluster: str) -> ScorerSummary:
    """Return the summary of a DynamicScorer in a file; see `ManifestFile.make_summary`."""
    return ManifestFile(file).make_summary(name, cluster)


def _read_other_objects(file: Path) -> list[ApiObject]:
    """Return the readable objects of a file; empty for a file without manifests."""
    try:
        documents = parse_documents(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError):
        return []
    return [document.object for document in documents if not isinstance(document, ManifestProblem)]


def read_objects(file: Path) -> list[ApiObject]:
    """Return the objects in a file of manifests. Raises ManifestError."""
    try:
        documents = parse_documents(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file}: cannot be read: {error}") from None
    if problems := [
        document for document in documents if isinstance(document, ManifestProblem) and document.severity == "error"
    ]:
        raise ManifestError(str(problems[0]))
    return [document.object for document in documents if not isinstance(document, ManifestProblem)]


def read_summary_from_hub(
    session: Session, name: str, cluster: str, scorer_url: str = "", namespace: str | None = None
) -> ScorerSummary:
    """Return the summary of the DynamicScorer `name` of the hub, as an agent of `cluster` would get it.

    Other objects that cannot be read, such as those of a later version, count as missing, as they do for the hub.
    Raises BackendError, UnknownScorerError, ManifestError, ResolutionError, BacktestError.
    """
    # A command without a hub starts in four fifths of the time if it does not load the client of Kubernetes.
    from dsf.kube.lists import list_objects

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
                    detail = explain(error, model, manifest)[0]
                    problem = f"DynamicScorer {name!r} of the hub cannot be read: {detail}"
    accepted_scorers = (item for item in understood_objects if isinstance(item, DynamicScorer) and not item.is_refused)
    if problem and all(scorer.metadata.name != name for scorer in accepted_scorers):
        raise ManifestError(problem)
    # Read the ManagedClusterSets only if the result depends on them, because reading them needs rights.
    has_sets = any(
        override.cluster_sets
        for item in understood_objects
        if isinstance(item, ScoringAuthentication)
        for override in item.spec.overrides
    )
    cluster_sets = [*list_objects(session, MANAGED_CLUSTER_SETS)] if has_sets else []
    return _resolve_scorer(understood_objects, name, cluster, scorer_url, "the hub", cluster_sets, namespace)


def _list_scorers(objects: Sequence[ApiObject], namespace: str | None) -> list[DynamicScorer]:
    """Return the DynamicScorers of a namespace, or all if `namespace` is None. An object in a file may have none."""
    scorers = [scorer for scorer in objects if isinstance(scorer, DynamicScorer)]
    return [scorer for scorer in scorers if namespace is None or scorer.metadata.namespace in ("", namespace)]


def _resolve_scorer(
    objects: Sequence[ApiObject],
    name: str,
    cluster: str,
    scorer_url: str,
    source: str,
    cluster_sets: Sequence[Mapping[str, Any]] = (),
    namespace: str | None = None,
) -> ScorerSummary:
    dynamic_scorers = _list_scorers(objects, namespace)
    # Sort the scorer in force behind refused scorers of the same name, so that it replaces them in the dict.
    scorers = {item.metadata.name: item for item in sorted(dynamic_scorers, key=lambda item: not item.is_refused)}
    if name not in scorers:
        error_text = f"{source} has no DynamicScorer {name!r}" + (f" in namespace {namespace!r}" if namespace else "")
        raise UnknownScorerError(f"{error_text}; it has: {', '.join(sorted(scorers)) or 'none'}")
    scorer = scorers[name]
    is_unread = scorer.status.last_synced_config is None or bool(scorer_url)
    if scorer.spec.config_sync_mode is ConfigSyncMode.Full and is_unread:
        scorer = _sync_config(scorer, scorer_url)
    authentications = {
        f"{item.metadata.namespace}/{item.metadata.name}": item
        for item in objects
        if isinstance(item, ScoringAuthentication)
    }
    clusters = {item.metadata.name: item for item in objects if isinstance(item, ManagedCluster)}
    facts = clusters[cluster].make_facts(cluster_sets) if cluster in clusters else None
    resolution = resolve_for_clusters(scorer, NO_HOSTS, authentications, [facts or ClusterFacts(cluster)], {})
    variant = resolution.variants.get(cluster, resolution.resolved_scorer.summary)
    if isinstance(variant, ResolutionError):
        raise variant
    if variant is None:
        raise BacktestError(f"{source}: scorer {name!r} does not select cluster {cluster!r}")
    return variant.model_copy(update={"namespace": scorer.metadata.namespace or None})


def _sync_config(scorer: DynamicScorer, scorer_url: str) -> DynamicScorer:
    """Return the scorer with its current /config."""
    url = move_url(scorer.spec.config_url, _get_server(scorer_url)) if scorer_url else scorer.spec.config_url
    try:
        body = http.get(url, deadline=time.monotonic() + CHECK_TIMEOUT, max_bytes=1024 * 1024)
        config = parse_remote_config(body)
    except (HttpError, RemoteConfigError) as error:
        raise BacktestError(
            f"scorer {scorer.metadata.name!r}: {error}; --scorer-url names the scoring API's address from here"
        ) from None
    status = scorer.status.model_copy(update={"last_synced_config": config})
    return scorer.model_copy(update={"status": status})


def move_url(url: str, other: str) -> str:
    """Return `url` at the server of `other`, or `other` itself if it has a path.

    Raises BacktestError for an invalid URL.
    """
    server = _get_server(other)
    if urlsplit(other).path not in ("", "/"):
        return other
    return server + url.removeprefix(get_base_url(url))


def _get_server(url: str) -> str:
    if not is_valid_url(url):
        raise BacktestError(f"{shorten_url(url)!r} is no URL such as http://localhost:8000")
    return get_base_url(url)


def redirect_servers(summary: ScorerSummary, scorer_url: str = "", source_url: str = "") -> ScorerSummary:
    """Return the scorer with its scoring API, and its Prometheus servers, at other addresses. Raises BacktestError."""
    if scorer_url:
        if summary.expression is not None:
            raise BacktestError(f"scorer {summary.name!r} has an expression and no scoring API: leave out --scorer-url")
        summary = summary.model_copy(update={"scoring_endpoint": move_url(summary.scoring_endpoint, scorer_url)})
    if source_url:
        other_sources = tuple(
            source.model_copy(update={"endpoint": move_url(source.endpoint, source_url)})
            if source.type == SourceType.Prometheus
            else source
            for source in summary.sources or ()
        )
        endpoint = move_url(summary.source_endpoint, source_url) if summary.source_endpoint else ""
        summary = summary.model_copy(update={"source_endpoint": endpoint, "sources": other_sources or None})
    return summary
