"""The messages between hub and agents: run ids, signing keys, and the signed result.

A tick is a Celery message with `(scorer, run id, deadline)` and nothing else. A result is a frame of bytes: one line
`DSF<version> <signature> <key id> <cluster>`, then the payload, which is JSON. The agent's own HMAC key signs version,
key id, cluster and payload as they are, so that the hub parses nothing of a sender that it does not know.
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
from dsf.text import cleaned, spaced

Outcome = Literal["ok", "empty", "partial", "error", "skipped"]
Stage = Literal["", "fetch", "score", "publish"]
#: The stages with work, in their order.
STAGES = ("fetch", "score", "publish")

CYCLE_TASK = "dsf.cycle"
FETCH_TASK = "dsf.fetch"
SCORE_TASK = "dsf.score"
PUBLISH_TASK = "dsf.publish"
#: The stages of a cycle, in their order.
STAGE_TASKS = (FETCH_TASK, SCORE_TASK, PUBLISH_TASK)
INGEST_TASK = "dsf.ingest"

_RUN_ID = re.compile(r"[0-9]{13}-[0-9a-f]{8}")
_REASON = re.compile(r"([a-z0-9_]{1,64})?")
#: Characters of a result's message.
MESSAGE_LIMIT = 1024
#: Largest count in a result: more than any cycle has, and exact in every reader.
LARGEST_COUNT = 2**53
#: Bytes of one payload. An agent sends no larger one, and the hub refuses it unread.
MAX_RESULT_BYTES = 2 * 1024 * 1024
#: Bytes of the line before the payload, and of a whole frame.
MAX_HEADER_BYTES = 512
MAX_FRAME_BYTES = MAX_HEADER_BYTES + MAX_RESULT_BYTES
#: Bytes at the start of a frame that identify it: they contain its signature.
FRAME_MARK = 80
#: Labels of one result: more than there are in use, for agents of a later version.
_MAX_LABELS = 16
#: Durations and counts of one result, and characters of a name of one.
_MAX_NUMBERS, _MAX_NAME = 64, 128
_BOUNDS = Bounds(MAX_RESULT_BYTES, MAX_RESULTS * (len(USED_LABELS) + 3) + 2_000, max_depth=8)
_HEADER = re.compile(rb"DSF(-?[0-9]{1,9}) ([0-9a-f]{64}) ([1-9][0-9]{0,17}) ([a-z0-9][-a-z0-9.]{0,252})\n")
_VERSION_LIMIT = 64


def new_run_id(at: float | None = None) -> str:
    """Return a run id: unix milliseconds of its scheduled time and 32 random bits.

    Later runs sort after earlier ones.
    """
    milliseconds = int((time.time() if at is None else at) * 1000)
    return f"{milliseconds:013d}-{secrets.token_hex(4)}"


def is_run_id(text: object) -> bool:
    """True if this is a valid run id. Data from Redis is not trusted, and a run id names a file."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def run_time(run_id: str) -> float:
    """Return unix seconds at which the run was scheduled."""
    return int(run_id[:13]) / 1000


def latest_run_id(at: float) -> str:
    """Text that sorts after the run ids scheduled up to `at` (unix seconds), and before all later ones."""
    return f"{int(at * 1000):013d}~"


class SigningKey(BaseModel):
    """An agent's HMAC key. `id` counts up with each rotation, so that the hub knows which one signed."""

    model_config = ConfigDict(frozen=True)

    id: int = Field(ge=1)
    secret: bytes = Field(repr=False, min_length=16)

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Read `<id>:<hex>`. Raises SettingsError without repeating the text, which is a secret."""
        key_id, _, secret = text.strip().partition(":")
        try:
            return cls(id=int(key_id), secret=bytes.fromhex(secret))
        except ValueError:
            raise SettingsError(
                "DSF_SIGNING_KEY_FILE: not a signing key; expected <number>:<at least 32 hex digits> as the hub "
                "delivers it"
            ) from None

    def dump(self) -> str:
        """Return the text for `parse`. The text is secret: for the agent's Secret only."""
        return f"{self.id}:{self.secret.hex()}"


@functools.lru_cache(8192)
def derive_key(master_secret: bytes, cluster: str, key_id: int) -> SigningKey:
    """The key of one cluster, derived (HKDF-like, one block) so that the hub stores none and one agent's key reveals
    nothing about another's."""
    digest = hmac.digest(master_secret, f"dsf-agent-key/{key_id}/{cluster}".encode(), "sha256")
    return SigningKey(id=key_id, secret=digest)


