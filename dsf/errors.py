"""Every error that this project raises.

    DsfError
    +-- SettingsError            a setting is missing or wrong
    +-- ManifestError            a manifest of a user is invalid
    +-- ResolutionError          a DynamicScorer and its /config are not sufficient to run it
    +-- ExpressionError          the expression of a scorer is invalid
    +-- RemoteConfigError        a scoring API's /config response cannot be used
    +-- ScoringResponseError     a scoring API's response cannot be used
    +-- ScoreObjectTooLargeError an AddOnPlacementScore would not fit into the API server
    +-- CycleError               a cycle ended without a score, with stage and reason
    +-- HttpError                one HTTP exchange failed, with a reason and whether a retry may help
    |   +-- SourceError          a plug-in cannot use the response of its source
    +-- MessageRejectedError     a result message is refused by the hub
    |   +-- SchemaMismatchError  its sender is too old or too new
    +-- BackendError             the hub's store of objects (folder or Kubernetes) failed
    |   +-- ObjectNotFoundError
    |   +-- ObjectConflictError
    |   +-- ForeignObjectError   an object of that name belongs to somebody else
    |   +-- ContestedObjectError another program changes the object again and again
    +-- RelayError               the hub's Redis cannot be reached through the hub's API server
    +-- UnknownNameError         a command or a message names an object that does not exist
    |   +-- UnknownScorerError
    |   +-- UnknownClusterError
    +-- ApiError                 a server of the JSON API gives an unexpected response
    +-- QueryError               a query of the fleet is invalid
    +-- CursorError              a cursor of a list is invalid
    +-- RoutingError             a task was called without a queue, or is none that messages call
    +-- ScheduleError            Celery's schedule cannot be changed in this way
    +-- QueueFullError           a cluster's queue is full: its agent must be down
    +-- ContextError             several demos run and none is selected
    +-- ToolError                a program the demo or a test needs cannot be found or started
    +-- AccessError              a caller is not authenticated or lacks a right

Messages are read by operators: they say what is wrong, where, and what to do. They never hold a token or a password.
"""

from __future__ import annotations


class DsfError(Exception):
    """Base of all errors that this project raises."""


class SettingsError(DsfError):
    """A setting is missing or wrong. The message names the environment variable and the allowed values."""


class ManifestError(DsfError):
    """A manifest is invalid. The message names file, line or field, and the allowed values."""


class ResolutionError(DsfError):
    """A scorer cannot run anywhere because a needed value is missing or unsafe.

    `reason` is the CamelCase reason of the `ConfigSynced` condition.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ExpressionError(DsfError):
    """The expression of a scorer is invalid. The message has the position and the cause."""


class RemoteConfigError(DsfError):
    """A scoring API's /config response violates the contract. The last valid one stays in force."""


class ScoringResponseError(DsfError):
    """A scoring API's response is not `{"results": [...]}`; `reason` is the metric label of the failure."""

    def __init__(self, message: str, reason: str = "bad_answer") -> None:
        super().__init__(message)
        self.reason = reason


class BusyError(DsfError):
    """Too many costly requests run or wait at a time. The message says which ones; a retry may succeed."""


class ScoreObjectTooLargeError(DsfError):
    """An AddOnPlacementScore would exceed the API server's size limit. Use a coarser dimension format."""


class CycleError(DsfError):
    """A cycle ended without a score.

    `stage` is fetch, score or publish; `reason` a snake_case word fit for a metric label; the message is for users.
    `retryable` is True if a retry of the stage may succeed, `retry_after` the seconds to wait that the server
    requested.
    """

    def __init__(
        self,
        stage: str,
        reason: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        # All three go to Exception so that the error survives pickling by Celery.
        super().__init__(stage, reason, message)
        self.stage = stage
        self.reason = reason
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.stage} failed ({self.reason}): {self.message}"


class HttpError(DsfError):
    """One HTTP exchange failed.

    `reason` is a snake_case word fit for a metric label, `status` the HTTP status if there was a response, `retryable`
    whether a retry may succeed, `retry_after` the seconds to wait that the server requested.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after


class SourceError(HttpError):
    """A plug-in cannot use its source's response, or with `is_query` the scorer's query."""

    def __init__(self, message: str, *, is_query: bool = False) -> None:
        super().__init__("bad_query" if is_query else "bad_answer", message)


class MessageRejectedError(DsfError):
    """The hub refuses a result; `reason` is a label value of `dynamic_scoring_results_rejected_total`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SchemaMismatchError(MessageRejectedError):
    """A validly signed result of an agent with an unsupported message version.

    `cluster` and `key_id` identify the sender, `schema_version` and `version` its versions.
    """

    def __init__(self, cluster: str, key_id: int, schema_version: int, version: str) -> None:
        super().__init__("malformed", f"schema version {schema_version} of the agent's messages is not supported")
        self.cluster = cluster
        self.key_id = key_id
        self.schema_version = schema_version
        self.version = version


class JsonBoundsError(DsfError, ValueError):
    """JSON from outside is larger, deeper or has more values than its reader accepts; it was not parsed."""


class ProtobufBoundsError(DsfError, ValueError):
    """A protobuf message from outside is invalid or has more parts than its reader accepts; it was not parsed."""


class BackendError(DsfError):
    """The hub's store of objects could not be read or written; the work is tried again later."""

    #: Whether the request was refused: a right is missing, or the object is invalid. An operator has to act.
    is_refusal: bool = False
    #: Whether the server is overloaded: other requests would get the same response.
    is_busy: bool = False
    #: True if the server could not be reached or sent no response.
    is_unreachable: bool = False
    #: Seconds that the server asked to wait; None if it did not.
    retry_after: float | None = None


class ObjectNotFoundError(BackendError):
    """The object does not exist (any more)."""


class ObjectConflictError(BackendError):
    """The object changed since it was read; read it again and repeat."""


class ForeignObjectError(BackendError):
    """An object of that name exists and the framework did not create it: it is neither changed nor deleted."""

    is_refusal = True


class ContestedObjectError(BackendError):
    """Another program changes an object again and again; it is written again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RelayError(DsfError):
    """The hub's Redis cannot be reached through the hub's API server. The message says why and what to do."""


class UnknownNameError(DsfError):
    """There is no object of this name. The message names the command that lists them."""


class UnknownScorerError(UnknownNameError):
    """No scorer of this name is registered. `dsf status` lists the registered ones."""


class UnknownClusterError(UnknownNameError):
    """No cluster of this name is registered. `dsf status` lists the registered ones."""


class CursorError(DsfError):
    """The cursor of a list is invalid."""


class ApiError(DsfError):
    """A server of the JSON API refuses a request or gives an unexpected response."""


class QueryError(DsfError):
    """A query of the fleet is invalid, such as one for an unknown state."""


class QueueFullError(DsfError):
    """A cluster's queue is full, so its agent must be down; nothing was sent."""


class ContextError(DsfError):
    """Several demos run and none is selected. The message names them."""


class OutputError(DsfError):
    """Standard output is closed, or its disk is full."""


class ToolError(DsfError):
    """A program that the demo or a test needs cannot be found, fetched or started; the message says how to get it."""


class AccessError(DsfError):
    """A caller is not authenticated (`status` 401) or lacks a right (403)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class RoutingError(DsfError):
    """A task was called without a queue or for a later time, or is none that messages call, or its result was requested
    from Celery. The message says how.
    """


class ScheduleError(DsfError):
    """Celery's schedule cannot be changed in this way. The message names the command that can."""
