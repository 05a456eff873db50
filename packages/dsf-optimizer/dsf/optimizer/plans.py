"""Stores the optimiser's last proposal for each namespace beside the plan in force, as data for the page.

The optimiser writes the data when it plans, applies or resets. Readers need neither the optimiser nor its rights.
"""

from __future__ import annotations

from typing import Final, Literal

import redis
from pydantic import Field

import dsf.log
from dsf.fleet.views import Time, View
from dsf.optimizer.redisrights import PLANS
from dsf.store.client import parse_stored

log = dsf.log.get(__name__)

#: Maximum kept rows of each list; omitted ones are counted.
MAX_ROWS: Final = 200

#: Kinds of change for a workload.
MoveKind = Literal["stays", "moves", "is placed", "is taken away", "is nowhere"]


class PlanBlock(View):
    """Replicas of one workload on one cluster."""

    workload: str
    replicas: int
    score: float = Field(description="Score of one replica.")
    share: float = Field(
        description="Share of the configuration's supply that is used, of the most used resource; 0 to 1."
    )


class PlanColumn(View):
    """A cluster in a plan. An unused cluster has no policy."""

    cluster: str
    policy: str = ""
    device: str = ""
    supply: dict[str, int] = Field(default={}, description="Amount by resource kind.")
    used: dict[str, int] = Field(default={})
    blocks: list[PlanBlock] = Field(default=[], description="Replicas by workload, the highest score first.")


class ClusterPlan(View):
    """A cluster in the plan in force and in the proposed plan."""

    cluster: str
    now: PlanColumn
    proposed: PlanColumn
    changes: bool = Field(description="True if the configuration or the replicas differ.")


class PlanPlace(View):
    """The place of replicas of a workload."""

    cluster: str
    device: str
    replicas: int
    score: float


class PlanMove(View):
    """The change of one workload, with its reason."""

    workload: str
    change: MoveKind
    now: list[PlanPlace] = Field(default=[])
    proposed: list[PlanPlace] = Field(default=[])
    unplaced: int = Field(default=0, description="Replicas that are not placed.")
    why: str = Field(
        default="", description="Why the workload is not at its next best option, or why it is not placed."
    )
    next_best: str = Field(
        default="", description="`cluster with device (score)`; empty when no other option has a score."
    )


class PlanComparison(View):
    """The plan in force in a namespace and the proposed one. Both are equal right after the plan was applied."""

    namespace: str
    at: Time = Field(description="Time of the proposal.")
    plan_id: str
    applied: bool = Field(description="True if the proposed plan is already in force.")
    status: str = Field(description="Optimal or Feasible.")
    score_now: float = Field(description="Sum of the scores of the plan in force, as they were when it was made.")
    score_proposed: float
    gap: float = Field(description="Maximum distance from the best possible plan, as a share.")
    clusters: list[ClusterPlan] = Field(default=[], description="Clusters that change come first.")
    moves: list[PlanMove] = Field(default=[], description="Workloads that change come first.")
    more_clusters: int = 0
    more_moves: int = 0
    warnings: list[str] = Field(
        default=[], description="Obstacles to applying the plan, and reasons why it may have no effect."
    )

    def limit_rows(self, rows: int = MAX_ROWS) -> PlanComparison:
        """Return the comparison with at most this many rows of each list, and the numbers of omitted rows."""
        return self.model_copy(
            update={
                "clusters": self.clusters[:rows],
                "moves": self.moves[:rows],
                "more_clusters": self.more_clusters + max(0, len(self.clusters) - rows),
                "more_moves": self.more_moves + max(0, len(self.moves) - rows),
                # The page shows ten warnings.
                "warnings": self.warnings[: max(rows, 10)],
            }
        )


def store_comparison(client: redis.Redis, comparison: PlanComparison) -> bool:
    """Store a comparison as the newest of its namespace, with as many rows as fit. Return True if it was stored.

    Raises redis.RedisError.
    """
    rows = MAX_ROWS
    while len(text := comparison.model_dump_json(by_alias=True).encode()) > 1024 * 1024:
        if rows == 0:
            log.warning("a plan is too large to be shown", namespace=comparison.namespace, size=len(text))
            # Remove the stored comparison, because it is outdated.
            remove_comparison(client, comparison.namespace)
            return False
        rows //= 2
        comparison = comparison.limit_rows(rows)
    is_stored = client.hexists(PLANS, comparison.namespace)
    if not is_stored and int(client.hlen(PLANS)) >= 100:
        log.warning("plans of too many namespaces are kept", namespace=comparison.namespace)
        return False
    client.hset(PLANS, comparison.namespace, text)
    return True


def remove_comparison(client: redis.Redis, namespace: str) -> None:
    """Remove the comparison of a namespace whose plan was reset. Raises redis.RedisError."""
    client.hdel(PLANS, namespace)


def read_plans(client: redis.Redis) -> list[PlanComparison]:
    """Return the newest comparison of each namespace, sorted by namespace, without unreadable ones.

    Raises redis.RedisError.
    """
    plans = []
    for namespace, text in sorted(client.hgetall(PLANS).items()):
        if (plan := parse_stored(PlanComparison, str(namespace), str(text))) is not None:
            plans.append(plan)
    return plans
