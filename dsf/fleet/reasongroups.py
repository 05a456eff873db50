"""Groups of pairs without a new score by reason: `bad_query on 412 clusters`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import redis
from pydantic import BaseModel, ValidationError

from dsf import keys
from dsf.fleet.overviews import ReasonGroup
from dsf.fleet.verdict import Verdict
from dsf.store.registry import ScorerRecord
from dsf.store.skips import Skips

#: Most groups read per scorer. Agents send reasons, so there may be as many as clusters.
MOST: Final = 200


class _Newest(BaseModel):
    """The newest text of a group, as lua/model.lua writes it."""

    cluster: str = ""
    run: str = ""
    at: float = 0.0
    message: str = ""


def reason_groups(client: redis.Redis, scorers: Mapping[str, ScorerRecord]) -> dict[str, list[ReasonGroup]]:
    """The groups of each of these scorers (by name), most clusters first."""
    names = list(scorers)
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hgetall(keys.model_groups(name))
        stored: list[dict[str, str]] = pipe.execute()
    rows = [(name, group, text) for name, some in zip(names, stored, strict=True) for group, text in _some(some)]
    with client.pipeline(transaction=False) as pipe:
        for name, group, _ in rows:
            pipe.zcard(keys.model_group(name, group))
        sizes: list[int] = pipe.execute()
    found: dict[str, list[ReasonGroup]] = {name: [] for name in names}
    for (name, group, text), size in zip(rows, sizes, strict=True):
        if size:
            found[name].append(_group(scorers[name], group, text, size))
    for groups in found.values():
        groups.sort(key=lambda one: (-one.clusters, one.reason, one.stage))
    return found


def _some(stored: Mapping[str, str]) -> Any:
    return islice(stored.items(), MOST)


def _group(record: ScorerRecord, group: str, text: str, size: int) -> ReasonGroup:
    state, stage, reason = group.split(":", 2)
    try:
        newest = _Newest.model_validate_json(text)
    except ValidationError:
        newest = _Newest()
    message = newest.message
    if state == Verdict.SKIPPED:
        message = Skips(newest.cluster, reason, 0, 0.0).why(record.rate_limit, record.problem)
    elif not message and reason == "expired":
        message = "its cycles wait in the cluster's queue until the next one is due: the agent is away or too slow"
    return ReasonGroup(
        scorer=record.name,
        state=Verdict(state),
        stage=stage,
        reason=reason,
        clusters=size,
        cluster=newest.cluster,
        run_id=newest.run,
        at=newest.at or None,
        message=message,
    )
