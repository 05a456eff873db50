"""All Redis keys with content and writers.

A *pair* is `<cluster>/<scorer>`: both are DNS-1123 names, so the slash cannot occur in either. Values are JSON with a
schema version `v` unless said otherwise. Redis Cluster is not supported: Celery's Redis transport does not work on it.
"""

from __future__ import annotations

import re

#: Version of every stored value and message; readers accept one older and one newer.
SCHEMA_VERSION = 1


def is_supported(version: int) -> bool:
    """Whether this schema version is supported: hub and agents may be one minor version apart."""
    return abs(version - SCHEMA_VERSION) <= 1


# --- queues (lists, owned by Celery) -------------------------------------------------------------------------

#: The results worker's own queue. Nothing is sent to it: results come through the mailboxes.
RESULTS_QUEUE = "hub.results"
_SPOKE_PREFIX = "spoke."


def spoke_queue(cluster: str) -> str:
    """The queue of one cluster's agent. Names are exact: no queue name as a glob matches another."""
    return _SPOKE_PREFIX + cluster


def cluster_of_queue(queue: str) -> str | None:
    """The cluster whose queue this is, or None for another queue."""
    return queue.removeprefix(_SPOKE_PREFIX) if queue.startswith(_SPOKE_PREFIX) else None


# --- mailboxes (agents put results in, results workers take them out) -----------------------------------------

#: Most waiting results of one cluster. It limits the memory of Redis that one credential can occupy.
MAIL_SLOTS = 16
#: Prefix of all slots and flags.
MAIL_PREFIX = "hub.mail."
#: Prefix of strings, cluster -> token of the results worker that reads this mailbox; they expire.
MAIL_CLAIM_PREFIX = "dsf:mail:claim:"


def mail_slot(cluster: str, slot: int) -> str:
    """String with one signed result of a cluster, as JSON; slots count from 0."""
    return f"{MAIL_PREFIX}{cluster}.{slot}"


def mail_slots(cluster: str) -> list[str]:
    """All slots of a cluster."""
    return [mail_slot(cluster, slot) for slot in range(MAIL_SLOTS)]


def mail_flag(cluster: str) -> str:
    """String that a cluster's agent sets when it has filled a slot: only flagged mailboxes are looked into."""
    return f"{MAIL_PREFIX}{cluster}.flag"


def mail_claim(cluster: str) -> str:
    """String with the token of the results worker that reads this cluster's mailbox; expires."""
    return MAIL_CLAIM_PREFIX + cluster


# --- remote control of Celery's workers -----------------------------------------------------------------------

#: Channels of commands from people on the hub, and of those that only ask; all workers listen.
CONTROL = "dsf:control"
QUESTIONS = "dsf:control:ask"


def control_reply(worker: str) -> str:
    """Channel of the replies of one worker, by Celery's name of it."""
    return f"{CONTROL}:reply:{worker}"


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
#: hash target -> Override; a target is a pair, or `*/<scorer>` for all clusters.
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

#: hash `<scorer>:<upper bound>` -> number of ticks of that scorer with this lag, as in BEAT_STATS; by beat.
BEAT_LAGS = "dsf:schedule:lags"

# --- runs and results (beat opens runs, the results worker closes them) --------------------------------------

#: zset `<pair>/<run id>` -> deadline (unix seconds): sent runs without a result.
OPEN_RUNS = "dsf:runs:open"
#: zset `<pair>/<run id>` -> unix time at which the run was declared lost; kept an hour to recognise late results.
LOST_RUNS = "dsf:runs:lost"
_PAIR_PREFIX = "dsf:pair:"
_HISTORY_PREFIX = "dsf:history:"
#: set of pairs that may have data; the sweeper of the results worker compares it with the schedule, because no user may
#: list keys.
KNOWN_PAIRS = "dsf:pairs"
#: hash reason -> number of refused results.
REJECTED = "dsf:rejected"
#: hash cluster -> number of invalid entries in its mailbox.
REJECTED_MAIL = "dsf:rejected:mail"

# --- read model (lua/model.lua: kept by ingest and the sweeper; beat, hub controller and users only mark) --------

