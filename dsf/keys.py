"""All Redis keys with content and writers.

A *pair* is `<cluster>/<scorer>`: both are DNS-1123 names, so the slash cannot occur in either. Values are JSON with a
schema version `v` unless said otherwise. Redis Cluster is not supported: Celery's Redis transport does not work on it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Version of every stored value and message; readers accept one older and one newer.
SCHEMA_VERSION = 1


def is_supported(version: int) -> bool:
    """True if this schema version is supported: hub and agents may be one minor version apart."""
    return abs(version - SCHEMA_VERSION) <= 1


# --- queues (lists, owned by Celery) -------------------------------------------------------------------------

#: The results worker's own queue. The queue stays empty: results come through the mailboxes.
RESULTS_QUEUE = "hub.results"
_SPOKE_PREFIX = "spoke."


def spoke_queue(cluster: str) -> str:
    """Return the queue of one cluster's agent. Names are exact: no queue name as a glob matches another."""
    return _SPOKE_PREFIX + cluster


def cluster_of_queue(queue: str) -> str | None:
    """Return the cluster whose queue this is, or None for another queue."""
    return queue.removeprefix(_SPOKE_PREFIX) if queue.startswith(_SPOKE_PREFIX) else None


# --- mailboxes (agents put results in, results workers take them out) -----------------------------------------

#: Most waiting results of a cluster. This limits the memory of Redis that one credential can occupy.
MAIL_SLOTS = 16
#: Prefix of all slots and flags.
MAIL_PREFIX = "hub.mail."
#: hash cluster -> `TOKEN MILLISECONDS SLOT`: the results worker that reads this mailbox (`-`: none), until when by the
#: clock of Redis, and the slot that is read next.
MAIL_CLAIMS = "dsf:mail:claims"
#: hash TOKEN -> `MILLISECONDS SLOT SLOT...`: the slots that a results worker is reading, until when its claims hold.
MAIL_READING = "dsf:mail:reading"
#: hash slot -> how often a results worker died while it was reading it. Each is read alone, and dropped at 2.
MAIL_SUSPECTS = "dsf:mail:suspects"


def mail_slot(cluster: str, slot: int) -> str:
    """String with one signed result of a cluster, as the frame of `dsf.messages`; slots count from 0."""
    return f"{MAIL_PREFIX}{cluster}.{slot}"


def mail_slots(cluster: str) -> list[str]:
    """Return all slots of a cluster."""
    return [mail_slot(cluster, slot) for slot in range(MAIL_SLOTS)]


def mail_flag(cluster: str) -> str:
    """String with the number of the slot that a cluster's agent filled last: only flagged mailboxes are read."""
    return f"{MAIL_PREFIX}{cluster}.flag"


# --- remote control of Celery's workers -----------------------------------------------------------------------


class ControlChannels(NamedTuple):
    """Channels of remote control. Unlike keys, channels are of the whole server, so they carry the database."""

    #: Commands of operators on the hub, and read-only commands; all workers listen.
    commands: str
    questions: str

    @classmethod
    def of(cls, db: int) -> ControlChannels:
        """Return the channels of the installation in this database."""
        prefix = "dsf:control" if db == 0 else f"dsf:{db}:control"
        return cls(prefix, f"{prefix}:ask")

    def reply(self, worker: str) -> str:
        """Channel of the replies of one worker, by Celery's name of it."""
        return f"{self.commands}:reply:{worker}"


#: Channels of database 0, the only one in which users of Redis are possible.
CONTROL = ControlChannels.of(0)


# --- registry (written by the hub controller) ----------------------------------------------------------------

#: hash scorer -> ScorerRecord: data of a scorer for ingest, exporter and CLI. No endpoint, no secret.
SCORERS = "dsf:scorers"
#: hash cluster -> ClusterRecord: accepted clusters and the key ids their agents may sign with.
CLUSTERS = "dsf:clusters"
#: hash scorer -> ScorerNotice, hash cluster -> ClusterNotice: messages for users; by the hub controller.
SCORER_NOTICES = "dsf:scorers:notices"
CLUSTER_NOTICES = "dsf:clusters:notices"
#: hash scorer -> ConfigRead: when its /config was last read; by the hub controller, with each check.
CONFIG_READS = "dsf:scorers:reads"
#: hash cluster -> key id that its newest accepted result was signed with; by the results worker.
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
#: zset pair -> unix time at which it is due (float seconds).
DUE = "dsf:schedule:due"
#: string, token of the active beat; expires.
BEAT_LOCK = "dsf:schedule:lock"
#: string, unix time up to which first runs are assigned, to spread many new entries; expires.
FIRST_RUNS = "dsf:schedule:first"
#: list, one element wakes a waiting beat.
BEAT_WAKE = "dsf:schedule:wake"
#: hash, counters of beat: `ticks`, `skipped:<reason>`, `lag:<upper bound>`, `lag:sum`, `lag:count`, ...
BEAT_STATS = "dsf:schedule:stats"

