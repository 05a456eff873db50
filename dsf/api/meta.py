"""Kubernetes metadata, times and conditions, ends of pauses, and the base of all models."""

from __future__ import annotations

import functools
import math
import reprlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StrictInt,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from dsf.api.naming import MAX_NAME_LENGTH, is_dns_subdomain


def format_rfc3339(moment: datetime) -> str:
    """Return `moment` as UTC in Kubernetes' format, such as `2026-11-21T10:00:00Z`. Fractions are truncated."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[AwareDatetime, PlainSerializer(format_rfc3339, when_used="json")]


def _check_object_name(value: str) -> str:
    if not is_dns_subdomain(value):
        msg = f"{reprlib.repr(value)} is not a name: lower-case letters, digits, - and . (at most {MAX_NAME_LENGTH})"
        raise ValueError(msg)
    return value


def _check_namespace(value: str) -> str:
    return _check_object_name(value) if value else value


class ApiModel(BaseModel):
    """Base of all models. Field names are in camelCase in documents, and a field with the value null is unset."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        # Build validators at first use, because a command needs few of them.
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict) or None not in data.values():
            return data
        # Keep an unknown field, so that it is reported even without a value.
        field_names = {name for key, field in cls.model_fields.items() for name in (key, field.alias)}
        return {key: value for key, value in data.items() if value is not None or key not in field_names}

    def to_manifest(self) -> dict[str, Any]:
        """Return the object as plain data with the field names of its manifest, without unset optional fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Rule(NamedTuple):
    """A rule about several fields of an object."""

    message: str
    #: The rule in CEL for the API server; empty if only the models check the rule.
    cel: str = ""
    #: The rule for the models; None if only the API server checks the rule.
    holds: Callable[[Any], bool] | None = None


class SpecModel(ApiModel):
    """Base of the parts of a spec, which users write. Unknown fields are errors, and instances are immutable."""

    model_config = ConfigDict(frozen=True)

    #: Rules in addition to the rules of the base classes.
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in _list_rules(type(self)):
            if rule.holds is not None and not rule.holds(self):
                raise ValueError(rule.message)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        if rules := [{"rule": rule.cel, "message": rule.message} for rule in _list_rules(cls) if rule.cel]:
            handler.resolve_ref_schema(schema)["x-kubernetes-validations"] = rules
        return schema


@functools.cache
def _list_rules(model: type[SpecModel]) -> tuple[Rule, ...]:
    return tuple(rule for base in reversed(model.__mro__) for rule in vars(base).get("rules", ()))


class ObjectMeta(ApiModel):
    """The part of metav1.ObjectMeta that is used; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    # Check names here too, because the folder backend uses them as file names.
    name: Annotated[str, AfterValidator(_check_object_name)]
    namespace: Annotated[str, AfterValidator(_check_namespace)] = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)

    @model_serializer(mode="wrap")
    def _omit_empty_fields(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Kubernetes omits empty fields, too.
        return {name: value for name, value in serialize(self).items() if value}


class KubernetesObject(ApiModel):
    """Base of whole objects, each with its apiVersion and kind."""

    api_version: str
    kind: str
    metadata: ObjectMeta

    @property
    def key(self) -> str:
        """`namespace/name`, unique for each kind."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any]) -> Self:
        """Parse a manifest. Raises pydantic's ValidationError, which `problems.explain` turns into messages."""
        return cls.model_validate(manifest, by_alias=True, by_name=False)


class StatusModel(ApiModel):
    """Base of the parts of a status, which controllers of any version write, so unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class Condition(ApiModel):
    """metav1.Condition: one aspect of an object's state, for people and for `kubectl wait`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: str = Field(description="Type of the condition, in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="True if the condition holds, False if not, Unknown if the hub cannot tell."
    )
    reason: str = Field(
        description="Reason of the status, as one CamelCase word for programs.",
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        max_length=1024,
    )
    message: str = Field(default="", description="Reason of the status, as a sentence for people.", max_length=32768)
    last_transition_time: Time = Field(description="Time at which the status last changed.")
    observed_generation: StrictInt | None = Field(
        default=None, description="The generation of the object that the condition describes.", ge=0
    )


def set_condition(conditions: Iterable[Condition], new_condition: Condition) -> list[Condition]:
    """Return `conditions` with `new_condition` instead of the condition of the same type, or at the end.

    The time of the last transition changes only with the status, so that writing the same state again has no effect.
    """
    result = list(conditions)
    for index, current_condition in enumerate(result):
        if current_condition.type == new_condition.type:
            if current_condition.status == new_condition.status:
                new_condition = new_condition.model_copy(
                    update={"last_transition_time": current_condition.last_transition_time}
                )
            result[index] = new_condition
            return result
    return [*result, new_condition]


#: Latest time that is stored or shown, in Unix seconds: 9999-01-01. Every time zone still has a date for it.
LATEST: Final = 253_370_764_800.0


def limit_pause_end(end: datetime | float) -> float:
    """Return the end of a pause in Unix seconds, at most LATEST.

    Users write a distant end for a pause until further notice. Raises ValueError if `end` is not a time.
    """
    try:
        seconds = end.timestamp() if isinstance(end, datetime) else float(end)
    except (OverflowError, OSError):
        # Local times at the edges of the calendar have no timestamp.
        raise ValueError("no time that this machine can tell") from None
    if math.isnan(seconds):
        raise ValueError("no time")
    return min(seconds, LATEST)
