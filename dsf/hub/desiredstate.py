"""Reads the backend's objects and rebuilds the desired state soon after they change."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from pydantic import ValidationError

import dsf.log
from dsf.api.cluster import ManagedCluster
from dsf.api.manifest import ApiObject, drop_unknown_fields, read_object
from dsf.api.meta import ObjectMeta
from dsf.api.nameclaims import NameClaims
from dsf.api.naming import AllowedNames
from dsf.api.problems import explain
from dsf.api.scorer import DynamicScorer, DynamicScorerStatus
from dsf.api.scoringauthentication import ScoringAuthentication
from dsf.api.scoringconfig import DynamicScoringConfig
from dsf.api.types import ADDON_NAME, CONFIG_NAME
from dsf.api.urls import TokenHosts
from dsf.backends.protocol import PROBLEM_FIELD, Backend, Kind, Manifest, ObjectKey
from dsf.errors import ObjectConflictError, SettingsError
from dsf.hub import manifestwork
from dsf.hub.admission import NameRules, find_server_refusal
from dsf.hub.conditions import describe_deletion
from dsf.hub.controller import Controller
from dsf.hub.health import Health
from dsf.hub.plan import Differences, FleetPlan, find_differences, make_plan
from dsf.hub.scorerplan import INTERNAL_ERROR, INVALID, Obstacle, PlanCache
from dsf.hub.secretdelivery import NO_DELIVERY, DeliverableSecrets
from dsf.process import hubclock
from dsf.process.outage import Outage
from dsf.settings import Settings

log = dsf.log.get(__name__)

#: Seconds of pause for each CPU second that a plan took, for the namespaces that had changes in the plan. Their next
#: changes wait until the pause ends. Each plan is made from all objects, so without the pause a thousand scorers that
#: become Active one after the other would keep a core busy. With it, planning takes at most a quarter of the time.
PAUSE_FACTOR: Final = 3.0
#: CPU seconds that the reconciliation of a cluster takes for each scorer that runs there. The pauses of all namespaces
#: but the hub's own include this time for each cluster that a plan affects, up to a limit in seconds.
_SECONDS_PER_PAIR: Final = 15e-6
_MAX_RECONCILE_SECONDS: Final = 3.0
#: Seconds of pause for each CPU second that a plan took, for all other namespaces. This pause is shorter, so that a
#: namespace that changes all the time does not delay the others for long.
SHORT_PAUSE_FACTOR: Final = 1.0
#: OCM's annotation of a ManagedClusterAddOn whose agent runs on another cluster.
_HOSTING: Final = "addon.open-cluster-management.io/hosting-cluster-name"

_Object = TypeVar("_Object", DynamicScorer, DynamicScoringConfig, ScoringAuthentication, ManagedCluster)


class DesiredState:
    """The current plan. It is rebuilt after changes, and the affected keys are reported. Thread-safe.

    A plan is made from all objects. Therefore changes are collected, and a changed object is reconciled after a plan
    with the change exists. A thread makes plans soon after changes, with a pause between two plans.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        outage: Outage,
        health: Callable[[ObjectKey], Health | None],
        on_new: Callable[[Differences, Set[ObjectKey]], None],
    ) -> None:
        """Parse the settings and prepare the first plan, which `controller` or `update` makes. Raises SettingsError.

        `health` returns the known health of a scorer. `on_new` gets the differences of a new plan and the changed
        objects, in the thread that made the plan.
        """
        self._token_hosts = _parse_hosts("DSF_TOKEN_HOSTS", settings.token_hosts)
        self._scorer_hosts = _parse_hosts("DSF_SCORER_HOSTS", settings.scorer_hosts)
        try:
            self._allowed_names = AllowedNames(settings.score_names)
        except ValueError as error:
            raise SettingsError(f"DSF_SCORE_NAMES: {error}") from None
        if unlisted_namespaces := self._allowed_names.namespaces.difference(settings.scorer_namespaces):
            raise SettingsError(
                f"DSF_SCORE_NAMES: {', '.join(sorted(unlisted_namespaces))}: not in DSF_SCORER_NAMESPACES; "
                "the hub's own namespace may use any name"
            )
        self._backend = backend
        self._settings = settings
        self._health = health
        self._on_new = on_new
        # `_plan_lock` serializes planning; `_lock` protects the fields below and is held only briefly.
        self._plan_lock = threading.Lock()
        self._lock = threading.RLock()
        # Key -> (manifest, parsed object or None if unreadable, parse error or "").
        self._parsed_objects: dict[ObjectKey, tuple[Manifest, ApiObject | None, str]] = {}
        # Key -> last logged message about unknown fields.
        self._logged_ignored_fields: dict[ObjectKey, str] = {}
        # Clusters whose hosted add-on was reported.
        self._reported_hosted_clusters: set[str] = set()
        self._plan_cache = PlanCache()
        # Scorer -> the results of `_merge_health`: the scorer, its health and the result.
        self._merged_scorers: dict[str, tuple[DynamicScorer, Health | None, DynamicScorer]] = {}
        # Scorer -> last logged error.
        self._logged_errors: dict[str, str] = {}
        # The claims on names, None if they must be read again, and their stored text by namespace.
        self._claims: NameClaims | None = None
        self._stored_claims: dict[str, str] = {}
        self._plan = FleetPlan()
        # Maximum bytes of a ManifestWork, lowered after rejections. A restart begins with the default again.
        self._max_work_bytes = manifestwork.MAX_BYTES
        # Objects to reconcile with the next plan.
        self._changed_objects: set[ObjectKey] = set()
        # Objects to reconcile with the first plan; None after the first plan.
        self._waiting_for_first_plan: set[ObjectKey] | None = set()
        # Unix time at which the plan changes without an event, because a scorer's pause ends or a name becomes free.
        self._next_change_at = math.inf
        # Namespaces with changes for the next plan.
        self._changed_namespaces: set[str] = set()
        # time.monotonic() at the end of the pause of each namespace, and of the short pause of all other namespaces.
        self._pause_ends: dict[str, float] = {}
        self._short_pause_end = -math.inf
        #: Makes plans. Its queue has a single key, `config_key`, which stands for the whole plan.
        self.controller = Controller("plan", self._update_when_due, workers=1, outage=outage)

    def record_changes(self, *objects: ObjectKey, namespace: str | None = None) -> None:
        """Record changed objects, which are reconciled after a plan that includes the change.

        `namespace` is the namespace that caused the change, by default the namespaces of the objects.
        """
        namespaces = {key.namespace for key in objects} if namespace is None else {namespace}
        with self._lock:
            self._changed_objects.update(objects)
            self._changed_namespaces |= namespaces
            due_at = self._find_due_time(namespaces)
        self.controller.queue.add_after(self.config_key, due_at - time.monotonic())

    def _find_due_time(self, namespaces: Set[str]) -> float:
        """Return the time.monotonic() of the next plan for changes in these namespaces."""
        return min(
            (self._pause_ends.get(name, self._short_pause_end) for name in namespaces), default=self._short_pause_end
        )

    @property
    def plan(self) -> FleetPlan:
        """The desired state as of the last `update`; empty before the first one."""
        return self._plan

    @property
    def is_known(self) -> bool:
        """True after the first plan."""
        return self._waiting_for_first_plan is None

    def defer_until_planned(self, key: ObjectKey) -> bool:
        """True before the first plan; the object is then reconciled with the first plan."""
        with self._lock:
            if self._waiting_for_first_plan is not None:
                self._waiting_for_first_plan.add(key)
            return self._waiting_for_first_plan is not None

    def update(self) -> FleetPlan:
        """Make a plan in the caller's thread and return it. Raises BackendError."""
        try:
            return self._update()
        except Exception:
            # The caller retries only its own work, so schedule a plan for the recorded changes.
            self.controller.queue.retry(self.config_key)
            raise

    def _update_when_due(self, _: ObjectKey) -> float | None:
        """Make a plan; return the seconds until a plan is due without a change, None if never. Raises BackendError."""
        with self._lock:
            wait_seconds = self._find_due_time(self._changed_namespaces) - time.monotonic()
        if wait_seconds > 0:
            return wait_seconds
        self._update()
        return max(0.0, self._next_change_at - hubclock.now()) if self._next_change_at < math.inf else None

    def _update(self) -> FleetPlan:
        """Make a new plan and report the keys to reconcile.

        Raises BackendError; the keys are then reported with the next plan.
        """
        with self._plan_lock:
            with self._lock:
                # Take the changes before reading: later changes are for the next plan.
                changed_keys, self._changed_objects = self._changed_objects, set()
                namespaces, self._changed_namespaces = self._changed_namespaces, set()
            # Pauses depend on CPU time, because other busy threads only lengthen the wall-clock time of a plan.
            cpu_start, reconcile_seconds = time.thread_time(), 0.0
            try:
                plan = self._make_plan()
                differences = find_differences(self._plan, plan)
                pair_count = sum(len(plan.list_running_scorers(cluster)) for cluster in differences.clusters)
                reconcile_seconds = min(_SECONDS_PER_PAIR * pair_count, _MAX_RECONCILE_SECONDS)
            except BaseException:
                with self._lock:
                    self._changed_objects |= changed_keys
                    self._changed_namespaces |= namespaces
                raise
            finally:
                self._begin_pauses(namespaces, time.thread_time() - cpu_start, reconcile_seconds)
            self._plan = plan
            with self._lock:
                waiting_keys, self._waiting_for_first_plan = self._waiting_for_first_plan or set(), None
            pause_ends = (scorer.suspended_until for scorer in plan.scorers.values())
            self._next_change_at = min(
                [pause_end for pause_end in pause_ends if pause_end is not None] + [plan.claims.next_end]
            )
        self._on_new(differences, changed_keys | waiting_keys)
        return plan

    def _begin_pauses(self, namespaces: Set[str], seconds: float, reconcile_seconds: float = 0.0) -> None:
        """Begin the pauses after a plan that included changes in these namespaces.

        The plan took `seconds` of CPU time, and the reconciliation of the affected clusters takes `reconcile_seconds`.
        """
        now = time.monotonic()
        with self._lock:
            self._short_pause_end = now + SHORT_PAUSE_FACTOR * seconds
            pauses = {name: end for name, end in self._pause_ends.items() if end > self._short_pause_end}
            new_pauses = {
                name: now + PAUSE_FACTOR * (seconds if self.is_home(name) else seconds + reconcile_seconds)
                for name in namespaces
            }
            self._pause_ends = {**pauses, **new_pauses}

    def lower_limit(self, plan: FleetPlan, refusal: str) -> bool:
        """Lower the size limit after a ManifestWork in `plan` was rejected; return False if size was not the cause."""
        with self._lock:
            if self._max_work_bytes == plan.limit:
                limit = manifestwork.lower_limit(plan.limit, refusal)
                if limit is None:
                    return False
                log.warning("a ManifestWork was too large, the next ones are smaller", bytes=limit, refusal=refusal)
                self._max_work_bytes = limit
            return True

    def is_home(self, namespace: str) -> bool:
        """Return True if this is the hub's own namespace."""
        return namespace == self._settings.namespace

    def find_server_refusal(self, namespace: str, urls: Iterable[str]) -> str:
        """Return why scorers in this namespace may not use these URLs; empty if they may."""
        return "" if self.is_home(namespace) else find_server_refusal(self._scorer_hosts, urls)

    def is_scorer_namespace(self, namespace: str) -> bool:
        """Return True if DynamicScorers in this namespace run."""
        return namespace in (self._settings.namespace, *self._settings.scorer_namespaces)

    def get_scorer(self, key: ObjectKey) -> DynamicScorer | None:
        """Return a stored DynamicScorer; None if missing, being deleted or unreadable."""
        scorer = self._get_object(key, DynamicScorer)
        return scorer if scorer is not None and scorer.metadata.deletion_timestamp is None else None

    def get_config(self, key: ObjectKey) -> DynamicScoringConfig | None:
        """Return a stored DynamicScoringConfig; None if missing or unreadable."""
        return self._get_object(key, DynamicScoringConfig)

    def get_authentication(self, namespace: str, name: str) -> ScoringAuthentication | None:
        """Return a stored ScoringAuthentication; None if missing or unreadable."""
        return self._get_object(ObjectKey(Kind.AUTHENTICATION, namespace, name), ScoringAuthentication)

    def get_parse_error(self, key: ObjectKey) -> str:
        """Return the parse error of an unreadable object; empty for readable or missing objects."""
        with self._lock:
            cached_object = self._parsed_objects.get(key)
        return cached_object[2] if cached_object is not None else ""

    @property
    def config_key(self) -> ObjectKey:
        """Key of the effective DynamicScoringConfig."""
        return ObjectKey(Kind.CONFIG, self._settings.namespace, CONFIG_NAME)

    @property
    def has_no_config(self) -> bool:
        """True if the configuration is absent or being deleted; an unreadable configuration is present."""
        manifest = self._backend.get(*self.config_key)
        return manifest is None or bool(manifest["metadata"].get("deletionTimestamp"))

    @property
    def config_terminating(self) -> str:
        """Description of the deletion while the effective DynamicScoringConfig is being deleted; empty otherwise."""
        manifest = self._backend.get(*self.config_key)
        if manifest is None or not manifest["metadata"].get("deletionTimestamp"):
            return ""
        return describe_deletion(ObjectMeta.model_validate(manifest["metadata"], by_alias=True))

    def _make_plan(self) -> FleetPlan:
        readable_scorers, scorer_errors = self._list_objects(Kind.SCORER, DynamicScorer)
        scorers = [
            self._merge_health(scorer)
            for scorer in readable_scorers
            if self.is_scorer_namespace(scorer.metadata.namespace)
        ]
        for key in self._merged_scorers.keys() - {scorer.key for scorer in scorers}:
            del self._merged_scorers[key]
        unreadable_scorers = {
            key: text for key, text in scorer_errors.items() if self.is_scorer_namespace(key.partition("/")[0])
        }
        clusters, _ = self._list_objects(Kind.CLUSTER, ManagedCluster)
        authentications, unreadable_authentications = self._list_objects(Kind.AUTHENTICATION, ScoringAuthentication)
        without_addon = 0
        if self._settings.addon_mode:
            addons = {
                manifest["metadata"]["namespace"]: manifest["metadata"].get("annotations") or {}
                for manifest in self._backend.list(Kind.ADDON)
                if manifest["metadata"]["name"] == ADDON_NAME and not manifest["metadata"].get("deletionTimestamp")
            }
            self._report_hosted({name for name, annotations in addons.items() if annotations.get(_HOSTING)})
            addon_clusters = addons.keys()
            without_addon = sum(
                cluster.is_served and cluster.metadata.name not in addon_clusters for cluster in clusters
            )
            clusters = [cluster for cluster in clusters if cluster.metadata.name in addon_clusters]
        plan = make_plan(
            scorers,
            self.get_config(self.config_key),
            clusters,
            datetime.now(UTC),
            self._token_hosts,
            {scorer.key: failure for scorer in scorers if (failure := self._find_failure(scorer)) is not None},
            authentications,
            self._read_deliverable_secrets(),
            unreadable_authentications,
            self._plan_cache,
            self._max_work_bytes,
            NameRules(
                self._read_claims(), self._settings.namespace, self._allowed_names, frozenset(unreadable_scorers)
            ),
            self._scorer_hosts,
            self._find_misplaced_configs(),
            self._backend.list(Kind.CLUSTER_SET),
        )
        self._store_claims(plan.claims)
        plan = replace(
            plan,
            without_addon=without_addon,
            has_no_config=self.has_no_config,
            unreadable=unreadable_scorers,
            terminating=self._list_terminating(),
        )
        self._log_internal_errors(plan)
        return plan

    def _find_misplaced_configs(self) -> frozenset[str]:
        """Return the scorer namespaces, except the hub's own, that have a DynamicScoringConfig."""
        metadata = (manifest["metadata"] for manifest in self._backend.list(Kind.CONFIG))
        return frozenset(
            config["namespace"]
            for config in metadata
            if config["name"] == CONFIG_NAME
            and config["namespace"] in self._settings.scorer_namespaces
            and not self.is_home(config["namespace"])
            and not config.get("deletionTimestamp")
        )

    def _list_terminating(self) -> frozenset[str]:
        """Return the keys of DynamicScorers in scorer namespaces that are being deleted."""
        metadata = (manifest["metadata"] for manifest in self._backend.list(Kind.SCORER))
        return frozenset(
            f"{scorer['namespace']}/{scorer['name']}"
            for scorer in metadata
            if scorer.get("deletionTimestamp") and self.is_scorer_namespace(scorer["namespace"])
        )

    def _read_claims(self) -> NameClaims:
        if self._claims is None:
            namespaces = (self._settings.namespace, *self._settings.scorer_namespaces)
            self._stored_claims = {namespace: self._backend.read_name_claims(namespace) for namespace in namespaces}
            self._claims = NameClaims.parse(
                {name: text for name, text in self._stored_claims.items() if _is_readable(name, text)}
            )
        return self._claims

    def _store_claims(self, claims: NameClaims) -> None:
        """Store new claims before they take effect, so that the same scorer owns the name after a crash."""
        if claims == self._claims:
            return
        for namespace, stored_text in self._stored_claims.items():
            if (text := claims.dump(namespace)) == stored_text:
                continue
            try:
                self._backend.keep_name_claims(namespace, text)
            except ObjectConflictError:
                self._claims = None
                raise
            self._stored_claims[namespace] = text
        self._claims = claims

    def _read_deliverable_secrets(self) -> DeliverableSecrets:
        if not self._settings.secret_delivery:
            return NO_DELIVERY
        return DeliverableSecrets.from_manifests(self._settings.namespace, self._backend.list(Kind.SECRET))

    def _log_internal_errors(self, plan: FleetPlan) -> None:
        """Log each internal error once, although each plan contains it again."""
        errors = {key: scorer.obstacle.error for key, scorer in plan.scorers.items() if scorer.obstacle is not None}
        errors_with_text = {key: (error, repr(error)) for key, error in errors.items() if error is not None}
        for key, (error, text) in errors_with_text.items():
            if self._logged_errors.get(key) != text:
                log.error("a scorer cannot be planned, the others go on", scorer=key, exc_info=error)
        self._logged_errors = {key: text for key, (_, text) in errors_with_text.items()}

    def _find_failure(self, scorer: DynamicScorer) -> Obstacle | None:
        """Return the known reason why the scoring API is not Active; None without such a reason."""
        health = self._health(ObjectKey(Kind.SCORER, scorer.metadata.namespace, scorer.metadata.name))
        return health.failure if health is not None else None

    def _merge_health(self, scorer: DynamicScorer) -> DynamicScorer:
        """Return the scorer with a status of only its current health and config, the same object until one changes.

        The hub writes all other status fields itself, so a plan must not depend on them.
        """
        health = self._health(ObjectKey(Kind.SCORER, scorer.metadata.namespace, scorer.metadata.name))
        previous_scorer, previous_health, merged_scorer = self._merged_scorers.get(scorer.key, (None, None, scorer))
        if previous_scorer is not scorer or previous_health is not health:
            known_health = health or Health.from_status(scorer)
            status = DynamicScorerStatus(health_status=known_health.status, last_synced_config=known_health.config)
            merged_scorer = scorer.model_copy(update={"status": status})
            self._merged_scorers[scorer.key] = scorer, health, merged_scorer
        return merged_scorer

    def _list_objects(self, kind: Kind, model: type[_Object]) -> tuple[list[_Object], dict[str, str]]:
        """Return all readable objects of a kind, and the parse errors of the others by `namespace/name`.

        Errors of objects that are being deleted are omitted. Both results come from one listing, so that an object that
        is corrected in the meantime is in one of them.
        """
        manifests = [(ObjectKey.from_manifest(manifest), manifest) for manifest in self._backend.list(kind)]
        present_keys = {key for key, _ in manifests}
        with self._lock:
            for key in [key for key in self._parsed_objects if key.kind is kind and key not in present_keys]:
                del self._parsed_objects[key]
                self._logged_ignored_fields.pop(key, None)
        items: list[_Object] = []
        errors: dict[str, str] = {}
        for key, manifest in manifests:
            item, text = self._parse(key, manifest, model)
            if item is not None:
                items.append(item)
            elif not manifest["metadata"].get("deletionTimestamp"):
                errors[f"{key.namespace}/{key.name}"] = text
        return items, errors

    def _get_object(self, key: ObjectKey, model: type[_Object]) -> _Object | None:
        manifest = self._backend.get(*key)
        if manifest is None:
            with self._lock:
                self._parsed_objects.pop(key, None)
            return None
        return self._parse(key, manifest, model)[0]

    def _parse(self, key: ObjectKey, stored_manifest: Manifest, model: type[_Object]) -> tuple[_Object | None, str]:
        with self._lock:
            cached_object = self._parsed_objects.get(key)
            if cached_object is None or cached_object[0] is not stored_manifest:
                self._parsed_objects[key] = cached_object = self._read(key, stored_manifest, model)
        _, item, text = cached_object
        return (item if isinstance(item, model) else None), text

    def _read(
        self, key: ObjectKey, stored_manifest: Manifest, model: type[_Object]
    ) -> tuple[Manifest, _Object | None, str]:
        """Return (manifest, parsed object or None, error text). The caller caches the result for this manifest."""
        manifest = stored_manifest
        if problem := manifest.get(PROBLEM_FIELD):
            log.warning("object cannot be used", kind=key.kind.value, object=key.name, problem=problem)
            self._backend.record_event(key, "Warning", INVALID, problem)
            return stored_manifest, None, problem
        try:
            unknown_fields: list[str] = []
            # Ignore unknown fields, because newer CRDs stay after a rollback, and a hub that cannot read its
            # configuration stops all scorers. A ScoringAuthentication with unknown fields is rejected, because it would
            # allow more without a restricting field. The folder backend has already rejected unknown fields as typos.
            if model in (DynamicScorer, DynamicScoringConfig):
                manifest, unknown_fields = drop_unknown_fields(manifest, model)
            self._report_ignored_fields(key, unknown_fields)
            return stored_manifest, read_object(manifest, model), ""
        except ValidationError as error:
            text = "; ".join(str(problem_text) for problem_text in explain(error, model, manifest))
            log.warning("object cannot be used", kind=key.kind.value, object=key.name, problem=text)
            self._backend.record_event(key, "Warning", INVALID, text)
        except Exception as error:
            # A bug in the hub must not break the plan of all other objects.
            log.exception("object cannot be read, the others go on", kind=key.kind.value, object=key.name)
            text = f"the hub cannot read this object: {type(error).__name__}; the hub's log says where"
            self._backend.record_event(key, "Warning", INTERNAL_ERROR, text)
            # The cache compares manifests by identity, so a copy makes the next plan parse the object again.
            stored_manifest = {**stored_manifest}
        return stored_manifest, None, text

    def _report_hosted(self, clusters: set[str]) -> None:
        """Report each add-on in hosted mode once, because its agent would not run on the cluster that it scores."""
        for cluster in sorted(clusters - self._reported_hosted_clusters):
            log.warning("a hosted add-on is not supported", cluster=cluster, annotation=_HOSTING)
            self._backend.record_event(
                ObjectKey(Kind.ADDON, cluster, ADDON_NAME),
                "Warning",
                "HostedModeNotSupported",
                f"annotation {_HOSTING}: the agent must run on the cluster that it scores; remove the annotation",
            )
        self._reported_hosted_clusters = clusters

    def _report_ignored_fields(self, key: ObjectKey, fields: list[str]) -> None:
        """Log ignored fields once, although each status change gives the object a new version to parse."""
        verb = "it is" if len(fields) == 1 else "they are"
        text = f"this hub does not know {', '.join(fields)}; {verb} ignored" if fields else ""
        if text and text != self._logged_ignored_fields.get(key):
            log.warning("fields of an object are ignored", kind=key.kind.value, object=key.name, problem=text)
            self._backend.record_event(key, "Warning", "UnknownField", text)
        self._logged_ignored_fields[key] = text


def _is_readable(namespace: str, claims: str) -> bool:
    """Return True if the stored claims of a namespace can be parsed; log the error otherwise."""
    try:
        NameClaims.parse({namespace: claims})
    except ValueError as error:
        log.error("the stored claims of names cannot be read: the oldest scorers get them", error=str(error))
        return False
    return True


def _parse_hosts(name: str, entries: Iterable[str]) -> TokenHosts:
    try:
        return TokenHosts(entries)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None