#: hash pair -> its newest ticks that were not sent, as text described in `dsf.store.ticks`; by beat.
SKIPS = "dsf:schedule:skips"
#: hash `<scorer>:<upper bound>` -> number of ticks of that scorer with this lag, as in BEAT_STATS; by beat.
BEAT_LAGS = "dsf:schedule:lags"
#: Upper bounds of the histogram of lags, in seconds, as they stand in fields.
LAG_BOUNDS = ("0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60")

# --- runs and results (beat opens runs, the results worker closes them) --------------------------------------

#: zset `<pair>/<run id>` -> deadline (unix seconds): sent runs without a result.
OPEN_RUNS = "dsf:runs:open"
#: zset `<pair>/<run id>` -> unix time at which the run was declared lost; kept an hour to recognise late results.
LOST_RUNS = "dsf:runs:lost"
_PAIR_PREFIX = "dsf:pair:"
_HISTORY_PREFIX = "dsf:history:"
#: hash namespace -> bytes of the newest scores of its scorers' pairs; by the results worker.
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

#: hash pair -> number of changes of its score that the writer has not taken; by ingest.
WRITES = "dsf:writes"
#: list, one element wakes the waiting writer; by ingest.
WRITES_WAKE = "dsf:writes:wake"
#: hash pair -> Unwritten: why the backend does not have its valid score; by the writer.
UNWRITTEN = "dsf:writes:unwritten"
#: hash, counters of the writer: `written`, `coalesced`, `unchanged`, `failed`, `deleted`; `turn_at`, the unix time of
#: its newest turn; and `validity_factor`, which extends every validity so that renewals leave room for changes (1
#: unless the fleet is large).
WRITE_STATS = "dsf:writes:stats"

# --- watching -----------------------------------------------------------------------------------------------------

#: Stages that show by a mark that they work: intake of results, and the sweeper of lost runs; both of results workers.
RESULTS_STAGE = "results"
SWEEP_STAGE = "books"
_MARK_PREFIX = "dsf:watch:"


def stage_mark(stage: str) -> str:
    """String that a stage sets while it works; expires."""
    return _MARK_PREFIX + stage


# --- the hub itself ------------------------------------------------------------------------------------------

#: hash `<host>:<process id>` -> ClockReport: how far a process's machine is from the hub's clock, which is Redis' own;
#: `agent <cluster>` -> the same of an agent, while a results worker doubts its own clock. By all processes.
CLOCKS = "dsf:clocks"
#: string, Owner as JSON: the installation whose data this database has; expires. By the hub controller.
OWNER = "dsf:owner"
#: hash kind -> sentence: problems of Redis and of clocks, for people; by the hub controller.
HUB_PROBLEMS = "dsf:hub:problems"
_CLOCK_PREFIX = "dsf:clock:"


def clock(service: str) -> str:
    """String with the newest unix time that the clock of Redis has shown a service, `beat` or `results`; by it."""
    return _CLOCK_PREFIX + service


# --- notifications for the hub controller --------------------------------------------------------------------

#: set of scorers whose cycles turned from success to failure or back.
HUB_CHANGED = "dsf:hub:changed"
#: list, one element wakes the hub controller.
HUB_WAKE = "dsf:hub:wake"

# --- users' actions (written by command line, optimiser and page; the hub controller makes Events of them) ----------

#: stream, newest `CHANGES_KEPT` actions; each has one field `change` with JSON by `dsf.fleet.changes`.
CHANGES = "dsf:changes"
#: Kept actions. Each takes at most some kilobytes, most take 300 bytes.
CHANGES_KEPT = 5000
#: string, id of the newest action for which the hub controller has created an Event.
CHANGES_TOLD = "dsf:changes:told"

# --- page ----------------------------------------------------------------------------------------------------

_WEB_SESSION_PREFIX = "dsf:web:session:"
_WEB_OUTCOME_PREFIX = "dsf:web:outcome:"


def web_session(digest: str) -> str:
    """Return the key of a JSON string: a login session of the page, by the SHA-256 of the cookie; expires. The session
    has no token."""
    return _WEB_SESSION_PREFIX + digest


def web_outcome(ident: str) -> str:
    """String with JSON of the runs requested on the page; expires."""
    return _WEB_OUTCOME_PREFIX + ident


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def is_name(text: str) -> bool:
    """True if this can be the name of a cluster or scorer (DNS-1123 subdomain)."""
    return len(text) <= 253 and _NAME.fullmatch(text) is not None


def pair(cluster: str, scorer: str) -> str:
    """Member for one scorer on one cluster."""
    return f"{cluster}/{scorer}"


def split_pair(member: str) -> tuple[str, str]:
    """`<cluster>/<scorer>` -> (cluster, scorer)."""
    cluster, _, scorer = member.partition("/")
    return cluster, scorer


def run_member(cluster: str, scorer: str, run_id: str) -> str:
    """Member for one run of a pair in OPEN_RUNS and LOST_RUNS."""
    return f"{cluster}/{scorer}/{run_id}"


def pair_key(cluster: str, scorer: str) -> str:
    """Hash with the score and the counters of one pair. Fields are in `dsf.store.pairs`."""
    return f"{_PAIR_PREFIX}{cluster}/{scorer}"


def history_key(cluster: str, scorer: str) -> str:
    """List of the newest cycles of one pair, newest first."""
    return f"{_HISTORY_PREFIX}{cluster}/{scorer}"
