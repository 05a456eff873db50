"""Reads the input of a Placement's explanation from the hub's API server, and from OCM's scheduler if configured."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import dsf.log
from dsf.errors import HttpError, ObjectNotFoundError, SettingsError, UnknownNameError
from dsf.http.access import make_bearer_access
from dsf.http.client import get
from dsf.kube.lists import list_objects, request_with_retry
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, MANAGED_CLUSTER_SETS, MANAGED_CLUSTERS, PLACEMENTS
from dsf.kube.session import Session
from dsf.placements.explanation import PlacementList, PlacementView, WhatIf, explain, make_summary
from dsf.placements.kinds import MANAGED_CLUSTER_SET_BINDINGS, PLACEMENT_DECISIONS
from dsf.placements.scheduling import (
    Manifest,
    SchedulerResult,
    Situation,
    count_decisions,
    find_cel_resources,
    list_decided_clusters,
)
from dsf.placements.settings import PlacementSettings

log = dsf.log.get(__name__)

#: Label of a PlacementDecision with the name of its Placement.
_PLACEMENT_LABEL: Final = "cluster.open-cluster-management.io/placement"
#: Seconds for a response of OCM's scheduler.
_TIMEOUT_SECONDS: Final = 5.0
#: Maximum size of its response, which has some hundred bytes per cluster and prioritizer.
_MAX_RESPONSE_BYTES: Final = 32 * 1024 * 1024


class SchedulerClient:
    """Client of OCM's placement controller, which serves its scheduler's results at /debug/placements/."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        """`url` is `https://HOST:PORT`. The token needs the right `get` on the nonResourceURL /debug/placements/*."""
        self._url = url.rstrip("/")
        self._token_file = token_file

    def fetch_result(self, namespace: str, name: str) -> SchedulerResult:
        """Return the scheduler's result for a Placement.

        Raises HttpError, and SettingsError for an unreadable token.
        """
        path = f"{self._url}/debug/placements/{quote(namespace)}/{quote(name)}"
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        return parse_scheduler_response(
            get(path, deadline=deadline, max_bytes=_MAX_RESPONSE_BYTES, access=make_bearer_access(self._read_token()))
        )

    def _read_token(self) -> str | None:
        if self._token_file is None:
            return None
        try:
            return self._token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"DSF_PLACEMENT_DEBUGGER_TOKEN_FILE: cannot read {self._token_file}: {type(error).__name__}"
            ) from None


def parse_scheduler_response(body: bytes) -> SchedulerResult:
    """Parse a response of OCM's scheduler. Raises HttpError for an invalid response or a reported error."""
    try:
        response = json.loads(body)
        if response.get("error"):
            raise HttpError("bad_answer", f"OCM's scheduler reports an error: {str(response['error'])[:200]}")
        results = response.get("prioritizeResults") or ()
        # OCM before 1.3 misspells the key. A response for a misconfigured Placement has neither key.
        filters = response.get("filteredPipelineResults") or response["filteredPiplieResults"]
        return SchedulerResult(
            # The last filter lists the clusters that passed all filters.
            passed=frozenset(filters[-1].get("filteredClusters") or ()),
            scores={(result["name"], int(result["weight"])): dict(result.get("scores") or {}) for result in results},
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise HttpError("bad_answer", f"OCM's scheduler sent an unexpected response: {type(error).__name__}") from None


def make_scheduler_client(settings: PlacementSettings) -> SchedulerClient | None:
    """Return the client of OCM's scheduler, or None if the settings have no address."""
    if not settings.placement_debugger:
        return None
    return SchedulerClient(settings.placement_debugger, settings.placement_debugger_token_file)


class PlacementReader:
    """Reads Placements and their input from the hub. Keeps each list of objects that it has read. Thread-safe.

    Methods raise BackendError if the hub is unavailable.
    """

    def __init__(self, session: Session, scheduler_client: SchedulerClient | None = None) -> None:
        self._session = session
        self._list_objects = functools.cache(functools.partial(list_objects, session))
        self._scheduler_client = scheduler_client

    def list_placements(self, namespace: str = "") -> PlacementList:
        """Return all Placements, or those of one namespace, sorted."""
        summaries = [make_summary(placement) for placement in self._list_objects(PLACEMENTS, namespace)]
        return PlacementList(placements=sorted(summaries, key=lambda placement: (placement.namespace, placement.name)))

    def explain(self, namespace: str, name: str, hypothetical_scores: Sequence[WhatIf] = ()) -> PlacementView:
        """Return the explanation of a Placement, with the effect of hypothetical scores. Raises UnknownNameError."""
        situation = self.read_situation(namespace, name)
        if self._scheduler_client is None:
            return explain(situation, hypothetical_scores=hypothetical_scores)
        try:
            scheduler_result = self._scheduler_client.fetch_result(namespace, name)
        except (HttpError, SettingsError) as error:
            log.warning("cannot query OCM's scheduler", error=str(error))
            note = f"OCM's scheduler could not be queried: {error}"
            return explain(situation, source_note=note, hypothetical_scores=hypothetical_scores)
        return explain(situation, scheduler_result=scheduler_result, hypothetical_scores=hypothetical_scores)

    def read_situation(self, namespace: str, name: str) -> Situation:
        """Return the scheduler's input for a Placement. Raises UnknownNameError."""
        try:
            placement = request_with_retry(self._session, "GET", PLACEMENTS.path(namespace, name))
        except ObjectNotFoundError:
            raise UnknownNameError(f"no Placement {name!r} in namespace {namespace!r}") from None
        decisions = self._list_objects(PLACEMENT_DECISIONS)
        placement_decisions = [decision for decision in decisions if _belongs_to_placement(decision, namespace, name)]
        return Situation(
            placement=placement,
            decided=frozenset(
                cluster for decision in placement_decisions for cluster in list_decided_clusters(decision)
            ),
            other_decision_counts=count_decisions(
                decision for decision in decisions if not _belongs_to_placement(decision, namespace, name)
            ),
            clusters={cluster["metadata"]["name"]: cluster for cluster in self._list_objects(MANAGED_CLUSTERS)},
            cluster_sets=self._read_cluster_sets(namespace),
            scores=self._read_scores(placement),
            now=self._session.read_clock(),
        )

    def _read_cluster_sets(self, namespace: str) -> dict[str, Manifest]:
        """Return the ManagedClusterSets that are bound to a namespace, by name."""
        bindings = self._list_objects(MANAGED_CLUSTER_SET_BINDINGS, namespace)
        bound_names = {binding["metadata"]["name"] for binding in bindings}
        cluster_sets = self._list_objects(MANAGED_CLUSTER_SETS) if bound_names else []
        return {
            cluster_set["metadata"]["name"]: cluster_set
            for cluster_set in cluster_sets
            if cluster_set["metadata"]["name"] in bound_names
        }

    def _read_scores(self, placement: Manifest) -> dict[tuple[str, str], Manifest]:
        """Return the AddOnPlacementScores that prioritizers and CEL expressions of a Placement read."""
        names = {score.partition("/")[0] for score in make_summary(placement).scores}
        names |= set(find_cel_resources(placement.get("spec") or {}))
        return {
            (score["metadata"]["namespace"], name): score
            for name in sorted(names)
            for score in self._list_objects(ADDON_PLACEMENT_SCORES, name=name)
        }


def _belongs_to_placement(decision: Manifest, namespace: str, name: str) -> bool:
    """Return True if a PlacementDecision belongs to the Placement with this name."""
    metadata: dict[str, Any] = decision["metadata"]
    return metadata.get("namespace") == namespace and (metadata.get("labels") or {}).get(_PLACEMENT_LABEL) == name
