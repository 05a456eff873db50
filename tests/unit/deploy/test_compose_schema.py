"""docker-compose.yaml has no key that Compose does not know, and no value of another form."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from tests.unit.deploy.chart import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())

_TEXTS = {"type": "array", "items": {"type": "string"}}
_CONDITIONS = {"enum": ["service_started", "service_healthy", "service_completed_successfully"]}
_DURATION = {"type": "string", "pattern": r"^(\d+(\.\d+)?(us|ms|s|m|h))+$"}
#: What a service here may have; Compose's own schema knows more.
_SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string"},
        "build": {
            "oneOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["context"],
                    "properties": {
                        "context": {"type": "string"},
                        "dockerfile": {"type": "string"},
                        "target": {"type": "string"},
                    },
                },
            ]
        },
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "read_only": {"type": "boolean"},
        "tmpfs": _TEXTS,
        "cap_drop": _TEXTS,
        "security_opt": _TEXTS,
        "command": _TEXTS,
        "environment": {"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}},
        "volumes": _TEXTS,
        "ports": _TEXTS,
        "networks": {
            "oneOf": [
                _TEXTS,
                {
                    "type": "object",
                    "additionalProperties": {
                        "type": ["object", "null"],
                        "additionalProperties": False,
                        "properties": {"aliases": _TEXTS},
                    },
                },
            ]
        },
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["condition"],
                "properties": {"condition": _CONDITIONS},
            },
        },
        "healthcheck": {
            "type": "object",
            "additionalProperties": False,
            "required": ["test"],
            "properties": {
                "test": {"type": "array", "prefixItems": [{"enum": ["CMD", "CMD-SHELL", "NONE"]}], "minItems": 2},
                "interval": _DURATION,
                "timeout": _DURATION,
                "start_period": _DURATION,
                "retries": {"type": "integer"},
            },
        },
    },
}
_NAMED = {"type": "object", "additionalProperties": {"type": ["object", "null"], "maxProperties": 0}}
_FILE = {
    "type": "object",
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "required": ["services"],
    "properties": {
        "services": {
            "type": "object",
            "propertyNames": {"pattern": r"^[a-zA-Z0-9._-]+$"},
            "additionalProperties": _SERVICE,
        },
        "networks": _NAMED,
        "volumes": _NAMED,
    },
}


def test_every_key_is_one_that_compose_knows() -> None:
    jsonschema.Draft202012Validator.check_schema(_FILE)
    errors = jsonschema.Draft202012Validator(_FILE).iter_errors(COMPOSE)
    assert [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors] == []


@pytest.mark.parametrize(
    "wrong", [{"comand": []}, {"ports": [8080]}, {"restart": "sometimes"}, {"depends_on": {"redis": {}}}, {"build": {}}]
)
def test_what_the_schema_is_for(wrong: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, _SERVICE)
