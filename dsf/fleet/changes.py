"""The list of changes: a capped Redis stream of users' actions with author and time.

All components that act for users write to it: the command line, the page, the optimizer and its tools for assistants.
The hub controller creates Kubernetes Events about changes of a DynamicScorer. The list keeps changes longer than
Kubernetes and Flower do. Redis' clock sets their times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import redis
from pydantic import AfterValidator, Field

import dsf.log
from dsf import keys
from dsf.api.naming import MAX_NAME_LENGTH
from dsf.errors import CursorError
from dsf.fleet.views import Time, View
from dsf.process import hubclock
from dsf.store.client import run_atomically
from dsf.text import clean

log = dsf.log.get(__name__)

#: Maximum number of clusters that a change names. Further clusters are only counted.
MAX_CLUSTERS: Final = 20
#: Maximum number of characters of a note or a detail.
MAX_NOTE: Final = 500
#: Maximum number of changes per round trip.
_BATCH_SIZE: Final = 500
_FIELD: Final = "change"
_ID_PATTERN: Final = re.compile(r"(?!0+-0+$)[0-9]{1,15}-[0-9]{1,19}")


class Action(StrEnum):
    """Kinds of actions of users."""

    RESCORE = "rescore"
    PAUSE = "pause"
    RESUME = "resume"
    INTERVAL = "interval"
    RESET = "reset"
    SYNC = "sync"
    BACKTEST = "backtest"
    COMPARE = "compare"
    ROTATE = "rotate"
    REVOKE = "revoke"
    PLAN_APPLIED = "plan-applied"
    PLAN_RESET = "plan-reset"


#: Interface through which a user acted. `watch` stands for the hub itself, which watches Redis.
Way = Literal["cli", "page", "api", "mcp", "annotation", "watch"]


class Actor(View):
    """Author of an action."""

    name: str
    claimed: bool = Field(description="The name is unverified.")
    way: Way


_Name = Annotated[str, AfterValidator(lambda text: clean(text, MAX_NAME_LENGTH))]
_Note = Annotated[str, AfterValidator(lambda text: clean(text, MAX_NOTE))]


class UserAction(View):
    """An action of a user, without secrets. Texts are cleaned, and truncated to some hundred characters."""

    action: Action
    scorer: _Name = Field(default="", description="The DynamicScorer; empty without one.")
    clusters: list[_Name] = Field(
        default=[],
        description=f"At most {MAX_CLUSTERS} affected clusters; empty for all clusters of the scorer, or for none.",
    )
    cluster_count: int = Field(default=0, description="Number of affected clusters; 0 if they were not counted.")
    namespace: _Name = Field(default="", description="Namespace of the plan; empty for other actions.")
    detail: _Note = Field(default="", description="Details, such as `5 s, was 30 s`.")
    reference: _Name = Field(default="", description="Run id of a single requested run, or id of the plan.")
    note: _Note = Field(default="", description="Reason that the author gave.")


class Change(UserAction):
    """An action with its author."""

    id: str = Field(description="Id, which sorts by time and is a cursor for the next page.")
    at: Time
    by: _Name
    claimed: bool = Field(default=True, description="The name in `by` is unverified.")
    way: Way = "cli"

    @property
    def is_long(self) -> bool:
        """True if the action affected more clusters than the change names."""
        return self.cluster_count > len(self.clusters) > 0

    def may_affect(self, cluster: str) -> bool:
        """True if the action may have affected this cluster."""
        if self.namespace:
            return False
        return not self.clusters or cluster in self.clusters or self.is_long

    @property
    def where(self) -> str:
        """The affected clusters: `worker01, worker02 and 5 more`, `all clusters`, or an empty text for a plan."""
        if self.namespace:
            return ""
        if not self.clusters:
            return "all clusters"
        omitted_count = self.cluster_count - len(self.clusters)
        return ", ".join(self.clusters) + (f" and {omitted_count} more" if omitted_count > 0 else "")

    @property
    def who(self) -> str:
        """The author's name, followed by `(claimed)` if it is unverified."""
        return f"{self.by or 'unknown'}{' (claimed)' if self.claimed else ''}"

    @property
    def sentence(self) -> str:
        """The change without its time, for an Event: `paused on worker01 (until ...) by ann@host (claimed), cli:
        why`.
        """
        target_text = f" on {self.where}" if self.where else f" in namespace {self.namespace}"
        detail = f" ({self.detail})" if self.detail else ""
        note = f": {self.note}" if self.note else ""
        return f"{_VERBS[self.action]}{target_text}{detail} by {self.who}, {self.way}{note}"


