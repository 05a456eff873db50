"""All Redis keys, with the content and the writers of each.

The comment of a key begins with its Redis type and content: `hash FIELD -> VALUE`, `zset MEMBER -> SCORE`, `list`,
`string` or `stream`. The writers follow, unless the heading of the section names them.

A *pair* is `<cluster>/<scorer>`. Both are DNS-1123 names, so neither contains a slash. Values are JSON with a schema
version `v` unless the comment of the key states another format. Redis Cluster is not supported, because Celery's Redis
transport does not work on it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Version of every stored value and message. Readers accept the previous and the next version, too.
SCHEMA_VERSION = 1


def is_supported(version: int) -> bool:
    """True if this schema version is supported. Hub and agents may differ by one minor version."""
    return abs(version - SCHEMA_VERSION) <= 1


# --- queues (lists, owned by Celery) -------------------------------------------------------------------------

#: Queue of the results worker. The queue stays empty, because results arrive in the mailboxes.
RESULTS_QUEUE = "hub.results"
_SPOKE_PREFIX = "spoke."


def spoke_queue(cluster: str) -> str:
    """Return the name of the queue of a cluster's agent. No queue name matches another one as a glob pattern."""
    return _SPOKE_PREFIX + cluster


def cluster_of_queue(queue: str) -> str | None:
    """Return the cluster that this queue belongs to, or None for a queue of the hub."""
    return queue.removeprefix(_SPOKE_PREFIX) if queue.startswith(_SPOKE_PREFIX) else None


# --- mailboxes (agents put results in, results workers take them out) -----------------------------------------

#: Maximum number of waiting results of a cluster. This limits the memory of Redis that one credential can occupy.
MAIL_SLOTS = 16
#: Prefix of all slots and flags.
MAIL_PREFIX = "hub.mail."
#: hash cluster -> `TOKEN MILLISECONDS SLOT`: the results worker that reads this mailbox (`-` for none), the end of its
#: claim by the clock of Redis, and the next slot to read.
MAIL_CLAIMS = "dsf:mail:claims"
#: hash TOKEN -> `MILLISECONDS SLOT SLOT...`: the end of a results worker's claims, and the slots that it is reading.
MAIL_READING = "dsf:mail:reading"
#: hash slot -> number of results workers that died while reading the slot. From 1 on, the slot is read alone; at 2, its
#: result is dropped.
MAIL_SUSPECTS = "dsf:mail:suspects"


def mail_slot(cluster: str, slot: int) -> str:
    """Return the key of a string with one signed result of a cluster, which is a frame of `dsf.messages`.

    Slots are numbered from 0.
    """
    return f"{MAIL_PREFIX}{cluster}.{slot}"


def mail_slots(cluster: str) -> list[str]:
    """Return the keys of all slots of a cluster."""
    return [mail_slot(cluster, slot) for slot in range(MAIL_SLOTS)]


def mail_flag(cluster: str) -> str:
    """Return the key of a string with the number of the slot that the agent filled last.

    Results workers read only mailboxes with this flag.
    """
    return f"{MAIL_PREFIX}{cluster}.flag"


# --- remote control of Celery's workers -----------------------------------------------------------------------


class ControlChannels(NamedTuple):
    """Names the channels of remote control.

    The names contain the number of the database, because channels, unlike keys, are shared by all databases of a
    server.
    """

    #: Channels of the commands of operators on the hub, and of read-only commands. All workers listen to both.
    commands: str
    questions: str

    @classmethod
    def of(cls, db: int) -> ControlChannels:
        """Return the channels of the installation in the database with this number."""
        prefix = "dsf:control" if db == 0 else f"dsf:{db}:control"
        return cls(prefix, f"{prefix}:ask")

    def reply(self, worker: str) -> str:
        """Return the channel for the replies of a worker. `worker` is its name in Celery."""
        return f"{self.commands}:reply:{worker}"


#: Channels of database 0, which is the only database with separate Redis users for agents.
CONTROL = ControlChannels.of(0)


# --- registry (written by the hub controller) ----------------------------------------------------------------

