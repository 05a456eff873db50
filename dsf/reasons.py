"""Why something has no score: the words in results, books and metric labels, each with what docs/operations.md says.

A new reason is one line here, and a row that `tests/unit/docs/test_reasons.py` prints.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """Base of the reasons: what each means, and what a person does about it."""

    meaning: str
    advice: str
    #: Of a failure the stage in which it occurs.
    stage: str

    def __new__(cls, value: str, meaning: str, advice: str, stage: str = "any") -> Self:
        """As an enum's member: the text, with the rest as attributes."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.advice, member.stage = meaning, advice, stage
        return member


class FailureReason(Reason):
    """Why a cycle ended with the outcome `error`."""

    BAD_QUERY = "bad_query", "the source refused the query; the message is its own text", "mend the query", "fetch"
    CONNECTION_FAILED = (
        "connection_failed",
        "no connection, or it broke; of publish: Redis is away",
        "is the address right, is the service up",
    )
    TIMEOUT = "timeout", "no whole answer in time", "is `timeoutSeconds` too short, is the service too slow"
    DEADLINE = "deadline", "no time was left before the next cycle", "a longer interval, or a faster service"
    ADDRESS_REFUSED = (
        "address_refused",
        "the host stands for a link-local or metadata address, which is not asked",
        "another address; `DSF_ALLOW_LINK_LOCAL=true` where it is meant",
    )
    UNAUTHORIZED = "unauthorized", "401 or 403", "is the token in the Secret right"
    SECRET_MISSING = (
        "secret_missing",
        "the Secret or its key is not on the managed cluster",
        "create it in the agent's namespace",
    )
    SECRET_INVALID = (
        "secret_invalid",
        "what the Secret or ConfigMap holds cannot be used: an expired certificate, a key of another one, a line break",
        "put the right thing there; it counts at once",
    )
    AUTH_FAILED = (
        "auth_failed",
        "the server that gives tokens (OAuth2, a cloud, the cluster's own) gave none; the message has its words",
        "look at that server, and at client and scopes",
    )
    AUTH_UNSUPPORTED = (
        "auth_unsupported",
        "the agent does not know this method of authentication",
        "upgrade it to the version of the hub",
    )
    SECRET_REFUSED = (
        "secret_refused",
        "the Secret is not released for the server that the scorer names, or is the agent's own; nothing was sent",
        "[whom a token may be sent to](security.md#whom-a-token-may-be-sent-to)",
    )
    REDIRECT = "redirect", "the service answered with a redirect, which is not followed", "give the final URL"
    HTTP_ERROR = (
        "http_error",
        "another status; the message has it, with the answer's first bytes",
        "look into the service's log",
    )
    TOO_LARGE = "too_large", "more bytes than the limit", "a coarser query or dimension"
    TOO_MANY_RESULTS = "too_many_results", "more results than the limit", "a coarser query or dimension", "score"
    TRUNCATED = "truncated", "half an answer", "is the service or a proxy before it restarted"
    BAD_ANSWER = (
        "bad_answer",
        "not what HTTP or the contract says",
        "run [`dsf explain`](troubleshooting.md#one-cycle-on-kubernetes)",
    )
    UNKNOWN_SCORER = (
        "unknown_scorer",
        "the agent does not have this scorer's summary, or it was removed meanwhile",
        "is the ManifestWork applied",
    )
    UNSUPPORTED_SOURCE = (
        "unsupported_source",
        "the agent does not know this source, or it is not switched on",
        "[sources.md](sources.md); an older agent: upgrade it",
        "fetch",
    )
    PLUGIN_FAILED = (
        "plugin_failed",
        "the plug-in that has the source's type cannot be loaded, or made a mistake; the message has its words",
        "mend or replace the plug-in in the agent's image ([sources.md](sources.md#plug-ins))",
        "fetch",
    )
    BAD_OPTIONS = (
        "bad_options",
        "the plug-in that has the source's type refused `options`; the message says which",
        "mend `spec.source.options`; the plug-in's own documentation says what it takes",
        "fetch",
    )
    UNKNOWN_KIND = (
        "unknown_kind",
        "the cluster has no such kind of object",
        "is its CRD there, are `apiVersion` and `kind` right",
        "fetch",
    )
    SPOOL_FAILED = (
        "spool_failed",
        "the agent could not keep the data between two steps",
        "is its disk full",
        "fetch or score",
    )
    CLOCK_SKEW = "clock_skew", "the agent's clock is more than 30 s off", "mend the clock of that node", "publish"
    STALE = (
        "stale",
        "the result came after its score's validity was over",
        "do the results workers keep up",
        "publish",
    )
    RESULTS_BEHIND = (
        "results_behind",
        "the cluster's mailbox stayed full until the next cycle",
        "do the results workers run and keep up",
        "publish",
    )
    SUPERSEDED = (
        "superseded",
        "the scorer had a newer result before this one could be sent",
        "do the results workers run and keep up",
        "publish",
    )
    NO_SIGNING_KEY = (
        "no_signing_key",
        "the agent has no key to sign with",
        "is the Secret with its credentials delivered",
        "publish",
    )
    INTERNAL_ERROR = "internal_error", "a mistake in the agent", "its log has the details"


