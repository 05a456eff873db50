"""The service for one caller: each method first asks whether they may."""

from __future__ import annotations

from contextvars import ContextVar

from dsf.optimizer.access import Access, Action, Caller
from dsf.optimizer.params import OptimizeParams
from dsf.optimizer.service import OptimizerService
from dsf.optimizer.views import PlanList, PlanReport, RescoreReport, ResetReport, ScoreList, ScorerView

#: Who sent the request that is being answered; set by `middleware.AccessMiddleware`.
current_caller: ContextVar[Caller] = ContextVar("current_caller")


class GuardedService:
    """`OptimizerService` with rights. Each method raises as its namesake there does, and AccessError."""

    def __init__(self, service: OptimizerService, access: Access, caller: Caller | None = None) -> None:
        """Without `caller`: whoever sent the request at hand."""
        self._service = service
        self._access = access
        self._caller = caller

    def list_scores(self, namespace: str | None = None) -> ScoreList:
        """The scores of one cluster or all."""
        self._allow(Action.LIST_SCORES, namespace)
        return self._service.list_scores(namespace)

    def explain_scorer(self, name: str) -> ScorerView:
        """What a scorer is and how it does."""
        self._allow(Action.EXPLAIN_SCORER, None)
        return self._service.explain_scorer(name)

    def propose(self, params: OptimizeParams) -> PlanReport:
        """The best plan; nothing is written."""
        self._allow(Action.PROPOSE, params.namespace)
        return self._service.propose(params)

    def apply(self, params: OptimizeParams) -> PlanReport:
        """Put the best plan in force."""
        self._allow(Action.APPLY, params.namespace)
        return self._service.apply(params)

    def optimize(self, params: OptimizeParams) -> PlanReport:
        """`propose` or `apply`, as `params.dry_run` says."""
        return self.propose(params) if params.dry_run else self.apply(params)

    def reset(self, namespace: str) -> ResetReport:
        """Delete what plans made in a namespace."""
        self._allow(Action.RESET, namespace)
        return self._service.reset(namespace)

    def plans(self, namespace: str | None = None) -> PlanList:
        """The plans in force."""
        self._allow(Action.LIST_PLANS, namespace)
        return self._service.plans(namespace)

    def rescore(self, scorer: str, cluster: str | None = None) -> RescoreReport:
        """Send a tick now."""
        self._allow(Action.RESCORE, None)
        return self._service.rescore(scorer, cluster)

    def _allow(self, action: Action, namespace: str | None) -> None:
        caller = self._caller if self._caller is not None else current_caller.get()
        self._access.authorize(caller, action, namespace)