#: Descriptions of completed actions, for Events.
_VERBS: Final = {
    Action.RESCORE: "scored now",
    Action.PAUSE: "paused",
    Action.RESUME: "resumed",
    Action.INTERVAL: "interval set",
    Action.RESET: "changes of people removed",
    Action.SYNC: "/config read now",
    Action.BACKTEST: "backtest started",
    Action.COMPARE: "comparison started",
    Action.ROTATE: "new credentials asked for",
    Action.REVOKE: "credentials revoked",
    Action.PLAN_APPLIED: "plan applied",
    Action.PLAN_RESET: "plan removed",
}


class ChangeList(View):
    """Changes, newest first."""

    at: Time
    changes: list[Change]
    continue_: str | None = Field(
        default=None,
        alias="continue",
        description="Cursor of the next page; null on the last.",
    )


def record_change(client: redis.Redis, actor: Actor, user_action: UserAction) -> str:
    """Record a completed action, and return the id of the change.

    If the Redis user may not write the stream, as with the ACL of an earlier version, logs an error and returns an
    empty id, because the action is already completed. Raises redis.RedisError for other errors.
    """
    fields = user_action.model_dump()
    cluster_count = max(user_action.cluster_count, len(user_action.clusters))
    fields |= {"clusters": user_action.clusters[:MAX_CLUSTERS], "cluster_count": cluster_count}
    change = Change(id="", at=0.0, by=actor.name, claimed=actor.claimed, way=actor.way, **fields)
    # Exclude id and time: Redis assigns the id, which contains the time.
    text = change.model_dump_json(by_alias=True, exclude={"id", "at"})
    try:
        change_id, *_ = run_atomically(
            client,
            ("XADD", keys.CHANGES, "MAXLEN", keys.CHANGES_KEPT, "*", _FIELD, text),
            # Wake the hub controller, which creates an Event for the change.
            ("LPUSH", keys.HUB_WAKE, "1"),
            ("LTRIM", keys.HUB_WAKE, 0, 0),
        )
        return str(change_id)
    except redis.exceptions.NoPermissionError as error:
        log.error(
            "the change cannot be recorded: this Redis user has the rights of an earlier version, see docs/upgrade.md",
            action=user_action.action.value,
            scorer=user_action.scorer,
            error=str(error),
        )
        return ""


def read_changes(
    client: redis.Redis,
    *,
    limit: int | None = None,
    cursor: str | None = None,
    scorer: str | None = None,
    cluster: str | None = None,
    since: float | None = None,
) -> ChangeList:
    """Return changes, newest first.

    Returns at most `limit` changes (None: all), starting after the change with the id `cursor`. `scorer` restricts them
    to a scorer, `cluster` to those that may affect a cluster, and `since` to those from this time (unix seconds) on.
    Raises CursorError if the cursor is not an id, and redis.RedisError.
    """
    if cursor is not None and not _ID_PATTERN.fullmatch(cursor):
        raise CursorError(
            f"{cursor[:MAX_NAME_LENGTH]!r} is not a cursor of the changes; use `continue` of the previous response"
        )
    changes: list[Change] = []
    has_more = False
    for change in _iterate_newest_first(client, cursor, since):
        if scorer is not None and change.scorer != scorer:
            continue
        if cluster is not None and not change.may_affect(cluster):
            continue
        if limit is not None and len(changes) >= limit:
            has_more = True
            break
        changes.append(change)
    return ChangeList(at=hubclock.now(), changes=changes, continue_=changes[-1].id if has_more and changes else None)


def read_after(client: redis.Redis, last_id: str) -> Sequence[tuple[str, Change | None]]:
    """Return a batch of changes after the id `last_id`, oldest first: pairs of id and change, None if unreadable.

    Raises redis.RedisError.
    """
    entries: Any = client.xrange(keys.CHANGES, f"({last_id}", "+", _BATCH_SIZE)
    return [(id_, _parse(id_, fields)) for id_, fields in entries]


def parse_change_id(id_: str) -> tuple[int, int]:
    """Return the unix time in milliseconds and the sequence number of a change's id. Later changes are greater."""
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number or 0)


def _iterate_newest_first(client: redis.Redis, cursor: str | None, since: float | None) -> Iterator[Change]:
    """Yield the readable changes before the id `cursor`, newest first, back to the time `since` (unix seconds)."""
    first_id = "-" if since is None else str(max(0, int(since * 1000)))
    last_id = "+" if cursor is None else f"({cursor}"
    while True:
        batch: Any = client.xrevrange(keys.CHANGES, last_id, first_id, _BATCH_SIZE)
        for id_, fields in batch:
            if (change := _parse(id_, fields)) is not None:
                yield change
        if len(batch) < _BATCH_SIZE:
            return
        last_id = f"({batch[-1][0]}"


def _parse(id_: str, fields: Any) -> Change | None:
    """Return the change in an entry of the stream; log and return None if it cannot be read."""
    try:
        return Change.model_validate({**json.loads(fields[_FIELD]), "id": id_, "at": parse_change_id(id_)[0] / 1000})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        log.warning("a change cannot be read", id=id_, error=type(error).__name__)
        return None
