"""All metrics: name, type, labels and help. Collectors in `dsf.agent` and `dsf.fleetmetrics` fill them.

Names without a comment are the upstream project's, so that its dashboards keep working.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


@dataclass(frozen=True)
class Metric:
    """A metric as it is exposed; counters are named without `_total`, which the exposition adds."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()

    def make_gauge(self, labels: tuple[str, ...] | None = None) -> GaugeMetricFamily:
        """Return an empty family for a custom collector, with other labels than the default ones if given."""
        return GaugeMetricFamily(self.name, self.help, labels=self.labels if labels is None else labels)

    def make_counter(self, labels: tuple[str, ...] | None = None) -> CounterMetricFamily:
        """Return an empty family for a custom collector, with other labels than the default ones if given."""
        return CounterMetricFamily(self.name, self.help, labels=self.labels if labels is None else labels)


#: Gauge label -> label of a scoring result, in the order in which they are exposed after ds_cluster.
SCORE_LABELS = {
    "ds_node": "node",
    "ds_device": "device",
    "ds_namespace": "namespace",
    "ds_app": "app",
    "ds_pod": "pod",
    "ds_container": "container",
    "ds_meta": "meta",
}
SCORE = Metric(
    "dynamic_score",
    "gauge",
    "Latest score, as the scoring API gave it.",
    ("ds_cluster", *SCORE_LABELS, "ds_score_name"),
)
REQUESTS = Metric("dynamic_scoring_requests", "counter", "Scoring cycles by how they ended.", ("score_name", "status"))
FETCH_SECONDS = Metric("dynamic_scoring_fetch_seconds", "counter", "Time spent asking sources.", ("score_name",))
PERFORM_SECONDS = Metric("dynamic_scoring_perform_seconds", "counter", "Time spent in scoring APIs.", ("score_name",))
SEND_SECONDS = Metric("dynamic_scoring_send_seconds", "counter", "Time spent sending results.", ("score_name",))

# --- ours ---------------------------------------------------------------------------------------------------------

