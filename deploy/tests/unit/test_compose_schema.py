"""docker-compose.yaml has only known keys, with values of the right form."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from tests.support.chart import ROOT

COMPOSE = yaml.load((ROOT / "docker-compose.yaml").read_text(), Loader=yaml.CSafeLoader)


def _object(*required: str, **properties: object) -> dict[str, object]:
    """Return the schema of an object with only these properties."""
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _map(values: object) -> dict[str, object]:
    """Return the schema of an object with any names."""
    return {"type": "object", "additionalProperties": values}


_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}
_NOTHING = {"type": ["object", "null"], "maxProperties": 0}
_DURATION = {"type": "string", "pattern": r"^(\d+(\.\d+)?(us|ms|s|m|h))+$"}
_CONDITIONS = {"enum": ["service_started", "service_healthy", "service_completed_successfully"]}
_CHECK = {"type": "array", "prefixItems": [{"enum": ["CMD", "CMD-SHELL", "NONE"]}], "minItems": 2}
_ON_NETWORK = {**_object(aliases=_TEXTS), "type": ["object", "null"]}
#: Keys that a service here may have; Compose's own schema allows more.
_SERVICE = _object(
    image=_TEXT,
    build={"oneOf": [_TEXT, _object("context", context=_TEXT, dockerfile=_TEXT, target=_TEXT)]},
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
    read_only=_FLAG,
    **dict.fromkeys(("tmpfs", "cap_drop", "security_opt", "command", "volumes", "ports"), _TEXTS),
    environment=_map({"type": ["string", "number", "null"]}),
    networks={"oneOf": [_TEXTS, _map(_ON_NETWORK)]},
    depends_on=_map(_object("condition", condition=_CONDITIONS)),
    healthcheck=_object(
        "test", test=_CHECK, retries={"type": "integer"}, interval=_DURATION, timeout=_DURATION, start_period=_DURATION
    ),
)
_FILE = {
    **_object(
        "services",
        services={**_map(_SERVICE), "propertyNames": {"pattern": r"^[a-zA-Z0-9._-]+$"}},
        networks=_map(_NOTHING),
        volumes=_map(_NOTHING),
    ),
    "patternProperties": {"^x-": {}},
}


def test_every_key_is_one_that_compose_knows() -> None:
    jsonschema.Draft202012Validator.check_schema(_FILE)
    errors = jsonschema.Draft202012Validator(_FILE).iter_errors(COMPOSE)
    assert [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors] == []


@pytest.mark.parametrize(
    "wrong", [{"comand": []}, {"ports": [8080]}, {"restart": "sometimes"}, {"depends_on": {"redis": {}}}, {"build": {}}]
)
def test_compose_schema_refuses_wrong_services(wrong: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, _SERVICE)