#: hash scorer -> ScorerRecord: data of a scorer for ingest, exporter and CLI. No endpoint, no secret.
SCORERS = "dsf:scorers"
#: hash cluster -> ClusterRecord: accepted clusters and the key ids their agents may sign with.
CLUSTERS = "dsf:clusters"
#: hash scorer -> ScorerNotice, hash cluster -> ClusterNotice: messages for users; by the hub controller.
SCORER_NOTICES = "dsf:scorers:notices"
CLUSTER_NOTICES = "dsf:clusters:notices"
#: hash scorer -> ConfigRead: time of the last read of its /config; by the hub controller, with each check.
CONFIG_READS = "dsf:scorers:reads"
#: hash cluster -> id of the key that signed its newest accepted result; by the results worker.
KEYS_USED = "dsf:clusters:keys"
#: hash cluster -> KeyRequest: requested credentials that the hub controller has not created yet.
KEY_REQUESTS = "dsf:clusters:requests"
#: hash cluster -> AgentRecord: versions of its agent; by the results worker.
AGENTS = "dsf:clusters:agents"

# --- schedule (entries by the hub controller, overrides by users, due times by both and beat) ----------------

#: hash pair -> Entry.
ENTRIES = "dsf:schedule:entries"
#: hash target -> ScheduleOverride; a target is a pair, or `*/<scorer>` for all clusters.
OVERRIDES = "dsf:schedule:overrides"
#: zset pair -> unix time at which the pair is due (float seconds).
DUE = "dsf:schedule:due"
#: string, token of the active beat. The key expires.
BEAT_LOCK = "dsf:schedule:lock"
#: string, unix time up to which first runs are assigned, to spread many new entries. The key expires.
FIRST_RUNS = "dsf:schedule:first"
#: list, one element wakes a waiting beat.
BEAT_WAKE = "dsf:schedule:wake"
#: hash, counters of beat: `ticks`, `skipped:<reason>`, `lag:<upper bound>`, `lag:sum`, `lag:count`, ...
BEAT_STATS = "dsf:schedule:stats"

#: hash pair -> its newest skipped ticks, in the text format of `dsf.store.ticks`; by beat.
SKIPS = "dsf:schedule:skips"
#: hash `<scorer>:<upper bound>` -> number of ticks of that scorer with this lag, as in BEAT_STATS; by beat.
BEAT_LAGS = "dsf:schedule:lags"
#: Upper bounds of the histogram of lags, in seconds, as the field names contain them.
LAG_BOUNDS = ("0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60")

# --- runs and results (beat opens runs, the results worker closes them) --------------------------------------

#: zset `<pair>/<run id>` -> deadline (unix seconds): sent runs without a result.
OPEN_RUNS = "dsf:runs:open"
#: zset `<pair>/<run id>` -> unix time at which the run was declared lost. Runs stay for an hour, so that a late result
#: is recognised.
LOST_RUNS = "dsf:runs:lost"
_PAIR_PREFIX = "dsf:pair:"
_HISTORY_PREFIX = "dsf:history:"
#: hash namespace, or `NAMESPACE/CLUSTER` -> bytes of the newest scores of its scorers' pairs; by the results worker.
SCORE_BYTES = "dsf:scores:bytes"
#: hash reason -> number of refused results.
REJECTED = "dsf:rejected"
#: hash cluster -> number of invalid entries in its mailbox.
REJECTED_MAIL = "dsf:rejected:mail"

# --- rows (one per pair, for readers; beat's part of them is SKIPS) --------------------------------------------

#: hash pair -> its row as JSON, described in `dsf.store.pairs`; by the results worker.
ROWS = "dsf:rows"
#: zset pair -> number of its newest change, counted by SEQUENCE: readers read only the rows that changed. The set
#: includes removed pairs for a minute or two. By ingest, sweeper, beat, hub controller and users' changes to the
#: schedule.
CHANGED = "dsf:rows:changed"
#: string, number of the newest change. The first one is the time in microseconds.
SEQUENCE = "dsf:rows:sequence"

# --- score writing (the hub controller's score writer) --------------------------------------------------------

#: hash pair -> number of changes of its score that the writer has not processed; by ingest.
WRITES = "dsf:writes"
#: list, one element wakes the waiting writer; by ingest.
WRITES_WAKE = "dsf:writes:wake"
#: hash pair -> Unwritten: reason why the backend does not have its valid score; by the writer.
UNWRITTEN = "dsf:writes:unwritten"
#: hash, counters of the writer: `written`, `coalesced`, `unchanged`, `failed`, `deleted`; `turn_at`, the unix time of
#: its newest pass; and `validity_factor`, which extends every validity so that renewals leave room for changes (1
#: unless the fleet is large).
WRITE_STATS = "dsf:writes:stats"

