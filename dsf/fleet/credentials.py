"""Views of `dsf credentials`, read from Redis."""

from __future__ import annotations

from typing import Literal

import redis
from pydantic import Field

from dsf.errors import UnknownClusterError
from dsf.fleet.views import View
from dsf.store.agents import AgentKeys, KeyRequest
from dsf.store.registry import ClusterRecord, Registry


class CredentialView(View):
    """The credentials of one cluster, by their numbers."""

    cluster: str
    current_id: int
    previous_ids: list[int] = Field(description="Still valid beside the current ones, during a rotation.")
    used_id: int | None = Field(description="Key id of the newest result; null before the first.")
    state: Literal["not used yet", "in use", "rotating", "asked for"]
    requested: Literal["", "rotate", "revoke"] = Field(description="Pending request.")
    requested_by: str


class CredentialList(View):
    """The credentials of all clusters, or of some."""

    clusters: list[CredentialView]


def read_credentials(client: redis.Redis, names: set[str] | None) -> CredentialList:
    """Return all clusters, or these. Raises UnknownClusterError and redis.RedisError."""
    records = Registry(client).clusters()
    unregistered_names = sorted((names or set()) - records.keys())
    if unregistered_names:
        registered_names = ", ".join(sorted(records)) or "none"
        raise UnknownClusterError(f"no cluster {unregistered_names[0]!r} is accepted; registered: {registered_names}")
    keys = AgentKeys(client)
    used_ids, requests = keys.used(), keys.requests()
    cluster_names = sorted(records.keys() if names is None else names)
    return CredentialList(
        clusters=[_view(records[name], used_ids.get(name), requests.get(name)) for name in cluster_names]
    )


def _view(record: ClusterRecord, used_id: int | None, request: KeyRequest | None) -> CredentialView:
    current, *previous = record.key_ids
    settled: Literal["rotating", "in use", "not used yet"]
    settled = "rotating" if previous else "in use" if used_id == current else "not used yet"
    return CredentialView(
        cluster=record.name,
        current_id=current,
        previous_ids=previous,
        used_id=used_id,
        state="asked for" if request is not None else settled,
        requested=request.action if request is not None else "",
        requested_by=request.by if request is not None else "",
    )
