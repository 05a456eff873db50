"""The optimiser's operations, shared by HTTP, assistants and the command line.

Methods block for milliseconds to seconds; call them in a thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import dsf.log
from dsf.errors import ManifestError, SettingsError
from dsf.fleet.changes import Action, Actor, UserAction, Way
from dsf.kube.session import Session
from dsf.optimizer.access import Caller, CallerAccess, GuardedAction, OpenAccess, by_tool, current_caller
from dsf.optimizer.backend import FIELD_MANAGER, Manifest, ManifestClient
from dsf.optimizer.comparison import compare
from dsf.optimizer.errors import PlanConflictError, SolverError
from dsf.optimizer.hubredis import HubRedis
from dsf.optimizer.losses import find_losses
from dsf.optimizer.manifests import PLAN_ID, PLAN_OBJECTS, compute_plan_id, dump, read_plan, render
from dsf.optimizer.model import SearchLimits
from dsf.optimizer.params import OptimizeParams
from dsf.optimizer.plan import Plan
from dsf.optimizer.reading import read_request
from dsf.optimizer.scores import Scores
from dsf.optimizer.selector import PlacementSelector
from dsf.optimizer.settings import OptimizerSettings
from dsf.optimizer.solver import SolverProcess
from dsf.optimizer.views import (
    AppliedPlan,
    PlanList,
    PlanReport,
    PlanView,
    RescoreReport,
    RescoreRun,
    ResetReport,
    ScoreList,
    ScorerView,
)
from dsf.optimizer.writer import ObjectChange, PlanWriter

log = dsf.log.get(__name__)

#: Caller of actions outside of a request.
_OWNER: Final = Caller("owner")


class OptimizerService:
    """The operations of the optimiser. Thread-safe. Close it when done.

    Each method first checks the current caller with `access`, and raises AccessError. Methods that read the hub raise
    BackendError.
    """

    def __init__(
        self,
        backend: ManifestClient,
        solver: SolverProcess,
        selector: PlacementSelector,
        *,
        access: CallerAccess | None = None,
        hub: HubRedis | None = None,
        owner: str = "",
        way: Way = "api",
        time_limit: float = 30.0,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Create the service.

        `time_limit` is the default duration of a search in seconds, and the maximum of a request. Without `access`, all
        callers have all rights. Without `hub`, no action is recorded and the page shows no plans. `now` defaults to the
        clock of the hub's API server. `owner` is the author of actions without a caller, and `way` the interface of
        actions that do not come from an assistant.
        """
        self._backend = backend
        self._solver = solver
        self._selector = selector
        self.access = access or OpenAccess()
        self._hub = hub
        self._owner = owner
        self._way: Way = way
        self._time_limit = time_limit
        self._now = now or backend.read_clock
        self._scores = Scores(backend)
        self._writer = PlanWriter(backend)
        # Guards the writes of plans, because two plans that are written at once would be mixed.
        self._write_lock = threading.Lock()
        # Guards the plans on the page and `_change_counts`: with a slow Redis, an old plan must not replace a newer one
        # on the page.
        self._page_lock = threading.Lock()
        # Namespace -> number of changes of its plan in force.
        self._change_counts: Counter[str] = Counter()

    def list_scores(self, namespace: str | None = None) -> ScoreList:
        """Return the AddOnPlacementScores of one cluster (its namespace), or of all clusters.

        Their annotations have the scorer's description and dimension format.
        """
        self._authorize(GuardedAction.LIST_SCORES, namespace)
        return self._scores.read(namespace, self._now())

    def explain_scorer(self, name: str) -> ScorerView:
        """Return the meaning, state and scores of the DynamicScorer of this name.

        `name` may also be the name of its AddOnPlacementScores. Raises UnknownScorerError with the known names.
        """
        self._authorize(GuardedAction.EXPLAIN_SCORER, None)
        return self._scores.explain(name, self._now())

    def propose(self, params: OptimizeParams) -> PlanReport:
        """Return the best plan without applying it, regardless of `params.dry_run`. Raises like `plan`."""
        return self.plan(params, apply=False)[0]

    def apply(self, params: OptimizeParams) -> PlanReport:
        """Apply the best plan, regardless of `params.dry_run`. Raises like `plan`."""
        return self.plan(params, apply=True)[0]

    def plan(self, params: OptimizeParams, *, apply: bool) -> tuple[PlanReport, Plan]:
        """Return the best plan, and the solver's result for drawing. With `apply`, it replaces the plan in force.

        The warnings of the report contain obstacles to applying the plan. With `params.plan_id`, only the plan with
        this id is applied. Raises ManifestError if the request cannot be planned, and SolverError. With `apply`, also
        raises PlanConflictError if the plan cannot be applied or has changed, and ApplyError if a write failed. The
        previous plan is then in force again, or the message says which changes could not be rolled back.
        """
        self._authorize(GuardedAction.APPLY if apply else GuardedAction.PROPOSE, params.namespace)
        change_number = self._change_counts[params.namespace]
        if not apply:
            report, plan, previous_plan, _, _ = self._prepare(params)
            self._store_for_page(report, plan, previous_plan, change_number)
            return report, plan
        with self._hold_write_lock():
            report, plan, _, changes, problems = self._prepare(params)
            if problems:
                raise PlanConflictError("the plan cannot be applied: " + "; ".join(problems))
            if params.plan_id and params.plan_id != report.plan_id:
                raise PlanConflictError(
                    f"the plan is not {params.plan_id} any more but {report.plan_id}: scores, workloads or policies "
                    "have changed since; check a new dry run"
                )
            self._writer.write(changes)
            self._change_counts[params.namespace] += 1
            change_number = self._change_counts[params.namespace]
        log.info("plan applied", namespace=params.namespace, plan=report.plan_id, changes=_count_changed(changes))
        if count := _count_changed(changes):
            self._record_action(
                Action.PLAN_APPLIED, params.namespace, reference=report.plan_id, detail=f"{count} objects changed"
            )
        applied_report = report.model_copy(update={"applied": True})
        self._store_for_page(applied_report, plan, plan.placed, change_number)
        return applied_report, plan

    def reset(self, namespace: str, *, dry_run: bool = False) -> ResetReport:
        """Delete all objects that plans created in a namespace; with `dry_run` only list them.

        Raises ManifestError for an empty name, and ApplyError.
        """
        self._authorize(GuardedAction.RESET, namespace)
        if not namespace:
            # Refuse an empty name, which means all namespaces for the API server.
            raise ManifestError("the name of the namespace to reset is empty")
        with self._hold_write_lock():
            changes = self._writer.list_changes([], self._writer.list_existing(namespace))
            if not dry_run:
                self._writer.write(changes)
                log.info("plan reset", namespace=namespace, changes=_count_changed(changes))
                self._change_counts[namespace] += 1
                if self._hub is not None:
                    with self._page_lock:
                        self._hub.remove_plan(namespace)
                if changes:
                    self._record_action(Action.PLAN_RESET, namespace, detail=f"{len(changes)} objects deleted")
        return ResetReport(namespace=namespace, deleted=[change.make_view() for change in changes], dry_run=dry_run)

    def plans(self, namespace: str | None = None) -> PlanList:
        """Return the plans in force, one per namespace, of one namespace or all."""
        self._authorize(GuardedAction.LIST_PLANS, namespace)
        objects_by_namespace: dict[str, list[Manifest]] = {}
        for manifest in self._writer.list_existing(namespace or ""):
            objects_by_namespace.setdefault(manifest["metadata"]["namespace"], []).append(manifest)
        return PlanList(
            items=[_make_applied_plan(name, objects) for name, objects in sorted(objects_by_namespace.items())]
        )

    def rescore(self, scorer: str, cluster: str | None = None) -> RescoreReport:
        """Send a tick now, to one cluster or to all clusters on which the scorer runs.

        Raises UnknownScorerError, UnknownClusterError, SettingsError without Redis, and redis.RedisError.
        """
        self._authorize(GuardedAction.RESCORE, None)
        if self._hub is None:
            raise SettingsError("DSF_REDIS_URL is not set, so re-scores are not possible; set it to the hub's Redis")
        runs = self._hub.rescore(self._make_actor(), scorer, cluster)
        return RescoreReport(
            scorer=scorer,
            runs=[RescoreRun(cluster=run.cluster, run_id=run.run_id, message=run.message) for run in runs],
        )

    def check(self) -> None:
        """Raise BackendError if the hub does not respond, for a readiness probe."""
        self._backend.check()

    def warm_up(self) -> None:
        """Start the solver's process now, so that the first plan does not wait for it."""
        self._solver.warm_up()

    def stop_solving(self) -> None:
        """End the solver's process permanently. Searches end with a SolverError."""
        self._solver.close()

    def close(self) -> None:
        """End the solver's process and the connections."""
        self._solver.close()
        self._backend.close()

    @contextlib.contextmanager
    def _hold_write_lock(self) -> Iterator[None]:
        """Hold the write lock in the block. Raises SolverError if earlier writes take too long."""
        if not self._write_lock.acquire(timeout=self._solver.patience):
            raise SolverError(
                f"other plans have been written for {self._solver.patience:g} s by now; try again, or ask for "
                "shorter searches"
            )
        try:
            yield
        finally:
            self._write_lock.release()

    def _authorize(self, action: GuardedAction, namespace: str | None) -> None:
        self.access.authorize(current_caller.get(_OWNER), action, namespace)

    def _record_action(self, action: Action, namespace: str, *, detail: str, reference: str = "") -> None:
        if self._hub is not None:
            user_action = UserAction(action=action, namespace=namespace, reference=reference, detail=detail)
            self._hub.record(self._make_actor(), user_action)

    def _make_actor(self) -> Actor:
        caller = current_caller.get(None)
        return Actor(
            name=self._owner if caller is None else caller.name,
            claimed=caller is None or not self.access.needs_token,
            way="mcp" if by_tool.get() else self._way,
        )

    def _store_for_page(self, report: PlanReport, plan: Plan, previous_plan: PlanView, change_number: int) -> None:
        """Store a plan for the page, unless the plan in force has changed since `change_number` was read."""
        if self._hub is None:
            return
        with self._page_lock:
            if self._change_counts[report.namespace] == change_number:
                self._hub.store_plan(compare(previous_plan, plan, report, self._now().timestamp()))

    def _prepare(self, params: OptimizeParams) -> tuple[PlanReport, Plan, PlanView, list[ObjectChange], list[str]]:
        """Return (report, solver's result, plan in force, changes to write, obstacles to applying the plan)."""
        existing = self._writer.list_existing(params.namespace)
        previous_plan = read_plan(existing)
        request = read_request(self._backend, self._selector, params, previous_plan, now=self._now())
        limit = min(params.time_limit or self._time_limit, self._time_limit)
        plan = self._solver.solve(request.problem, SearchLimits(time_limit=limit, mip_gap=params.gap))
        used_clusters = {configuration.cluster for configuration in plan.configurations}
        selection = request.clusters.select(used_clusters)
        desired_manifests = render(params.namespace, plan.placed, request.placements, self._selector, selection.values)
        changes = self._writer.list_changes(desired_manifests, existing)
        problems = [
            *selection.problems,
            *request.clusters.list_unbound(params.namespace, used_clusters),
            *self._writer.list_obstacles(changes),
            *find_losses(plan, previous_plan),
        ]
        report = PlanReport(
            status=plan.status,
            coverage=plan.coverage,
            objective_value=plan.score_sum,
            output_yaml=dump(desired_manifests),
            plan=plan.placed,
            unplaced=plan.unplaced,
            gap=plan.gap,
            bound=plan.bound,
            explanation=plan.explanation,
            missing_scores=plan.score_gaps,
            warnings=[
                *(f"cannot be applied: {problem}" for problem in problems),
                *request.clusters.list_warnings(used_clusters),
            ],
            plan_id=compute_plan_id(params.namespace, plan.placed),
            namespace=params.namespace,
            applied=False,
            changes=[change.make_view() for change in changes],
            seconds=round(plan.seconds, 3),
        )
        return report, plan, previous_plan, changes, problems