# --- liveness of stages --------------------------------------------------------------------------------------------

#: Stages of results workers that renew a heartbeat while they work: the intake of results and the sweeper of lost runs.
RESULTS_STAGE = "results"
SWEEP_STAGE = "books"
_MARK_PREFIX = "dsf:watch:"


def heartbeat(stage: str) -> str:
    """Return the key of a string that a stage sets while it works. The string expires."""
    return _MARK_PREFIX + stage


# --- the hub itself ------------------------------------------------------------------------------------------

#: hash `<host>:<process id>` -> ClockReport: offset of a process's clock from the hub's clock, which is that of Redis.
#: hash `agent <cluster>` -> ClockReport of an agent, while a results worker doubts its own clock. By all processes.
CLOCKS = "dsf:clocks"
#: string, Owner as JSON: the installation that this database belongs to; expires. By the hub controller.
OWNER = "dsf:owner"
#: hash kind -> sentence: problems of Redis and of clocks, for people; by the hub controller.
HUB_PROBLEMS = "dsf:hub:problems"
_CLOCK_PREFIX = "dsf:clock:"


def clock(service: str) -> str:
    """Return the key of a string with the newest unix time that a service has read from the clock of Redis.

    `service` is `beat` or `results`, and writes the string itself.
    """
    return _CLOCK_PREFIX + service


# --- notifications for the hub controller --------------------------------------------------------------------

#: set of scorers whose cycles turned from success to failure or back.
HUB_CHANGED = "dsf:hub:changed"
#: list, one element wakes the hub controller.
HUB_WAKE = "dsf:hub:wake"

# --- users' actions (by command line, optimiser and page; the hub controller creates Events for them) --------------

#: stream, newest `CHANGES_KEPT` actions. Each has one field `change` with the JSON of `dsf.fleet.changes`.
CHANGES = "dsf:changes"
#: Maximum number of stored actions. An action takes 300 bytes as a rule, and some kilobytes at most.
CHANGES_KEPT = 5000
#: string, id of the newest action for which the hub controller has created an Event.
CHANGES_NOTIFIED = "dsf:changes:told"

# --- page ----------------------------------------------------------------------------------------------------

_WEB_SESSION_PREFIX = "dsf:web:session:"
_WEB_OUTCOME_PREFIX = "dsf:web:outcome:"


def web_session(digest: str) -> str:
    """Return the key of a JSON string with a login session of the page, which expires and has no token.

    `digest` is the SHA-256 of the cookie.
    """
    return _WEB_SESSION_PREFIX + digest


def web_outcome(ident: str) -> str:
    """Return the key of a JSON string with the runs that a user requested on the page. The string expires."""
    return _WEB_OUTCOME_PREFIX + ident


_NAME_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def is_name(text: str) -> bool:
    """True if this can be the name of a cluster or scorer (DNS-1123 subdomain)."""
    return len(text) <= 253 and _NAME_PATTERN.fullmatch(text) is not None


def pair(cluster: str, scorer: str) -> str:
    """Return the name of a pair, which is a member or field of many keys."""
    return f"{cluster}/{scorer}"


def split_pair(member: str) -> tuple[str, str]:
    """Return (cluster, scorer) of a pair."""
    cluster, _, scorer = member.partition("/")
    return cluster, scorer


def run_member(cluster: str, scorer: str, run_id: str) -> str:
    """Return the member for a run of a pair in OPEN_RUNS and LOST_RUNS."""
    return f"{cluster}/{scorer}/{run_id}"


def pair_key(cluster: str, scorer: str) -> str:
    """Return the key of the hash with the score and the counters of a pair. `dsf.store.pairs` lists the fields."""
    return f"{_PAIR_PREFIX}{cluster}/{scorer}"


def history_key(cluster: str, scorer: str) -> str:
    """Return the key of the list with the newest cycles of a pair, newest first."""
    return f"{_HISTORY_PREFIX}{cluster}/{scorer}"
