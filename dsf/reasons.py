"""Reasons of failures, skips, rejections and refusals, with the texts of docs/reasons.md.

For a new reason, add it here and run `scripts/reference-pages`, which writes the page.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Self


class DescribedReason(StrEnum):
    """Base of the reasons: meaning and advice."""

    meaning: str
    advice: str
    #: Stage of a cycle in which a failure occurs, or `any`.
    stage: str

    def __new__(cls, value: str, meaning: str, advice: str, stage: str = "any") -> Self:
        """Return a member whose value is the code and whose attributes are the other texts."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.advice, member.stage = meaning, advice, stage
        return member


class FailureReason(DescribedReason):
    """Why a cycle ended with the outcome `error`."""

    BAD_QUERY = "bad_query", "the source refused the query; the message says why", "correct the query", "fetch"
    CONNECTION_FAILED = (
        "connection_failed",
        "the connection failed or broke; in publish: Redis is unreachable",
        "check the address, and that the service is up",
    )
    TIMEOUT = "timeout", "no complete response in time", "a longer `timeoutSeconds`, or a faster service"
    DEADLINE = "deadline", "the next cycle was due before this one finished", "a longer interval, or a faster service"
    ADDRESS_REFUSED = (
        "address_refused",
        "the host resolves to a link-local or metadata address",
        "another address; `DSF_ALLOW_LINK_LOCAL=true` if it is intended",
    )
    UNAUTHORIZED = "unauthorized", "the server answered 401 or 403", "check the token in the Secret"
    SECRET_MISSING = (
        "secret_missing",
        "the Secret or its key does not exist on the managed cluster",
        "create it in the agent's namespace",
    )
    SECRET_INVALID = (
        "secret_invalid",
        "the content of the Secret or ConfigMap is unusable: an expired certificate, a wrong key, a line break",
        "correct it; the change takes effect immediately",
    )
    AUTH_FAILED = (
        "auth_failed",
        "the token server (OAuth2, a cloud, the cluster's own) issued no token; the message quotes it",
        "check that server, the client and the scopes",
    )
    AUTH_UNSUPPORTED = (
        "auth_unsupported",
        "the agent does not support this authentication method",
        "upgrade it to the hub's version",
    )
    SECRET_REFUSED = (
        "secret_refused",
        "the Secret is not released for the scorer's server, or is the agent's own; nothing was sent",
        "[whom a token may be sent to](security.md#whom-a-token-may-be-sent-to)",
    )
    REDIRECT = "redirect", "the service answered with a redirect, which is not followed", "configure the final URL"
    HTTP_ERROR = (
        "http_error",
        "another status; the message has it and the first bytes of the response",
        "check the service's log",
    )
    TOO_LARGE = "too_large", "the data exceeds the limit in bytes", "a coarser query or dimension"
    TOO_MANY_RESULTS = "too_many_results", "more results than the limit", "a coarser query or dimension", "score"
    TRUNCATED = "truncated", "the response was cut off", "check whether the service or its proxy restarted"
    BAD_ANSWER = (
        "bad_answer",
        "the response violates HTTP or the scoring API's contract",
        "run [`dsf explain`](troubleshooting.md#one-cycle-on-kubernetes)",
    )
    UNKNOWN_SCORER = (
        "unknown_scorer",
        "the agent has no summary of this scorer, or it was removed",
        "check that the ManifestWork is applied",
    )
    UNSUPPORTED_SOURCE = (
        "unsupported_source",
        "the agent does not support this source, or it is not enabled",
        "[sources.md](sources.md); upgrade an older agent",
        "fetch",
    )
    PLUGIN_FAILED = (
        "plugin_failed",
        "the plug-in for this source type failed to load or raised an error; the message has the details",
        "fix or replace the plug-in in the agent's image ([sources.md](sources.md#plug-ins))",
        "fetch",
    )
    BAD_OPTIONS = (
        "bad_options",
        "the plug-in for this source type refused `options`; the message says which",
        "correct `spec.source.options`; see the plug-in's documentation",
        "fetch",
    )
    UNKNOWN_KIND = (
        "unknown_kind",
        "the cluster does not have this kind of object",
        "check its CRD, `apiVersion` and `kind`",
        "fetch",
    )
    BAD_EXPRESSION = (
        "bad_expression",
        "the agent cannot compile the expression, as it is older than the hub",
        "upgrade it to the hub's version",
        "score",
    )
    EXPRESSION_COSTLY = (
        "expression_costly",
        "the expression takes more steps for all series of a cycle than an agent spends on one scorer",
        "select fewer series, ask for a shorter range, or leave out a macro such as `map()`",
        "score",
    )
    MISSING_INPUT = (
        "missing_input",
        "the agent had no score of an input of the expression since it started, and the input has no `default`",
        "see why that scorer has no valid score (`dsf status`), or set `default` for it",
        "score",
    )
    SPOOL_FAILED = (
        "spool_failed",
        "the agent could not store the data between two stages",
        "check its disk space",
        "fetch",
    )
    CLOCK_SKEW = "clock_skew", "the agent's clock is more than 30 s off", "correct the node's clock", "publish"
    STALE = (
        "stale",
        "the result arrived after its validity had ended",
        "check that the service results keeps up",
        "publish",
    )
    RESULTS_BEHIND = (
        "results_behind",
        "the cluster's mailbox, or the share of it that the scorer's namespace has, stayed full until the next cycle",
        "check that the service results runs and keeps up",
        "publish",
    )
    NO_SIGNING_KEY = (
        "no_signing_key",
        "the agent has no signing key",
        "check that the Secret with its credentials is delivered",
        "publish",
    )
    INTERNAL_ERROR = "internal_error", "an error in the agent", "see its log"


