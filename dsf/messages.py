"""The messages between hub and agents: run ids, signing keys, and the signed result.

A tick is a Celery message with `(scorer, run id, deadline)` and nothing else. A result is a frame of bytes: one line
`DSF<version> <signature> <key id> <cluster>`, then the payload, which is JSON. The agent's HMAC key signs the bytes of
version, key id, cluster and payload, so that the hub verifies the sender before it parses the payload.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

from dsf.api.scoringresponse import MAX_RESULTS
from dsf.api.types import USED_LABELS
from dsf.boundedjson import Bounds, check
from dsf.errors import JsonBoundsError, MessageRejectedError, SchemaMismatchError, SettingsError
from dsf.keys import SCHEMA_VERSION, is_name, is_supported
from dsf.text import clean, replace_unprintable

Outcome = Literal["ok", "empty", "partial", "error", "skipped"]
Stage = Literal["", "fetch", "score", "publish"]
#: Stages that do work, in the order of execution.
STAGES = ("fetch", "score", "publish")

CYCLE_TASK = "dsf.cycle"
FETCH_TASK = "dsf.fetch"
SCORE_TASK = "dsf.score"
PUBLISH_TASK = "dsf.publish"
#: Tasks of the stages of a cycle, in the order of execution.
STAGE_TASKS = (FETCH_TASK, SCORE_TASK, PUBLISH_TASK)
INGEST_TASK = "dsf.ingest"

_RUN_ID_PATTERN = re.compile(r"[0-9]{13}-[0-9a-f]{8}")
_REASON_PATTERN = re.compile(r"([a-z0-9_]{1,64})?")
#: Maximum number of characters in the message of a result.
MESSAGE_LIMIT = 1024
#: Maximum count in a result. No cycle reaches it, and a float represents it exactly.
LARGEST_COUNT = 2**53
#: Maximum size of a payload in bytes. Agents do not send larger payloads, and the hub rejects them without parsing.
MAX_RESULT_BYTES = 2 * 1024 * 1024
#: Maximum sizes in bytes of the line before the payload, and of a frame.
MAX_HEADER_BYTES = 512
MAX_FRAME_BYTES = MAX_HEADER_BYTES + MAX_RESULT_BYTES
#: Number of bytes at the start of a frame that identify it, because they contain the signature.
FRAME_MARK = 80
#: Maximum number of labels per result. Agents of a later version may send more labels than this version uses.
_MAX_LABELS = 16
#: Maximum number of entries in the maps of a result (`refused`, `timings`, `counts`), and of characters in their names.
_MAX_ENTRIES, _MAX_ENTRY_NAME = 64, 128
_PAYLOAD_BOUNDS = Bounds(MAX_RESULT_BYTES, MAX_RESULTS * (len(USED_LABELS) + 3) + 2_000, max_depth=8)
_HEADER_PATTERN = re.compile(rb"DSF(-?[0-9]{1,9}) ([0-9a-f]{64}) ([1-9][0-9]{0,17}) ([a-z0-9][-a-z0-9.]{0,252})\n")
#: Maximum id of a signing key, with fewer digits than a header allows, so that an id can always be incremented.
MAX_KEY_ID = 10**15
#: Maximum number of characters in a software version.
_MAX_VERSION = 64


def make_run_id(at: float | None = None) -> str:
    """Return a run id: unix milliseconds of the scheduled time `at` (unix seconds, by default now), and 32 random bits.

    Run ids sort by scheduled time.
    """
    milliseconds = int((time.time() if at is None else at) * 1000)
    return f"{milliseconds:013d}-{secrets.token_hex(4)}"


def is_run_id(text: object) -> bool:
    """True if `text` is a valid run id. Callers check run ids from Redis, which are untrusted and may name a file."""
    return isinstance(text, str) and _RUN_ID_PATTERN.fullmatch(text) is not None


def run_time(run_id: str) -> float:
    """Return the scheduled time of the run in unix seconds."""
    return int(run_id[:13]) / 1000


def make_latest_run_id(at: float) -> str:
    """Return a text that sorts after all run ids of times up to `at` (unix seconds), and before all later run ids."""
    return f"{int(at * 1000):013d}~"


class SigningKey(BaseModel):
    """An agent's HMAC key. Each rotation increments `id`, which tells the hub which key signed a result."""

    model_config = ConfigDict(frozen=True)

    id: int = Field(ge=1, le=MAX_KEY_ID)
    secret: bytes = Field(repr=False, min_length=16)

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Return the key in a text `<id>:<hex>`.

        Raises SettingsError for other texts, whose message does not quote the text, because it may be a secret.
        """
        key_id, _, secret = text.strip().partition(":")
        try:
            return cls(id=int(key_id), secret=bytes.fromhex(secret))
        except ValueError:
            raise SettingsError(
                "DSF_SIGNING_KEY_FILE: not a signing key; expected <number>:<at least 32 hex digits> as the hub "
                "delivers it"
            ) from None

    def dump(self) -> str:
        """Return the text that `parse` reads, which is secret: only the agent's Secret may contain it."""
        return f"{self.id}:{self.secret.hex()}"