def make_service(
    settings: OptimizerSettings, way: Way, owner: str = "", access: CallerAccess | None = None
) -> OptimizerService:
    """Return the service for the hub of the settings. Raises SettingsError.

    `OptimizerService` describes `way` and `owner`.
    """
    selector = PlacementSelector.parse(settings.optimizer_cluster_selector)
    return OptimizerService(
        ManifestClient(Session.load(settings.kubeconfig)),
        SolverProcess(patience=settings.optimizer_time_limit),
        selector,
        access=access,
        hub=HubRedis.of(settings),
        owner=owner,
        way=way,
        time_limit=settings.optimizer_time_limit,
    )


def _make_applied_plan(namespace: str, objects: Sequence[Manifest]) -> AppliedPlan:
    ids = {(manifest["metadata"].get("annotations") or {}).get(PLAN_ID, "") for manifest in objects}
    counts = {(manifest["metadata"].get("annotations") or {}).get(PLAN_OBJECTS, "") for manifest in objects}
    view = read_plan(objects)
    identity = compute_plan_id(namespace, view)
    return AppliedPlan(
        namespace=namespace,
        plan_id=identity,
        complete=ids == {identity} and counts == {str(len(objects))},
        applied_at=max((moment for manifest in objects for moment in _list_change_times(manifest)), default=None),
        plan=view,
        objects=[f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in objects],
    )


def _list_change_times(manifest: Mapping[str, Any]) -> Iterable[datetime]:
    """Yield the times of the optimiser's changes of an object."""
    for entry in manifest["metadata"].get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and entry.get("time"):
            yield datetime.fromisoformat(entry["time"])


def _count_changed(changes: Iterable[ObjectChange]) -> int:
    return sum(change.change != "unchanged" for change in changes)
