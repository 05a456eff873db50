"""The messages between hub and agents: run ids, signing keys, and the signed result.

A tick is a Celery message with `(scorer, run id, deadline)` and nothing else. A result is JSON text; the agent's own
HMAC key signs all of it: cluster, scorer, run id, time and payload.
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
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dsf.errors import MessageRejectedError, SchemaMismatchError, SettingsError
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

#: Most bytes of a slot per character of the longest result: quotes are escaped, and a character may have three bytes.
#: The hub refuses longer ones unread.
PACKING = 3

_RUN_ID = re.compile(r"[0-9]{13}-[0-9a-f]{8}")
_REASON = re.compile(r"([a-z0-9_]{1,64})?")
#: Characters of a result's message.
MESSAGE_LIMIT = 1024
#: Largest count in a result: more than any cycle has, and exact in every reader.
LARGEST_COUNT = 2**53
#: Bytes of one signed result. An agent sends no larger one, and the hub refuses it unread.
MAX_RESULT_BYTES = 2 * 1024 * 1024
_VERSION_LIMIT = 64


def new_run_id(at: float | None = None) -> str:
    """A run id: unix milliseconds of its scheduled time and 32 random bits. Later runs sort after earlier ones."""
    milliseconds = int((time.time() if at is None else at) * 1000)
    return f"{milliseconds:013d}-{secrets.token_hex(4)}"


def is_run_id(text: object) -> bool:
    """Whether this is a valid run id. Data from Redis is not trusted, and a run id names a file."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def run_time(run_id: str) -> float:
    """Unix seconds at which the run was scheduled."""
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
        """The format of `parse`. It is secret: for the agent's Secret only."""
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


class Result(BaseModel):
    """What publish sends at the end of a cycle. Times are unix seconds by the agent's clock, durations seconds."""

    model_config = ConfigDict(extra="ignore")

    v: int = SCHEMA_VERSION
    cluster: _Name
    scorer: _Name
    run: Annotated[str, _is(is_run_id, "a run id")]
    at: float = Field(allow_inf_nan=False)
    outcome: Outcome
    stage: Stage = ""
    reason: Annotated[str, _is(_REASON.fullmatch, "a snake_case word")] = ""
    message: Annotated[str, _cleaned(MESSAGE_LIMIT)] = ""
    #: [labels, score] per accepted result.
    results: list[tuple[dict[str, _Label], Annotated[float, Field(allow_inf_nan=False)]]] = []
    # Reasons -> number; some ten are known.
    refused: Annotated[dict[str, Annotated[int, Field(ge=0, le=LARGEST_COUNT)]], Field(max_length=64)] = {}
    timings: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    counts: dict[str, Annotated[int, Field(ge=0)]] = {}
    #: Host name of the agent, and the version of its software.
    agent: Annotated[str, _cleaned(255)] = ""
    version: Annotated[str, _cleaned(_VERSION_LIMIT)] = ""


def sign(result: Result, key: SigningKey) -> dict[str, Any]:
    """The envelope of a result: `{"v", "kid", "body", "sig"}`; `body` is the JSON text that `sig` covers."""
    body = json.dumps(
        result.model_dump(exclude_defaults=True) | {"v": result.v}, separators=(",", ":"), ensure_ascii=False
    )
    return {"v": SCHEMA_VERSION, "kid": key.id, "cluster": result.cluster, "body": body, "sig": _signature(key, body)}


def _signature(key: SigningKey, body: str) -> str:
    # surrogatepass: a label with a lone surrogate must fail in validation, not here.
    return hmac.new(key.secret, body.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


class _Versions(BaseModel):
    """What the bodies of all schema versions have: theirs, and the version of the agent's software, maybe in another
    form."""

    v: int = SCHEMA_VERSION
    version: Any = ""


def _check_schema(body: str, cluster: str, key_id: int, version: int) -> None:
    """Raises SchemaMismatchError. The signed version in the body counts, and that of the envelope."""
    try:
        signed = _Versions.model_validate_json(body)
    except ValidationError:
        # No such object: the parser reports it.
        return
    for schema in (signed.v, version):
        if not is_supported(schema):
            software = signed.version if isinstance(signed.version, str) else ""
            raise SchemaMismatchError(cluster, key_id, schema, software[:_VERSION_LIMIT])


def verify(envelope: object, master_secret: bytes) -> Result:
    """Verify the sender of an envelope and parse its result.

    Only the signature proves the sender: the `cluster` outside picks the key, and the one inside must agree. Raises
    MessageRejectedError with reason `malformed` or `bad_signature`, and SchemaMismatchError (`malformed`) for a validly
    signed result of an unsupported version.
    """
    if not isinstance(envelope, dict):
        raise MessageRejectedError("malformed", "a result must be a JSON object")
    version, kid, cluster = envelope.get("v"), envelope.get("kid"), envelope.get("cluster")
    body, signature = envelope.get("body"), envelope.get("sig")
    if not isinstance(version, int):
        raise MessageRejectedError("malformed", f"schema version {version!r} is no number")
    # Not `true`: it equals 1, so its derived key would be cached as the first one.
    if not (type(kid) is int and kid >= 1 and isinstance(cluster, str) and is_name(cluster)):
        raise MessageRejectedError("malformed", "key id or cluster name missing or wrong")
    if not (isinstance(body, str) and isinstance(signature, str)):
        raise MessageRejectedError("malformed", "body or signature missing")
    if len(body) > MAX_RESULT_BYTES:
        raise MessageRejectedError("malformed", f"result of {len(body)} characters, the limit is {MAX_RESULT_BYTES}")
    expected = _signature(derive_key(master_secret, cluster, kid), body)
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "surrogatepass")):
        if not is_supported(version):
            # Another version may be signed differently.
            raise MessageRejectedError("malformed", f"schema version {version} is not supported")
        raise MessageRejectedError("bad_signature", f"signature does not match the key {kid} of cluster {cluster}")
    try:
        result = Result.model_validate_json(body)
    except ValidationError as error:
        _check_schema(body, cluster, kid, version)
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MessageRejectedError("malformed", f"result of cluster {cluster}: {where}: {first['msg']}") from None
    if not (is_supported(version) and is_supported(result.v)):
        _check_schema(body, cluster, kid, version)
    if result.cluster != cluster:
        raise MessageRejectedError("bad_signature", f"signed by {cluster} for cluster {result.cluster}")
    return result