BUILD_INFO = Metric(
    "dynamic_scoring_build_info",
    "gauge",
    "1, with the versions of the framework, of Celery and of Python.",
    ("version", "celery_version", "python_version"),
)
STAGE_SECONDS = Metric(
    "dynamic_scoring_stage_seconds", "histogram", "Time of one stage of a cycle.", ("ds_score_name", "stage")
)
STAGE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
FAILURES = Metric(
    "dynamic_scoring_failures", "counter", "Failed cycles by stage and reason.", ("ds_score_name", "stage", "reason")
)
REFUSED = Metric(
    "dynamic_scoring_results_refused",
    "counter",
    "Single results of a valid response that were refused, by reason.",
    ("ds_score_name", "reason"),
)
SOURCE_WARNINGS = Metric(
    "dynamic_scoring_source_warnings",
    "counter",
    "Warnings of sources with valid responses: data of a server behind it may be missing.",
    ("ds_score_name",),
)
MESSAGES_REFUSED = Metric(
    "dynamic_scoring_messages_refused",
    "counter",
    "Messages in the agent's own queue that could not be read, or do not call `dsf.cycle`; they are dropped.",
)
LAST_SUCCESS = Metric(
    "dynamic_scoring_last_success_timestamp_seconds",
    "gauge",
    "Unix time of the newest successful cycle.",
    ("ds_cluster", "ds_score_name"),
)
VALID_UNTIL = Metric(
    "dynamic_scoring_valid_until_timestamp_seconds",
    "gauge",
    "Unix time until which the published score may be used.",
    ("ds_cluster", "ds_score_name"),
)
INTERVAL = Metric(
    "dynamic_scoring_interval_seconds",
    "gauge",
    "Seconds between two cycles: what the scorer says, or a person. Without paused pairs.",
    ("ds_cluster", "ds_score_name"),
)
CYCLES = Metric("dynamic_scoring_cycles", "counter", "Cycles by outcome.", ("ds_cluster", "ds_score_name", "outcome"))
SCHEDULED = Metric(
    "dynamic_scoring_scheduled", "counter", "Cycles that were due or asked for.", ("ds_cluster", "ds_score_name")
)
LAG = Metric("dynamic_scoring_schedule_lag_seconds", "histogram", "How late ticks were sent.")
TICKS = Metric("dynamic_scoring_ticks", "counter", "Ticks sent by beat.")
TICKS_STOPPED = Metric("dynamic_scoring_ticks_stopped", "gauge", "1 while no beat sends the ticks that are due.")
PATH_PROBLEM = Metric(
    "dynamic_scoring_path_problem",
    "gauge",
    "1 while a stage from a due pair to its written score stands still: redis, ticks, results, books, agents, objects.",
    ("stage",),
)
HUB_PROBLEM = Metric(
    "dynamic_scoring_hub_problem",
    "gauge",
    "1 while people must change Redis, the CRDs or a machine of the hub: clock, crds, credentials, eviction, memory or "
    "persistence; dsf status says what.",
    ("kind",),
)
TICKS_SKIPPED = Metric("dynamic_scoring_ticks_skipped", "counter", "Due ticks that were not sent.", ("reason",))
QUEUE_LENGTH = Metric(
    "dynamic_scoring_queue_length",
    "gauge",
    "Ticks waiting in a queue; as hub.results, results in all mailboxes.",
    ("queue",),
)
ENTRIES = Metric("dynamic_scoring_entries", "gauge", "Entries of the schedule.")
REJECTED = Metric("dynamic_scoring_results_rejected", "counter", "Result messages that the hub refused.", ("reason",))
MAIL_REJECTED = Metric(
    "dynamic_scoring_mail_rejected", "counter", "Things in a cluster's mailbox that can be no result.", ("ds_cluster",)
)
CLAMPED = Metric(
    "dynamic_scoring_scores_clamped", "counter", "Values outside -100..100 that were clamped.", ("ds_score_name",)
)
HELD = Metric(
    "dynamic_scoring_scores_held",
    "counter",
    "New values of items that `spec.execution.hold` kept back, each once a cycle.",
    ("ds_score_name",),
)
WRITES = Metric(
    "dynamic_scoring_score_writes", "counter", "AddOnPlacementScores by what was done with them.", ("result",)
)
SCORER_HEALTHY = Metric(
    "dynamic_scoring_scorer_healthy", "gauge", "1 while the scoring API passes its health check.", ("ds_score_name",)
)
UP = Metric("dynamic_scoring_up", "gauge", "1 while the hub can read Redis.")
REDIS_MEMORY = Metric("dynamic_scoring_redis_memory_bytes", "gauge", "Memory that Redis uses.")
REDIS_MEMORY_LIMIT = Metric(
    "dynamic_scoring_redis_memory_limit_bytes",
    "gauge",
    "`maxmemory` of Redis, above which agents may not write; 0: none.",
)
REDIS_CLIENTS = Metric("dynamic_scoring_redis_clients", "gauge", "Connections to Redis.")
REDIS_CLIENT_LIMIT = Metric(
    "dynamic_scoring_redis_client_limit", "gauge", "`maxclients` of Redis, above which connections are refused."
)
REDIS_REJECTED_CONNECTIONS = Metric(
    "dynamic_scoring_redis_rejected_connections", "counter", "Connections that Redis refused because of `maxclients`."
)
REDIS_EVICTED_KEYS = Metric(
    "dynamic_scoring_redis_evicted_keys", "counter", "Keys that Redis removed for lack of memory."
)
REDIS_FILES_WRITTEN = Metric(
    "dynamic_scoring_redis_files_written",
    "gauge",
    "1 while Redis can write its files (aof: its log, rdb: its snapshot), 0 after an error.",
    ("file",),
)
REDIS_REPLICAS = Metric("dynamic_scoring_redis_replicas", "gauge", "Replicas that are connected to Redis.")
REDIS_SLOW_COMMANDS = Metric(
    "dynamic_scoring_redis_slow_commands",
    "gauge",
    "Commands in the slow log of Redis, which keeps the newest 128 by default.",
)
REDIS_STARTED = Metric("dynamic_scoring_redis_start_timestamp_seconds", "gauge", "Unix time at which Redis started.")
CERTIFICATE_END = Metric(
    "dynamic_scoring_certificate_end_timestamp_seconds",
    "gauge",
    "Unix time at which a certificate in use ends: the one that Redis serves, its CA, or the hub's own.",
    ("certificate",),
)
CONFIG_VALID = Metric(
    "dynamic_scoring_config_valid",
    "gauge",
    "1 while the delivered configuration can be used; 0: it cannot, and the last good one stays in force.",
)
CONFIG_LOADED = Metric(
    "dynamic_scoring_config_loaded_timestamp_seconds",
    "gauge",
    "Unix time at which the agent read the configuration in force; 0 before the first.",
)
CONFIG_SCORERS = Metric("dynamic_scoring_config_scorers", "gauge", "Scorers that this agent is to run.")
HUB_LEADING = Metric("dynamic_scoring_hub_leading", "gauge", "1 while this controller is the one that works.")
HUB_REDIS_UP = Metric("dynamic_scoring_hub_redis_up", "gauge", "1 while the controller can reach Redis.")
HUB_QUEUE_LENGTH = Metric(
    "dynamic_scoring_hub_queue_length", "gauge", "Objects that wait to be worked on by the controller.", ("queue",)
)
HUB_RECONCILIATIONS = Metric(
    "dynamic_scoring_hub_reconciliations",
    "counter",
    "Pieces of work of the controller, by how they ended.",
    ("queue", "result"),
)
HUB_WITHOUT_ROOM = Metric(
    "dynamic_scoring_hub_scorers_without_room",
    "gauge",
    "Scorers that do not fit into the ManifestWork of some cluster beside the others, and do not run there.",
    ("namespace",),
)
WINDOW_SERIES = Metric(
    "dynamic_scoring_window_series", "gauge", "Series that the agent holds for sources that only tell the present."
)
WINDOW_SAMPLES = Metric("dynamic_scoring_window_samples", "gauge", "Samples that the agent holds of these series.")
OTLP_SAMPLES = Metric(
    "dynamic_scoring_otlp_samples",
    "counter",
    "Samples pushed to the agent: kept, unwanted (no scorer selects it), or why it was rejected.",
    ("result",),
)
OBJECT_VALUES = Metric(
    "dynamic_scoring_object_values",
    "counter",
    "Fields of objects that the agent read: kept, absent, or why their value was refused.",
    ("result",),
)
VALIDITY_FACTOR = Metric(
    "dynamic_scoring_validity_factor",
    "gauge",
    "Factor by which every validity is longer, so that renewals leave room for changes; 1 unless the fleet is large.",
)
PAIRS = Metric("dynamic_scoring_pairs", "gauge", "Clusters by how a scorer does there.", ("ds_score_name", "state"))
REASONS = Metric(
    "dynamic_scoring_pairs_by_reason",
    "gauge",
    "Clusters on which a scorer has no new score, by why. At most 20 reasons per scorer.",
    ("ds_score_name", "state", "stage", "reason"),
)
AGE = Metric(
    "dynamic_scoring_age_seconds",
    "gauge",
    "Seconds since the last successful cycle: percentiles over the clusters of a scorer; 100 is the oldest.",
    ("ds_score_name", "percentile"),
)
EXPOSED = Metric(
    "dynamic_scoring_exposition",
    "gauge",
    "1 for how a scorer is exposed here: items, pair or none.",
    ("ds_score_name", "exposition"),
)
SERIES_LIMIT = Metric(
    "dynamic_scoring_series_limit", "gauge", "Series per scrape for scorers that do not say how they are exposed."
)
SERIES_WANTED = Metric(
    "dynamic_scoring_series_wanted",
    "gauge",
    "Series that these scorers would have with each cluster and each item; above the limit some are left out.",
)