@functools.lru_cache(8192)
def derive_key(master_secret: bytes, cluster: str, key_id: int) -> SigningKey:
    """Return the key of a cluster, derived from the master secret (HKDF-like, one block).

    Derived keys need no storage on the hub, and the key of one agent reveals nothing about the key of another.
    """
    digest = hmac.digest(master_secret, f"dsf-agent-key/{key_id}/{cluster}".encode(), "sha256")
    return SigningKey(id=key_id, secret=digest)


def _make_validator(is_valid: Callable[[str], object], expectation: str) -> AfterValidator:
    """Return a validator that rejects texts for which `is_valid` is false, as "not <expectation>"."""

    def validate(text: str) -> str:
        if not is_valid(text):
            raise ValueError(f"not {expectation}")
        return text

    return AfterValidator(validate)


def _make_cleaner(max_characters: int) -> AfterValidator:
    return AfterValidator(lambda text: clean(text, max_characters))


_Name = Annotated[str, _make_validator(is_name, "a DNS-1123 name")]
_Label = Annotated[str, AfterValidator(replace_unprintable)]
_Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
_FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]
_EntryName = Annotated[str, Field(max_length=_MAX_ENTRY_NAME)]


class _Payload(BaseModel):
    """The signed JSON of a result.

    Lists and maps have a maximum length, and validation ends at the first invalid element, because a list of all errors
    would take far more memory than the text.
    """

    model_config = ConfigDict(extra="ignore")

    scorer: _Name
    run: Annotated[str, _make_validator(is_run_id, "a run id")]
    at: _FiniteNumber
    outcome: Outcome
    stage: Stage = ""
    reason: Annotated[str, _make_validator(_REASON_PATTERN.fullmatch, "a snake_case word")] = ""
    message: Annotated[str, _make_cleaner(MESSAGE_LIMIT)] = ""
    #: [labels, score] of each accepted result.
    results: Annotated[
        list[tuple[Annotated[dict[str, _Label], Field(max_length=_MAX_LABELS)], _FiniteNumber]],
        FailFast(),
        Field(max_length=MAX_RESULTS),
    ] = []
    #: Reason -> number of rejected results.
    refused: Annotated[dict[_EntryName, _Count], Field(max_length=_MAX_ENTRIES)] = {}
    timings: Annotated[
        dict[_EntryName, Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(max_length=_MAX_ENTRIES)
    ] = {}
    counts: Annotated[dict[_EntryName, Annotated[int, Field(ge=0)]], Field(max_length=_MAX_ENTRIES)] = {}
    #: Host name of the agent.
    agent: Annotated[str, _make_cleaner(255)] = ""
    #: Version of the agent's software.
    version: Annotated[str, _make_cleaner(_MAX_VERSION)] = ""


class Result(_Payload):
    """Result that the publish stage sends at the end of a cycle.

    Times are unix seconds by the agent's clock, and durations are seconds.
    """

    #: Schema version. Like the cluster, it is in the first line of the frame.
    v: int = SCHEMA_VERSION
    cluster: _Name


def sign(result: Result, key: SigningKey) -> bytes:
    """Return the frame of a result, signed with this key."""
    text = json.dumps(
        result.model_dump(exclude_defaults=True, exclude={"v", "cluster"}), separators=(",", ":"), ensure_ascii=False
    )
    # Also encode lone surrogates: the hub's validation rejects labels that contain them.
    return make_frame(text.encode("utf-8", "surrogatepass"), key, result.cluster, result.v)


def make_frame(payload: bytes, key: SigningKey, cluster: str, version: int = SCHEMA_VERSION) -> bytes:
    """Return the frame of a payload, signed with this key. The payload is not validated."""
    signature = _compute_signature(key, version, cluster, payload)
    return f"DSF{version} {signature} {key.id} {cluster}\n".encode() + payload


def _compute_signature(key: SigningKey, version: int, cluster: str, payload: bytes) -> str:
    mac = hmac.new(key.secret, f"DSF{version} {key.id} {cluster}\n".encode(), hashlib.sha256)
    mac.update(payload)
    return mac.hexdigest()


class _Header(NamedTuple):
    version: int
    signature: str
    key_id: int
    cluster: str
    #: Length of the header in bytes.
    size: int


def _parse_header(frame: bytes) -> _Header | None:
    match = _HEADER_PATTERN.match(frame, 0, MAX_HEADER_BYTES)
    if match is None:
        return None
    version, signature, key_id, cluster = match.groups()
    return _Header(int(version), signature.decode(), int(key_id), cluster.decode(), match.end())


def parse_claimed_cluster(frame: bytes) -> str:
    """Return the cluster that a frame names; empty for an invalid frame. Does not verify the signature."""
    header = _parse_header(frame)
    return header.cluster if header is not None else ""


class Verified(NamedTuple):
    """A result with a valid signature."""

    #: Id of the key that signed the result.
    key_id: int
    result: Result


def verify(frame: bytes, master_secret: bytes) -> Verified:
    """Verify the signature of a frame, then parse its payload.

    The signature alone proves the sender, so no part of the payload is parsed before the signature is verified. Raises
    MessageRejectedError with reason `malformed` or `bad_signature`. Raises SchemaMismatchError (`malformed`) for a
    validly signed result of an unsupported version.
    """
    header = _parse_header(frame)
    if header is None or not is_name(header.cluster):
        raise MessageRejectedError("malformed", "no signed result: its first line is not that of an agent")
    version, signature, key_id, cluster, size = header
    payload = frame[size:]
    if len(payload) > MAX_RESULT_BYTES:
        raise MessageRejectedError("malformed", f"result of {len(payload)} bytes, the limit is {MAX_RESULT_BYTES}")
    expected_signature = _compute_signature(derive_key(master_secret, cluster, key_id), version, cluster, payload)
    if not hmac.compare_digest(expected_signature, signature):
        if not is_supported(version):
            # Report the version, because frames of another version may be signed differently.
            raise MessageRejectedError("malformed", f"schema version {version} is not supported")
        raise MessageRejectedError("bad_signature", f"signature does not match the key {key_id} of cluster {cluster}")
    try:
        check(payload, _PAYLOAD_BOUNDS)
        if not is_supported(version):
            raise SchemaMismatchError(cluster, key_id, version, _read_software_version(payload))
        parsed_payload = _Payload.model_validate_json(payload)
    except ValidationError as error:
        raise MessageRejectedError(
            "malformed", f"result of cluster {cluster}: {_describe_first_error(error)}"
        ) from None
    except JsonBoundsError as error:
        raise MessageRejectedError("malformed", f"result of cluster {cluster}: {error}") from None
    return Verified(key_id, Result.model_construct(v=version, cluster=cluster, **parsed_payload.__dict__))


def _describe_first_error(error: ValidationError) -> str:
    """Return the path and the message of the first error, or the number of errors if there are many."""
    if error.error_count() > _MAX_ENTRIES:
        # Do not list hundreds of thousands of errors, which would take hundreds of megabytes as objects.
        return f"{error.error_count()} values are wrong"
    first_error = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return clean(f"{'.'.join(str(part) for part in first_error['loc'])}: {first_error['msg']}", 500)


class _Software(BaseModel):
    """The version of the agent's software in a payload of any schema version, which need not be a string."""

    version: Any = ""


def _read_software_version(payload: bytes) -> str:
    try:
        version = _Software.model_validate_json(payload).version
    except ValidationError:
        return ""
    return clean(version, _MAX_VERSION) if isinstance(version, str) else ""