def _is(valid: Callable[[str], object], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not valid(text):
            raise ValueError(f"not {what}")
        return text

    return AfterValidator(check)


def _cleaned(limit: int) -> AfterValidator:
    return AfterValidator(lambda text: cleaned(text, limit))


_Name = Annotated[str, _is(is_name, "a DNS-1123 name")]
_Label = Annotated[str, AfterValidator(spaced)]


_Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Named = Annotated[str, Field(max_length=_MAX_NAME)]


class _Payload(BaseModel):
    """The signed JSON. Lists and maps have a largest length, and validation ends at the first wrong element: a list of
    what is wrong takes far more memory than the text."""

    model_config = ConfigDict(extra="ignore")

    scorer: _Name
    run: Annotated[str, _is(is_run_id, "a run id")]
    at: _Number
    outcome: Outcome
    stage: Stage = ""
    reason: Annotated[str, _is(_REASON.fullmatch, "a snake_case word")] = ""
    message: Annotated[str, _cleaned(MESSAGE_LIMIT)] = ""
    #: [labels, score] per accepted result.
    results: Annotated[
        list[tuple[Annotated[dict[str, _Label], Field(max_length=_MAX_LABELS)], _Number]],
        FailFast(),
        Field(max_length=MAX_RESULTS),
    ] = []
    # Reasons -> number; some ten are known.
    refused: Annotated[dict[_Named, _Count], Field(max_length=_MAX_NUMBERS)] = {}
    timings: Annotated[
        dict[_Named, Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(max_length=_MAX_NUMBERS)
    ] = {}
    counts: Annotated[dict[_Named, Annotated[int, Field(ge=0)]], Field(max_length=_MAX_NUMBERS)] = {}
    #: Host name of the agent, and the version of its software.
    agent: Annotated[str, _cleaned(255)] = ""
    version: Annotated[str, _cleaned(_VERSION_LIMIT)] = ""


class Result(_Payload):
    """What publish sends at the end of a cycle. Times are unix seconds by the agent's clock, durations seconds."""

    #: These two are in the frame's first line.
    v: int = SCHEMA_VERSION
    cluster: _Name


def sign(result: Result, key: SigningKey) -> bytes:
    """Return the frame of a result, signed with this key."""
    text = json.dumps(
        result.model_dump(exclude_defaults=True, exclude={"v", "cluster"}), separators=(",", ":"), ensure_ascii=False
    )
    # surrogatepass: a label with a lone surrogate must fail in the hub's validation, not here.
    return frame(text.encode("utf-8", "surrogatepass"), key, result.cluster, result.v)


def frame(payload: bytes, key: SigningKey, cluster: str, version: int = SCHEMA_VERSION) -> bytes:
    """Return the frame of a payload, whatever is in it."""
    signature = _signature(key, version, cluster, payload)
    return f"DSF{version} {signature} {key.id} {cluster}\n".encode() + payload


def _signature(key: SigningKey, version: int, cluster: str, payload: bytes) -> str:
    mac = hmac.new(key.secret, f"DSF{version} {key.id} {cluster}\n".encode(), hashlib.sha256)
    mac.update(payload)
    return mac.hexdigest()


class _Header(NamedTuple):
    version: int
    signature: str
    key_id: int
    cluster: str
    #: Its length in bytes.
    size: int


def _header(text: bytes) -> _Header | None:
    match = _HEADER.match(text, 0, MAX_HEADER_BYTES)
    if match is None:
        return None
    version, signature, key_id, cluster = match.groups()
    return _Header(int(version), signature.decode(), int(key_id), cluster.decode(), match.end())


def claimed_cluster(text: bytes) -> str:
    """Return the cluster that a frame names, which proves nothing; empty if it names none."""
    header = _header(text)
    return header.cluster if header is not None else ""


class Verified(NamedTuple):
    """A result whose signature is valid."""

    key_id: int
    result: Result


def verify(text: bytes, master_secret: bytes) -> Verified:
    """Verify the sender of a frame, then parse its result.

    Only the signature proves the sender; nothing of the payload is parsed before. Raises MessageRejectedError with
    reason `malformed` or `bad_signature`, and SchemaMismatchError (`malformed`) for a validly signed result of an
    unsupported version.
    """
    header = _header(text)
    if header is None or not is_name(header.cluster):
        raise MessageRejectedError("malformed", "no signed result: its first line is not that of an agent")
    version, signature, key_id, cluster, size = header
    payload = text[size:]
    if len(payload) > MAX_RESULT_BYTES:
        raise MessageRejectedError("malformed", f"result of {len(payload)} bytes, the limit is {MAX_RESULT_BYTES}")
    expected = _signature(derive_key(master_secret, cluster, key_id), version, cluster, payload)
    if not hmac.compare_digest(expected, signature):
        if not is_supported(version):
            # A frame of another version may be signed differently.
            raise MessageRejectedError("malformed", f"schema version {version} is not supported")
        raise MessageRejectedError("bad_signature", f"signature does not match the key {key_id} of cluster {cluster}")
    try:
        check(payload, _BOUNDS)
        if not is_supported(version):
            raise SchemaMismatchError(cluster, key_id, version, _software(payload))
        parsed = _Payload.model_validate_json(payload)
    except ValidationError as error:
        raise MessageRejectedError("malformed", f"result of cluster {cluster}: {_first_of(error)}") from None
    except JsonBoundsError as error:
        raise MessageRejectedError("malformed", f"result of cluster {cluster}: {error}") from None
    return Verified(key_id, Result.model_construct(v=version, cluster=cluster, **parsed.__dict__))


def _first_of(error: ValidationError) -> str:
    """Return the first thing that is wrong."""
    if error.error_count() > _MAX_NUMBERS:
        # As objects of Python, hundreds of thousands would take hundreds of megabytes.
        return f"{error.error_count()} values are wrong"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return cleaned(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}", 500)


class _Software(BaseModel):
    """The version of the agent's software in a payload of any schema version, maybe in another form."""

    version: Any = ""


def _software(payload: bytes) -> str:
    try:
        version = _Software.model_validate_json(payload).version
    except ValidationError:
        return ""
    return cleaned(version, _VERSION_LIMIT) if isinstance(version, str) else ""