class SkipReason(DescribedReason):
    """Why a tick was not sent, or its cycle not run."""

    OVERLAP = (
        "overlap",
        "the scorer's previous cycle still ran on this cluster",
        "a longer interval or a faster scorer",
    )
    QUEUE_FULL = "queue_full", "the cluster's queue is full: its agent is down or too slow", "check the agent"
    RESULTS_BEHIND = (
        "results_behind",
        "the cluster's mailbox is full: the service results does not empty it",
        "check that the service results runs and keeps up",
    )
    RATE_LIMIT = (
        "rate_limit",
        "the scorer's fleet-wide `rateLimit` is exhausted",
        "a higher limit or a longer interval ([more](troubleshooting.md#ticks-are-not-sent))",
    )
    PAUSED = "paused", "suspended in the DynamicScorer, or paused by `dsf schedule pause`", "`dsf schedule resume`"
    INACTIVE = (
        "inactive",
        "the scoring API fails its health checks, its configuration is invalid, or a label is missing (`dsf status`)",
        "fix the cause; `resume` has no effect, as it is not paused",
    )
    EXPIRED = (
        "expired",
        "no time was left when it could start: the agent was too late (three in a row: a failure), or beat was down",
        "raise the agent's `concurrency` or CPU; check beat, and the clocks of both",
    )
    SHARE_FULL = (
        "share_full",
        "slow cycles of its namespace held the namespace's share of the agent's threads (three in a row: a failure)",
        "find the slow scorers of the namespace (`dsf status`), lower their `timeoutSeconds`, or raise `concurrency`",
    )


class RejectionReason(DescribedReason):
    """Why the hub rejects a message that claims to be a result: `dynamic_scoring_results_rejected_total`."""

    MALFORMED = "malformed", "not a result, or an unknown schema version", "upgrade the agent"
    BAD_SIGNATURE = (
        "bad_signature",
        "signed with a wrong or revoked key, or for another cluster",
        "if it persists after a rotation, find the sender",
    )
    UNKNOWN_CLUSTER = "unknown_cluster", "the hub has not accepted the cluster", "check whether it was just removed"
    REPLAYED = "replayed", "the result was already processed", "none if it is rare: a message was delivered twice"
    STALE = (
        "stale",
        "too old, from a clock that is too far off, or of a scorer that no longer runs",
        "check the agent's clock, and that the service results keeps up",
    )
    READER_DIED = (
        "reader_died",
        "the process of the service results died twice while reading it",
        "raise the memory of the hub, or of results; if it persists, revoke the cluster's credentials",
    )


class RefusalReason(DescribedReason):
    """Why a single result of a valid response is refused: `dynamic_scoring_results_refused_total`."""

    NULL_SCORE = "null_score", "`score` is null", "omit such results"
    MISSING_SCORE = "missing_score", "`score` is missing", "set it in each result"
    NAN = "nan", "`score` is NaN", "omit such results"
    INFINITE = "infinite", "`score` is infinite", "use a finite value"
    BAD_SCORE = "bad_score", "`score` is not a number", "send a number, not a string"
    BAD_LABELS = "bad_labels", "`metric` is not an object of strings", "send labels as strings"
    EXPRESSION_FAILED = (
        "expression_failed",
        "the expression has no value for the series; the message has an example with the cause",
        "handle it in the expression, such as by `has(labels.node) ? ... : null`",
    )
    MISSING_INPUT = (
        "missing_input",
        "an input of the expression has expired, or has no item with the labels of another one, and no `default`",
        "see the inputs on the page of the pair; set `default`, or let both scores have the same labels",
    )
    EMPTY_DIMENSION = (
        "empty_dimension",
        "`scoreDimensionFormat` gives an empty name, or separators alone, for its labels",
        "use a label that each result has",
    )
    DUPLICATE_DIMENSION = (
        "duplicate_dimension",
        "a later result with the same item name, or the same labels, replaces it; the cycle stays `ok`",
        "a finer `scoreDimensionFormat` with labels that tell the results apart, or one result for all of them",
    )
    OTHER = "other", "a reason unknown to this hub: the agent is newer", "upgrade the hub"


class EmptyReason(DescribedReason):
    """Why a cycle with a valid response has nothing to publish: the outcome `empty`."""

    NO_RESULTS = (
        "no_results",
        "the scoring API or the expression gave no results; the message says for how many series",
        "run `dsf explain`: no series, and the query finds nothing; else each of them is skipped",
    )


class WriteReason(DescribedReason):
    """Why the API server does not have a valid score of the scorer's own."""

    SCORES_NOT_WRITTEN = (
        "ScoresNotWritten",
        (
            "the API server does not have a valid AddOnPlacementScore although the score is valid; the message quotes "
            "the error"
        ),
        (
            "mend what the error names (a right, a webhook, a namespace that is being deleted, full storage); the "
            "scores are written as soon as that is possible"
        ),
    )
    SCORE_NAME_FOREIGN = (
        "ScoreNameForeign",
        "an AddOnPlacementScore of that name belongs to somebody else; it is neither changed nor deleted",
        "choose another score name, or delete that object",
    )
    WRITTEN_BY_UPSTREAM = (
        "WrittenByUpstream",
        "the original project's agent wrote the AddOnPlacementScore, and the scorer has no score of its own yet",
        "if it stays: see in `dsf status SCORER` why the scorer has no score; the object is deleted at its validUntil",
    )


def strip_markdown(text: str) -> str:
    """Return a text of a reason without Markdown: links by their text, no backticks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
