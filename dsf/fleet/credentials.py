"""The credentials of agents as `dsf credentials` shows them, read from Redis."""

from __future__ import annotations

from typing import Literal

import redis
from pydantic import Field

from dsf.errors import UnknownClusterError
from dsf.fleet.views import View
from dsf.store.agents import AgentKeys, KeyRequest
from dsf.store.registry import ClusterRecord, Registry


class CredentialView(View):
    """The key ids of one cluster's credentials, and their state."""

    cluster: str
    current_id: int
    previous_ids: list[int] = Field(description="Ids that stay valid beside current_id during a rotation.")
    used_id: int | None = Field(description="Key id of the newest result; null before the first.")
    state: Literal["not used yet", "in use", "rotating", "asked for"]
    requested: Literal["", "rotate", "revoke"] = Field(description="Pending request.")
    requested_by: str


class CredentialList(View):
    """The credentials of all clusters, or of the named clusters."""

    clusters: list[CredentialView]


def read_credentials(client: redis.Redis, names: set[str] | None) -> CredentialList:
    """Return the credentials of the named clusters, or of all clusters if names is None.

    Raises UnknownClusterError if a name is not registered, and redis.RedisError.
    """
    records = Registry(client).read_clusters()
    unregistered_names = sorted((names or set()) - records.keys())
    if unregistered_names:
        registered_names = ", ".join(sorted(records)) or "none"
        raise UnknownClusterError(f"no cluster {unregistered_names[0]!r} is accepted; registered: {registered_names}")
    keys = AgentKeys(client)
    used_ids, requests = keys.read_used_keys(), keys.read_requests()
    cluster_names = sorted(records.keys() if names is None else names)
    return CredentialList(
        clusters=[_make_view(records[name], used_ids.get(name), requests.get(name)) for name in cluster_names]
    )


def _make_view(record: ClusterRecord, used_id: int | None, request: KeyRequest | None) -> CredentialView:
    current_id, *previous_ids = record.key_ids
    state: Literal["not used yet", "in use", "rotating", "asked for"]
    if request is not None:
        state = "asked for"
    elif previous_ids:
        state = "rotating"
    else:
        state = "in use" if used_id == current_id else "not used yet"
    return CredentialView(
        cluster=record.name,
        current_id=current_id,
        previous_ids=previous_ids,
        used_id=used_id,
        state=state,
        requested=request.action if request is not None else "",
        requested_by=request.by if request is not None else "",
    )
