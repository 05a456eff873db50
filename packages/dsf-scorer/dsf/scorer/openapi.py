"""The OpenAPI document of the scoring endpoints. FastAPI cannot generate it, because no models parse the requests."""

from __future__ import annotations

from typing import Any

from dsf.scorer.requestbody import MAX_TIME

Schema = dict[str, Any]

_LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
# Go encodes a nil slice or map as null.
_OR_NULL = {"type": "null"}
_SAMPLE: Schema = {
    "type": "array",
    "description": "Unix seconds, and the value as text.",
    "minItems": 2,
    "maxItems": 2,
    "prefixItems": [
        {"type": "number", "minimum": -MAX_TIME, "maximum": MAX_TIME},
        {
            "anyOf": [
                {
                    "type": "string",
                    "pattern": r"^[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|NaN|Inf)$",
                },
                {"type": "number"},
            ]
        },
    ],
}
_SERIES: Schema = {
    "type": "object",
    "required": ["metric"],
    "properties": {
        "metric": {"anyOf": [_LABELS, _OR_NULL], "description": "Labels of the series; null is none."},
        "values": {"anyOf": [{"type": "array", "items": _SAMPLE}, _OR_NULL], "description": "Null is no sample."},
        "histograms": {"description": "Native histograms; they are ignored."},
    },
    "anyOf": [{"required": ["values"]}, {"required": ["histograms"]}],
}
_REQUEST: Schema = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {"anyOf": [{"type": "array", "items": _SERIES}, _OR_NULL], "description": "Null is no series."},
        "sources": {
            # No schema: a scorer of one source ignores it.
            "description": "With several sources, the series of each by its name; data has those of the first.",
        },
    },
}
_RESULT: Schema = {
    "type": "object",
    "required": ["metric", "score"],
    "properties": {"metric": _LABELS, "score": {"type": "number"}},
}
_ANSWER: Schema = {
    "type": "object",
    "required": ["results"],
    "properties": {"results": {"type": "array", "items": _RESULT}},
}
_EXAMPLE = {
    "data": [
        {"metric": {"namespace": "default", "pod": "web-1"}, "values": [[1718600000, "0.52"], [1718600060, "0.61"]]}
    ]
}
_ERROR: Schema = {
    "type": "object",
    "required": ["detail"],
    "properties": {
        "detail": {"type": "string", "description": "What is wrong, for people."},
        "error_id": {"type": "string", "description": "Under which the log of the scorer has the traceback."},
    },
}
_TEXT: Schema = {"type": "string"}
_SOURCE: Schema = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": _TEXT,
        "host": _TEXT,
        "path": _TEXT,
        "params": {
            "type": "object",
            "properties": {"query": _TEXT, "range": {"type": "integer"}, "step": {"type": "integer"}},
        },
    },
}
_CONFIG: Schema = {
    "type": "object",
    "required": ["name", "description", "source", "scoring"],
    "properties": {
        "name": _TEXT,
        "description": _TEXT,
        "source": _SOURCE,
        "sources": {
            "type": "array",
            "items": {
                **_SOURCE,
                "required": ["name", "type"],
                "properties": {"name": _TEXT, **_SOURCE["properties"]},
            },
        },
        "scoring": {
            "type": "object",
            "required": ["path", "params"],
            "properties": {
                "host": _TEXT,
                "path": _TEXT,
                "params": {
                    "type": "object",
                    "required": ["name", "interval"],
                    "properties": {"name": _TEXT, "interval": {"type": "integer", "minimum": 1}},
                },
            },
        },
    },
}

_REFUSALS = {
    400: "The request is not JSON.",
    408: "The request did not come in time.",
    413: "The request is larger than this scorer takes.",
    415: "The request is compressed.",
    422: "The request is JSON of another shape; the detail says where.",
    500: "The scoring function failed.",
    503: "Something that the scorer needs is away, or too many requests wait.",
}


def _describe_json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


CONFIG_RESPONSES: dict[int | str, Schema] = {200: _describe_json("The configuration.", _CONFIG)}


def describe_scoring_responses(*, with_token: bool) -> dict[int | str, Schema]:
    """Return the responses of POST /scoring."""
    refusals = _REFUSALS | ({401: "The token is missing or wrong."} if with_token else {})
    responses: dict[int | str, Schema] = {200: _describe_json("The scores.", _ANSWER)}
    for status, description in sorted(refusals.items()):
        responses[status] = _describe_json(description, _ERROR)
    return responses


#: The request of POST /scoring. No body at all is the same as no series.
SCORING_EXTRA: Schema = {
    "requestBody": {"required": False, "content": {"application/json": {"schema": _REQUEST, "example": _EXAMPLE}}}
}