#: Prefix of all its keys; `lua/model.lua` builds their names from it.
MODEL_PREFIX = "dsf:model:"
#: string, version of the model's content; if missing or different, the sweeper recounts all pairs.
MODEL_VERSION = MODEL_PREFIX + "version"
#: string, token of the results worker that processes marked pairs; expires.
MODEL_KEEPER = MODEL_PREFIX + "keeper"
#: hash pair, or `*/<scorer>` for all of its pairs -> number of marks: the sweeper re-evaluates it.
MODEL_MARKED = MODEL_PREFIX + "marked"
#: set of scorers with pairs in the model.
MODEL_SCORERS = MODEL_PREFIX + "scorers"
#: zset cluster -> severity by the states of its pairs; only clusters with problems.
MODEL_CLUSTERS = MODEL_PREFIX + "clusters"
#: zset pair -> number of its newest change, counted by MODEL_SEQUENCE; includes pairs removed within the last hour.
MODEL_CHANGED = MODEL_PREFIX + "changed"
#: string, number of changes so far.
MODEL_SEQUENCE = MODEL_PREFIX + "sequence"
#: zset pair -> unix time at which it was removed.
MODEL_GONE = MODEL_PREFIX + "gone"
#: hash pair -> its group, `<state>:<stage>:<reason>`; only of pairs in a group.
MODEL_GROUPED = MODEL_PREFIX + "grouped"

# --- score writing (results worker) --------------------------------------------------------------------------

#: zset pair -> unix time at which its AddOnPlacementScore must be checked (changed, renewal due, expired).
WRITES = "dsf:writes"
#: hash pair -> WrittenRecord: the current content of the backend.
WRITTEN = "dsf:written"
#: zset pair -> unix time until which one writer has exclusive use of it (or waits after a failure).
WRITE_LEASES = "dsf:writes:leases"
#: string, expires: a writer has compared the schedule with the written objects; the others need not.
WRITE_AUDIT = "dsf:writes:audit"
#: string, state of the write-rate limiter (theoretical arrival time, unix seconds).
WRITE_BUDGET = "dsf:writes:budget"
#: hash, counters of the writer: `written`, `coalesced`, `unchanged`, `failed`, `deleted`; and `validity_factor`, which
#: extends every validity so that renewals leave room for changes (1 unless the fleet is large).
WRITE_STATS = "dsf:writes:stats"

# --- news for the hub controller -----------------------------------------------------------------------------

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
#: hash namespace -> the optimiser's newest proposal there beside the plan in force (`dsf.fleet.plans`).
PLANS = "dsf:plans"

# --- page ----------------------------------------------------------------------------------------------------

_WEB_SESSION_PREFIX = "dsf:web:session:"
_WEB_OUTCOME_PREFIX = "dsf:web:outcome:"


def web_session(digest: str) -> str:
    """String with JSON of a login session of the page, by the SHA-256 of the cookie; expires. It has no token."""
    return _WEB_SESSION_PREFIX + digest


def web_outcome(ident: str) -> str:
    """String with JSON of the runs requested on the page; expires."""
    return _WEB_OUTCOME_PREFIX + ident


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAME_MAX = 253


def is_name(text: str) -> bool:
    """Whether this can be the name of a cluster or scorer (DNS-1123 subdomain)."""
    return len(text) <= _NAME_MAX and _NAME.fullmatch(text) is not None


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
    """Hash with the data of one pair: score, state and counters. Fields are in `dsf.store.pairs`."""
    return f"{_PAIR_PREFIX}{cluster}/{scorer}"


def history_key(cluster: str, scorer: str) -> str:
    """List of the newest cycles of one pair, newest first."""
    return f"{_HISTORY_PREFIX}{cluster}/{scorer}"


def model_states(scorer: str) -> str:
    """zset cluster -> rank of the pair's state * MODEL_SPAN + a time: worst first."""
    return f"{MODEL_PREFIX}states:{scorer}"


def model_ages(scorer: str) -> str:
    """zset cluster -> unix time of the pair's newest successful cycle."""
    return f"{MODEL_PREFIX}ages:{scorer}"


def model_values(scorer: str) -> str:
    """zset cluster -> the number that represents its score; only while the pair is ok."""
    return f"{MODEL_PREFIX}values:{scorer}"


def model_groups(scorer: str) -> str:
    """hash group -> JSON of its newest text: cluster, run, at, message."""
    return f"{MODEL_PREFIX}groups:{scorer}"


def model_group(scorer: str, group: str) -> str:
    """zset cluster -> place as in `model_states`, of the pairs of one group (`<state>:<stage>:<reason>`)."""
    return f"{MODEL_PREFIX}group:{scorer}/{group}"
