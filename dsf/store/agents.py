"""Agents' protocol versions from their signed results, so that too old ones are reported, not ignored."""

from __future__ import annotations

from collections.abc import Mapping

import redis
from pydantic import BaseModel, ConfigDict, ValidationError

import dsf.log
from dsf import keys
from dsf.store.client import at_once

log = dsf.log.get(__name__)


class AgentRecord(BaseModel):
    """An agent per its newest result."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: Version of its messages.
    schema_version: int = keys.SCHEMA_VERSION
    #: Its software version; empty if not sent.
    version: str = ""

    @property
    def problem(self) -> str:
        """Why its results are refused, as text; empty if they are not."""
        if keys.is_supported(self.schema_version):
            return ""
        what = f"its agent ({self.version})" if self.version else "its agent"
        oldest, newest = keys.SCHEMA_VERSION - 1, keys.SCHEMA_VERSION + 1
        said = f"{what} speaks version {self.schema_version} of the messages, the hub {oldest} to {newest}"
        if self.schema_version < oldest:
            return f"{said}: the agent is too old and its results are refused; upgrade it"
        return f"{said}: the hub is too old and refuses its results; upgrade the hub, or take the agent back"


class Agents:
    """Methods raise redis.RedisError if Redis is unreachable."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def note_all(self, records: Mapping[str, tuple[AgentRecord, int]]) -> None:
        """Store agents' versions, and the newest key ids that they signed with. One round trip."""
        texts = {name: record.model_dump_json() for name, (record, _) in records.items()}
        at_once(
            self._redis,
            ("HSET", keys.KEYS_USED, *(part for name, (_, key_id) in records.items() for part in (name, key_id))),
            ("HSET", keys.AGENTS, *(part for item in texts.items() for part in item)),
        )

    def one(self, cluster: str) -> AgentRecord | None:
        """The agent of one cluster; None if unknown, or if its record is unreadable."""
        return _read(self._redis.hget(keys.AGENTS, cluster))

    def all(self) -> dict[str, AgentRecord]:
        """By cluster. Unreadable records are logged and left out."""
        found: dict[str, AgentRecord] = {}
        for cluster, text in self._redis.hgetall(keys.AGENTS).items():
            try:
                found[str(cluster)] = AgentRecord.model_validate_json(str(text))
            except ValidationError as error:
                log.error("record of an agent cannot be read", cluster=cluster, problems=error.error_count())
        return found

    def problems(self) -> Mapping[str, str]:
        """Cluster -> why its agent's results are refused; only those with a problem, by name."""
        return {cluster: record.problem for cluster, record in sorted(self.all().items()) if record.problem}


def _read(text: object) -> AgentRecord | None:
    try:
        return AgentRecord.model_validate_json(str(text)) if text else None
    except ValidationError:
        return None
