"""The CRDs, generated from the models: `dsf crds` prints them and the chart ships a copy.

The schema is structural, as the API server requires: references are inlined, nothing is nullable, and pydantic's
`anyOf` and `const` become plain types and enums. The API server prunes unknown fields or refuses them under strict
validation.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from dsf.api import kubeyaml
from dsf.api.meta import ApiModel
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ScoringAuthentication
from dsf.api.scoringconfig import DynamicScoringConfig
from dsf.api.types import AUTHENTICATION_KIND, CONFIG_KIND, GROUP, SCORER_KIND, VERSION

#: Suffix of the descriptions of the kinds that upstream also defines (docs/design/2026-11-27-v1beta1.md).
_UPSTREAM_MESSAGE: Final = (
    "v1alpha1 is the upstream project's version of this kind: its fields keep their names and meanings, further ones "
    "are optional."
)

_Column = tuple[str, str, str, str, int]

# (name, type, JSONPath, description, priority); priority 1 is only shown with -o wide.
_SCORER_COLUMNS: Final[tuple[_Column, ...]] = (
    ("Health", "string", ".status.healthStatus", "Result of the scoring API's health checks.", 0),
    ("Score", "string", ".status.scoreName", "Name of the score.", 0),
    ("Interval", "integer", ".status.interval", "Current seconds between two cycles.", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Unknown: not yet.", 0),
    ("Succeeding", "integer", ".status.clusters.succeeding", "Clusters whose last cycle's score could be written.", 0),
    ("Desired", "integer", ".status.clusters.desired", "Clusters that shall run this scorer.", 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why Ready has its status.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "", 0),
    (
        *("TLSVerified", "string", '.status.conditions[?(@.type=="TLSVerified")].status'),
        *("False: the certificate of a server is not verified.", 1),
    ),
    ("Declared", "integer", ".status.declaredInterval", "Declared seconds between two cycles.", 1),
    (
        "Message",
        "string",
        '.status.conditions[?(@.type=="Ready")].message',
        "Why Ready has its status, as a message.",
        1,
    ),
)
_CONFIG_COLUMNS: Final[tuple[_Column, ...]] = (
    (
        *("Distributed", "string", '.status.conditions[?(@.type=="Distributed")].status'),
        *("Whether the configuration is distributed to every cluster.", 0),
    ),
    ("Clusters", "integer", ".status.clusters", "Clusters that are served.", 0),
    ("Scorers", "integer", ".status.scorers", "Scorers that run.", 0),
    ("Ignored", "string", '.status.conditions[?(@.type=="Ignored")].reason', "Why this object is ignored.", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Unknown: not yet.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "", 0),
)
_AUTHENTICATION_COLUMNS: Final[tuple[_Column, ...]] = (
    ("Hosts", "string", ".spec.allowedHosts", "The servers that it applies to.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "", 0),
)


def make_crds() -> list[dict[str, Any]]:
    """Return all CRDs as manifests, DynamicScorer first."""
    return [
        _make_crd(DynamicScorer, SCORER_KIND, "dynamicscorers", "dscorer", _SCORER_COLUMNS),
        _make_crd(DynamicScoringConfig, CONFIG_KIND, "dynamicscoringconfigs", "dscfg", _CONFIG_COLUMNS),
        _make_crd(
            ScoringAuthentication, AUTHENTICATION_KIND, "scoringauthentications", "dsauth", _AUTHENTICATION_COLUMNS
        ),
    ]


def dump_crds() -> str:
    """Return all CRDs as a YAML text for `kubectl apply -f -`."""
    return "".join(
        "---\n" + yaml.dump(crd, Dumper=kubeyaml.Dumper, sort_keys=False, width=110, allow_unicode=True)
        for crd in make_crds()
    )


def _make_crd(
    model: type[ApiModel], kind: str, plural: str, short_name: str, columns: tuple[_Column, ...]
) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.get("$defs", {})
    properties = schema["properties"]
    is_ours = kind == AUTHENTICATION_KIND
    description = schema["description"] if is_ours else f"{schema['description']} {_UPSTREAM_MESSAGE}"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": ["ocm"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_make_column(*column) for column in columns],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": description,
                            **({"required": ["spec"]} if "spec" in schema["required"] else {}),
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": _make_structural(properties["spec"], definitions),
                                # The status has no defaults, because only the controller writes it.
                                "status": _remove_keyword(
                                    _make_structural(properties["status"], definitions), "default"
                                ),
                            },
                        }
                    },
                }
            ],
        },
    }


def _make_column(name: str, kind: str, path: str, description: str, priority: int) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if description:
        column["description"] = description
    if priority:
        column["priority"] = priority
    return column


def _make_structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in the structural form of the API server."""
    schema = dict(schema)
    if (reference := schema.pop("$ref", None)) is not None:
        # Keywords next to a reference (description, default) describe this use and win.
        schema = {**definitions[reference.rpartition("/")[2]], **schema}
    if (choices := schema.pop("anyOf", None)) is not None:
        (choice,) = [choice for choice in choices if choice.get("type") != "null"]
        schema = {**_make_structural(choice, definitions), **schema}
    if "enum" in schema:
        # Put the description first, regardless of pydantic's order.
        schema = {key: schema[key] for key in ("description", "enum", "type", "default") if key in schema}
    if schema.get("default", ...) is None:
        del schema["default"]
    for unwanted_key in ("title", "additionalProperties") if "properties" in schema else ("title",):
        schema.pop(unwanted_key, None)
    if "properties" in schema:
        schema["properties"] = {
            name: _make_structural(value, definitions) for name, value in schema["properties"].items()
        }
    for nested in ("items", "additionalProperties"):
        if isinstance(schema.get(nested), dict):
            schema[nested] = _make_structural(schema[nested], definitions)
    return schema


def _remove_keyword(schema: dict[str, Any], key: str) -> dict[str, Any]:
    """Return `schema` without the keyword `key` at any depth, but with properties of that name."""
    schema = {name: value for name, value in schema.items() if name != key}
    if "properties" in schema:
        schema["properties"] = {name: _remove_keyword(value, key) for name, value in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        schema["items"] = _remove_keyword(schema["items"], key)
    return schema
