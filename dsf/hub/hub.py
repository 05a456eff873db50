"""The hub controller: event routing and thread lifecycle."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Set
from typing import Final

import redis

import dsf.log
from dsf.backends.protocol import Backend, Kind, ObjectKey
from dsf.errors import BackendError, DsfError, SettingsError
from dsf.http import addresses, trust
from dsf.hub.acts import ActRunner
from dsf.hub.clusters import ClusterReconciler, DepartedClusters, Departures
from dsf.hub.controller import Controller, Reconcile
from dsf.hub.credentials import AgentCredentials
from dsf.hub.desiredstate import DesiredState
from dsf.hub.health import CheckResult, HealthMonitor, HealthTarget, make_read_notice
from dsf.hub.notifications import ChangeNotifier, NotificationListener
from dsf.hub.plan import Differences
from dsf.hub.plannedscores import PlannedScores
from dsf.hub.rediswatch import RedisWatch
from dsf.hub.registrar import Registrar
from dsf.hub.statusreconcilers import ConfigReconciler, ScorerReconciler, StatusWriteLimit
from dsf.process import hubclock
from dsf.process.hubclock import HubClock
from dsf.process.outage import Outage
from dsf.process.threads import SupervisedThread
from dsf.scores.writer import ScoreWriter
from dsf.settings import Settings
from dsf.store import server
from dsf.store.client import connect
from dsf.store.clocks import ClockReports

log = dsf.log.get(__name__)

#: Reconciling threads by backend. More threads compete for the interpreter lock, which costs a quarter of the CPU.
_WORKERS: Final = {"kube": 8, "dir": 2}


class Hub:
    """The hub controller. Call `start` once and `stop` once."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        on_unusable: Callable[[SettingsError], object] = lambda _: None,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        """Build all parts of the controller without starting them. Raises SettingsError.

        `on_unusable` is called when this hub can no longer use Redis. `is_behind` returns True while this process has
        unprocessed results.
        """
        self._settings = settings
        trust.use_folder(settings.trusted_ca_dir)
        addresses.allow_link_local(settings.allow_link_local)
        self._backend = backend
        self._outage = Outage("Redis")
        self._resync_requested = threading.Event()
        self._client = connect(settings, name="dsf-hub")
        self._clock = HubClock(self._client, on_measured=ClockReports(self._client, settings).report)
        self._redis_watch = RedisWatch(self._client, settings, self._clock, self._outage, on_unusable)
        # This connection detects outages, so it does not retry.
        self._notifications_client = connect(settings, name="dsf-hub-notifications", retries=0)
        self._notifications = NotificationListener(
            self._notifications_client,
            self._outage,
            on_changed=self._refresh_statuses,
            on_wake=self._on_wake,
            on_back=self._resync_requested.set,
        )
        self._health = HealthMonitor(settings, self._outage, self._on_health, self._on_check)
        self._desired = DesiredState(backend, settings, self._outage, self._health.get_health, self._on_new_plan)
        # The writer has its own connection, which blocks while it waits for changed scores.
        self._writer_client = connect(settings, name="dsf-hub-writer")
        #: The score writer, a separate service within the controller.
        self.writer = ScoreWriter(
            self._writer_client,
            settings,
            backend,
            self._get_planned_scores,
            on_status=self._refresh_statuses,
            is_behind=is_behind,
        )
        self._registrar = Registrar(self._client, self._outage, self.writer.check)
        self._credentials = AgentCredentials(backend, self._registrar, self._client, settings)
        self._change_notifier = ChangeNotifier(self._client, backend, self._find_scorer, self._health.request_check)
        workers = _WORKERS[settings.backend]
        # Two queues, because thousands of waiting clusters must not delay the status of a scorer.
        self._cluster_controller = Controller("clusters", self._reconcile, workers=workers, outage=self._outage)
        self._scorer_controller = Controller(
            "scorers",
            self._reconcile,
            workers=workers,
            outage=self._outage,
            # Reserve half of the threads for the hub's own namespace while others have thousands of changed scorers.
            may_process=lambda namespace, busy_count: (
                namespace == settings.namespace or busy_count < max(1, workers // 2)
            ),
        )
        self._act_runner = ActRunner(self._client, settings, backend, self._desired, self._scorer_controller.queue.add)
        self._act_controller = Controller("acts", self._act_runner.reconcile, workers=2, outage=self._outage)
        #: The controllers that probes and metrics observe.
        self.controllers = (
            self._desired.controller,
            self._cluster_controller,
            self._scorer_controller,
            self._act_controller,
        )
        self._departed_clusters = DepartedClusters(
            backend, self._registrar, self._credentials, Departures(settings.departure_grace)
        )
        self._cluster_reconciler = ClusterReconciler(
            backend,
            self._registrar,
            self._desired,
            self._departed_clusters,
            agent_namespace=settings.agent_namespace,
            on_distributed=self._on_distributed,
        )
        self._reconcilers = self._make_reconcilers()
        self._status_write_limit = StatusWriteLimit[str]()
        # Metadata of each object at the last call of `_is_changed`; the backend calls from one thread at a time.
        self._last_metadata: dict[ObjectKey, tuple[object, ...]] = {}
        self._planned_scores: PlannedScores | None = None
        self._is_stopping = False
        self._is_started = False
        self._resync_thread = SupervisedThread(self._resync_forever, "resync")

    def start(self) -> None:
        """Start the controller. Raises BackendError and SettingsError."""
        self._backend.start(self._on_change)
        secret = self._read_master_secret()
        self._clock.start()
        hubclock.use(self._clock)
        self._redis_watch.start(secret)
        self._credentials.begin(secret)
        if self._is_stopping:
            raise BackendError("stopped while starting")
        self._health.start()
        self._desired.controller.start()
        self._scorer_controller.start()
        self._act_controller.start()
        self._cluster_controller.start()
        self._notifications.start()
        self._resync_thread.start()
        self.writer.start()
        self._is_started = True
        self._resync_requested.set()
        log.info("hub controller started", backend=self._settings.backend, namespace=self._settings.namespace)

    def find_problem(self) -> str:
        """Return why work has stalled; empty if it progresses or has not begun. Must be called every few seconds."""
        # An unreachable API server or Redis is not a problem here, because a restart would not help.
        if not self._is_started:
            return ""
        if not (self._resync_thread.is_alive() and self._notifications.is_alive()):
            return "the threads that listen for changes have ended or are stuck"
        stuck_controllers = [controller.name for controller in self.controllers if not controller.is_progressing()]
        if stuck_controllers:
            return f"nothing of {', '.join(stuck_controllers)} is worked on although there is work"
        return self.writer.find_problem()

    @property
    def is_redis_unreachable(self) -> bool:
        """True if Redis cannot be reached."""
        return self._outage.is_on

    def count_scorers_without_room(self) -> Counter[str]:
        """Return the number of scorers by namespace that do not fit into the ManifestWork of some cluster."""
        return Counter(plan.scorer.metadata.namespace for plan in self._desired.plan.list_scorers_without_room())

    def interrupt(self) -> None:
        """Abort a `start` running in another thread, with BackendError. Call `stop` afterwards."""
        self._is_stopping = True
        self._backend.interrupt()

    def stop(self) -> None:
        """End all work in progress and release everything."""
        self._is_stopping = True
        self._resync_requested.set()
        self._notifications.stop()
        self._health.stop()
        self._desired.controller.stop()
        self._cluster_controller.stop()
        self._scorer_controller.stop()
        self._act_controller.stop()
        self.writer.stop()
        self._resync_thread.join()
        self._redis_watch.stop()
        self._clock.stop()
        hubclock.use(None)
        # Stop the backend last, because threads may write until here.
        self._backend.stop()
        self._credentials.close()
        self._client.close()
        self._writer_client.close()
        self._notifications_client.close()

    def _make_reconcilers(self) -> dict[Kind, Reconcile]:
        backend, registrar, desired_state, cluster_reconciler = (
            self._backend,
            self._registrar,
            self._desired,
            self._cluster_reconciler,
        )
        return {
            Kind.CLUSTER: cluster_reconciler.reconcile,
            Kind.SCORER: ScorerReconciler(
                backend,
                registrar,
                desired_state,
                self._health,
                cluster_reconciler,
                self._desired.record_changes,
                self._act_runner.list_responses,
            ).reconcile,
            Kind.CONFIG: ConfigReconciler(
                backend, registrar, desired_state, cluster_reconciler, self.writer.check_everything
            ).reconcile,
        }

    def _read_master_secret(self) -> bytes:
        configured_secret = self._settings.resolved_signing_secret()
        try:
            secret = bytes.fromhex(configured_secret or self._backend.get_master_secret())
        except ValueError:
            secret = b""
        if len(secret) < 16:
            source = "DSF_SIGNING_SECRET" if configured_secret else "the stored signing secret"
            raise SettingsError(f"{source}: is not a secret of at least 32 hex digits")
        return secret

    def _get_planned_scores(self) -> PlannedScores | None:
        """Return the scores that the current plan requires; None before the first plan."""
        plan = self._desired.plan
        if self._planned_scores is None or self._planned_scores.plan is not plan:
            self._planned_scores = PlannedScores(plan) if self._desired.is_known else None
        return self._planned_scores

    def _reconcile(self, key: ObjectKey) -> float | None:
        # Without a plan, each cluster would seem to have departed.
        return None if self._desired.defer_until_planned(key) else self._reconcilers[key.kind](key)

    # --- event routing -------------------------------------------------------------------------------------------

    def _on_change(self, key: ObjectKey) -> None:
        """Route the change of an object. A comparison of the next plan with the current plan finds affected objects."""
        if key.kind in (Kind.SCORER, Kind.CONFIG):
            if self._is_changed(key):
                self._desired.record_changes(key)
                if key.kind is Kind.SCORER:
                    self._act_controller.queue.add(key)
        elif key.kind in (Kind.AUTHENTICATION, Kind.CLUSTER_SET):
            self._desired.record_changes(self._desired.config_key, namespace=key.namespace)
        elif key.kind is Kind.SECRET:
            self._desired.record_changes(
                self._desired.config_key,
                *map(_make_cluster_key, self._desired.plan.find_clusters_with_secret(key.name)),
            )
        elif key.kind in (Kind.CLUSTER, Kind.ADDON):
            self._desired.record_changes(_make_cluster_key(key.name if key.kind is Kind.CLUSTER else key.namespace))
        elif key.kind is Kind.WORK:
            self._cluster_controller.queue.add(_make_cluster_key(key.namespace))
        elif key.kind is Kind.SCORE:
            self.writer.handle_object_change(key.namespace, key.name)

    def _is_changed(self, key: ObjectKey) -> bool:
        """Return True if a part of the object other than its status has changed.

        The hub itself writes statuses; a full resync detects edits of a status by other programs.
        """
        manifest = self._backend.get(*key)
        if manifest is None:
            self._last_metadata.pop(key, None)
            return True
        metadata = manifest["metadata"]
        fields = ("uid", "generation", "annotations", "deletionTimestamp", "finalizers")
        values = tuple(metadata.get(name) for name in fields)
        previous_values, self._last_metadata[key] = self._last_metadata.get(key), values
        return previous_values != values

    def _on_health(self, key: ObjectKey) -> None:
        self._desired.record_changes(key)

    def _on_check(self, key: ObjectKey, target: HealthTarget, result: CheckResult, request: str) -> None:
        """Write a notice for users about a check of /config. The notice is dropped if Redis fails."""
        scorer_key = f"{key.namespace}/{key.name}"
        if self._outage.is_on or self._desired.plan.find_owner_key(key.name) not in (scorer_key, None):
            return
        try:
            self._registrar.notices.write_config_read(make_read_notice(key.name, target, result, request))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            log.debug("the notice about a read of /config is dropped", scorer=key.name, error=str(error))
        except redis.RedisError as error:
            log.warning("the notice about a read of /config is dropped", scorer=key.name, error=str(error))

    def _on_new_plan(self, differences: Differences, changed_keys: Set[ObjectKey]) -> None:
        self._status_write_limit.retain(self._desired.plan.scorers)
        for key in {
            *changed_keys,
            *map(_make_scorer_key, differences.scorers),
            *map(_make_cluster_key, differences.clusters),
        }:
            (self._cluster_controller if key.kind is Kind.CLUSTER else self._scorer_controller).queue.add(key)

    def _on_distributed(self, scorers: frozenset[str]) -> None:
        delay = self._compute_status_delay()
        for key, scorer in self._desired.plan.scorers.items():
            if scorer.name in scorers:
                self._scorer_controller.queue.add_after(_make_scorer_key(key), delay)
        self._scorer_controller.queue.add_after(self._desired.config_key, self._compute_status_delay())

    def _on_wake(self) -> None:
        """Handle requests for credentials, and other user actions. Raises redis.RedisError."""
        for cluster in self._credentials.read_requests():
            self._cluster_controller.queue.add(_make_cluster_key(cluster))
        # Before the first plan, the objects that the actions concern are unknown.
        if self._desired.plan.scorers:
            self._change_notifier.notify()

    def _find_scorer(self, name: str) -> ObjectKey | None:
        key = self._desired.plan.find_owner_key(name)
        return _make_scorer_key(key) if key is not None and key in self._desired.plan.scorers else None

    def _refresh_statuses(self, names: frozenset[str] | set[str]) -> None:
        delay = self._compute_status_delay()
        for key, scorer in self._desired.plan.scorers.items():
            if scorer.name in names:
                self._scorer_controller.queue.add_after(
                    _make_scorer_key(key), max(delay, self._status_write_limit.reserve_write(key))
                )

    def _compute_status_delay(self) -> float:
        # The status of a scorer counts clusters, so a delay that grows with their number batches changes.
        return 0.05 + 0.001 * len(self._desired.plan.clusters)

    # --- full resync ---------------------------------------------------------------------------------------------

    def _resync_forever(self) -> None:
        # True if the last full resync failed, so that the next resync must be full.
        is_full_resync_due = False
        for number in itertools.count(1):
            pause_seconds = self._settings.hub_resync * random.uniform(0.9, 1.1)  # noqa: S311
            is_urgent = self._resync_requested.wait(pause_seconds)
            self._resync_requested.clear()
            if self._is_stopping:
                return
            # Spread the reconciliations of a periodic resync over these seconds.
            spread_seconds = 0.0 if is_urgent else min(5.0, self._settings.hub_resync / 2)
            is_full, is_full_resync_due = is_urgent or is_full_resync_due or number % 20 == 0, False
            try:
                self._resync(spread_seconds, is_full=is_full)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                # The end of the outage triggers another full resync.
                self._outage.begin(error)
            except (DsfError, redis.RedisError) as error:
                log.warning("resync failed, will be tried again", error=str(error))
                is_full_resync_due = is_full
            except Exception:
                log.exception("resync failed, will be tried again")
                is_full_resync_due = is_full

    def _resync(self, spread_seconds: float, *, is_full: bool) -> None:
        """Enqueue the clusters that deviate from the desired state without an event; with `is_full`, all objects.

        Reconciliations are spread over `spread_seconds`. Raises DsfError and redis.RedisError.
        """
        plan = self._desired.update()
        clusters: set[str] = set()
        if self._credentials.have_changed() or is_full:
            clusters |= plan.clusters.keys() | {key.name for key in self._backend.list_keys(Kind.CLUSTER)}
            clusters |= {key.namespace for key in self._backend.list_keys(Kind.WORK)}
        object_keys = [*self._backend.list_keys(Kind.SCORER), *self._backend.list_keys(Kind.CONFIG)]
        if is_full:
            self.writer.check_everything()
            self._check_crds()
        try:
            clusters |= self._registrar.refresh()
            clusters |= self._registrar.list_known_clusters() - plan.clusters.keys()
            # Update the plan again after the slow reads, because `sync_scorers` removes scorers outside of the plan.
            plan = self._desired.update()
            self._registrar.sync_scorers(plan)
            # Keep the data of temporarily absent clusters.
            departed_clusters = self._registrar.list_known_clusters() - plan.clusters.keys()
            retained_uids = {
                name: self._registrar.get_cluster(name).uid
                for name in departed_clusters
                if self._departed_clusters.compute_grace_seconds(name)
            }
            retained_uids |= plan.clusters
            clusters |= self._registrar.notices.remove_others(plan.list_scorer_names(), retained_uids.keys())
            if is_full:
                self._registrar.notices.forget_written()
                self._credentials.delete_unregistered_queues()
            for cluster in self._credentials.read_requests() | self._credentials.sync(retained_uids):
                # Reconcile these clusters immediately, because they may have changed during this resync.
                self._cluster_controller.queue.add(_make_cluster_key(cluster))
            self._change_notifier.notify()
        finally:
            clusters |= self._cluster_reconciler.list_unfinished_clusters()
            for key in object_keys:
                self._scorer_controller.queue.add_after(key, random.uniform(0, spread_seconds))  # noqa: S311
                if is_full and key.kind is Kind.SCORER:
                    self._act_controller.queue.add_after(key, spread_seconds)
            for key in map(_make_cluster_key, clusters):
                self._cluster_controller.queue.add_after(key, random.uniform(0, spread_seconds))  # noqa: S311

    def _check_crds(self) -> None:
        """Report CRDs of another version, because they drop fields that users or this hub write."""
        try:
            self._redis_watch.report(server.CRDS, self._backend.describe_missing_fields())
        except BackendError as error:
            log.info("the CRDs are compared at the next full resync", error=str(error))


def _make_cluster_key(name: str) -> ObjectKey:
    return ObjectKey(Kind.CLUSTER, "", name)


def _make_scorer_key(key: str) -> ObjectKey:
    """Return the key of the scorer `namespace/name`."""
    namespace, _, name = key.partition("/")
    return ObjectKey(Kind.SCORER, namespace, name)