class SkipReason(Reason):
    """Why a tick was not sent, or its cycle not run."""

    OVERLAP = (
        "overlap",
        "the previous cycle of this scorer still ran on this cluster",
        "a longer interval or a faster scorer",
    )
    QUEUE_FULL = "queue_full", "the cluster's queue is full: its agent is away or too slow", "look at the agent"
    RESULTS_BEHIND = (
        "results_behind",
        "results of the cluster fill its mailbox: no results worker takes them in",
        "look at the results workers",
    )
    SUPERSEDED = (
        "superseded",
        "the scorer had a newer result before the hub took this one in",
        "do the results workers keep up",
    )
    RATE_LIMIT = (
        "rate_limit",
        "the scorer's fleet-wide `rateLimit` is used up",
        "a higher limit or a longer interval ([more](troubleshooting.md#ticks-are-not-sent))",
    )
    PAUSED = "paused", "suspended in the DynamicScorer, or paused by `dsf schedule pause`", "`dsf schedule resume`"
    INACTIVE = (
        "inactive",
        "its scoring API fails its health checks, or its configuration cannot be used; `dsf status` says which and why",
        "mend that: it is not paused, so `resume` does nothing",
    )
    EXPIRED = (
        "expired",
        "its interval ended before it began: the agent took it too late (three in a row: a failure), or beat was away",
        "look at the agent's load and clock; at beat",
    )


class RejectionReason(Reason):
    """Why the hub refuses a message that claims to be a result: `dynamic_scoring_results_rejected_total`."""

    MALFORMED = "malformed", "no result, or of a schema that this hub does not know", "upgrade that agent"
    BAD_SIGNATURE = (
        "bad_signature",
        "signed with another or a withdrawn key, or for another cluster",
        "does it go on after a rotation: who sends it",
    )
    UNKNOWN_CLUSTER = "unknown_cluster", "of a cluster that the hub has not accepted", "was it removed a moment ago"
    REPLAYED = "replayed", "a result that was taken in before", "none while it is rare: a message came twice"
    STALE = (
        "stale",
        "too old, of a clock that is too far off, or of a scorer that runs no more",
        "the agent's clock; do the results workers keep up",
    )


class RefusalReason(Reason):
    """Why a single result of a good answer is left out: `dynamic_scoring_results_refused_total`."""

    NULL_SCORE = "null_score", "`score` is null", "leave such results out"
    MISSING_SCORE = "missing_score", "there is no `score`", "give each result one"
    NAN = "nan", "`score` is NaN", "leave such results out"
    INFINITE = "infinite", "`score` is infinite", "bound it"
    BAD_SCORE = "bad_score", "`score` is no number", "give a number, not a text"
    BAD_LABELS = "bad_labels", "`metric` is no object of texts", "give labels as texts"
    EMPTY_DIMENSION = (
        "empty_dimension",
        "`scoreDimensionFormat` makes an empty name of its labels",
        "name a label that each result has",
    )
    DUPLICATE_DIMENSION = (
        "duplicate_dimension",
        "a later result has the same item name and counts; the cycle stays `ok`",
        "a finer `scoreDimensionFormat`",
    )
    OTHER = "other", "a reason that this hub does not know: the agent is newer", "upgrade the hub"
