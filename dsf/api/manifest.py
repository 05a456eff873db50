"""Readers of manifests: a strict reader of YAML text, with line numbers, and a lenient reader of stored objects.

An invalid document does not affect other documents: its problems are part of the result. A stored object may come from
a newer CRD with more fields, and another version may have written its status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import yaml
from pydantic import ValidationError

from dsf.api import kubeyaml
from dsf.api.cluster import ManagedCluster
from dsf.api.meta import KubernetesObject
from dsf.api.problems import Location, explain, format_field_path, remove_unknown_fields
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ScoringAuthentication
from dsf.api.scoringconfig import DynamicScoringConfig
from dsf.api.types import API_VERSION, AUTHENTICATION_KIND, CLUSTER_API_VERSION, CLUSTER_KIND, CONFIG_KIND, SCORER_KIND

ApiObject = DynamicScorer | DynamicScoringConfig | ScoringAuthentication | ManagedCluster

#: Known kinds with their apiVersion.
KINDS: Final[dict[str, tuple[str, type[ApiObject]]]] = {
    SCORER_KIND: (API_VERSION, DynamicScorer),
    CONFIG_KIND: (API_VERSION, DynamicScoringConfig),
    AUTHENTICATION_KIND: (API_VERSION, ScoringAuthentication),
    CLUSTER_KIND: (CLUSTER_API_VERSION, ManagedCluster),
}


@dataclass(frozen=True)
class ParsedDocument:
    """A valid document."""

    #: Name of the file.
    source: str
    #: First line, from 1.
    line: int
    object: ApiObject


@dataclass(frozen=True)
class ManifestProblem:
    """A problem of a document. With the severity `error` the document is not used."""

    #: Name of the file.
    source: str
    #: Line of the problem, from 1.
    line: int
    #: The field, such as `spec.masks[0].clusterName`; empty for the whole document.
    field: str
    message: str
    severity: Literal["error", "note"] = "error"

    def __str__(self) -> str:
        location = f"{self.source}:{self.line}: "
        return location + (f"{self.field}: {self.message}" if self.field else self.message)


def parse_documents(text: str, source: str) -> list[ParsedDocument | ManifestProblem]:
    """Parse the documents in `text`, in order. `source` is the name of the file, for messages.

    Returns a note for a document of an unused kind, and nothing for an empty document.
    """
    results: list[ParsedDocument | ManifestProblem] = []
    for first_line, chunk in _split(text):
        try:
            root = kubeyaml.compose_nodes(chunk)
            if root is not None:
                results.extend(_read(root, source, first_line))
        except kubeyaml.YamlError as error:
            results.append(
                ManifestProblem(source, first_line + error.line, format_field_path(error.location), error.message)
            )
    return results


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Yield the documents in `text`, each with the number of its first line.

    The text is split before it is parsed, so that a syntax error affects only its document. A `---` at the start of a
    line is never content.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    starts = [number for number, line in enumerate(lines) if re.match(r"---(\s|$)", line)]
    for start, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        chunk = lines[start:end]
        # Directives precede the `---` of their document; JSON-like manifests do not need them.
        if not all(not line.strip() or line.startswith(("#", "%")) for line in chunk):
            yield start + 1, "\n".join(chunk)


def _read(
    root: yaml.Node, source: str, first_line: int, *, is_item: bool = False
) -> list[ParsedDocument | ManifestProblem]:
    document = kubeyaml.construct(root)
    line = first_line + root.start_mark.line
    if document is None:
        return []
    if not isinstance(document, dict):
        return [ManifestProblem(source, line, "", "is not a mapping of fields (apiVersion, kind, metadata, spec)")]

    def make_problem(location: Location, message: str, severity: Literal["error", "note"] = "error") -> ManifestProblem:
        return ManifestProblem(
            source, first_line + find_line(root, location), format_field_path(location), message, severity
        )

    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not kind:
        return [make_problem(("kind",), f"is required; kinds that are read are {', '.join(KINDS)}")]
    if kind == "List" and not is_item:
        return [result for item in _list_items(root) for result in _read(item, source, first_line, is_item=True)]
    if kind not in KINDS or (kind == CLUSTER_KIND and _parse_group(version) != _parse_group(CLUSTER_API_VERSION)):
        return [make_problem(("kind",), f"{kind!r} of apiVersion {version!r} is not read here; ignored", "note")]
    expected_version, model = KINDS[kind]
    if version != expected_version:
        return [make_problem(("apiVersion",), f"{version!r} is not {expected_version}")]
    try:
        return [ParsedDocument(source, line, model.from_manifest(document))]
    except ValidationError as error:
        problems = [make_problem(mistake.location, mistake.text) for mistake in explain(error, model, document)]
        return sorted(problems, key=lambda problem: problem.line)


def _list_items(root: yaml.Node) -> list[yaml.Node]:
    """Return the nodes of the objects in a `List`, as printed by `kubectl get -o yaml`."""
    fields = root.value if isinstance(root, yaml.MappingNode) else []
    items = next((value for key, value in fields if key.value == "items"), None)
    return list(items.value) if isinstance(items, yaml.SequenceNode) else []


def _parse_group(version: Any) -> str:
    return version.partition("/")[0] if isinstance(version, str) else ""


def find_line(root: yaml.Node, location: Location) -> int:
    """Return the line, from 0, of the key or element at `location`, or of its nearest existing parent."""
    node, line = root, root.start_mark.line
    for step in location:
        if isinstance(node, yaml.MappingNode):
            match = next(((key, value) for key, value in node.value if key.value == step), None)
            if match is None:
                break
            line, node = match[0].start_mark.line, match[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line
        else:
            break
    return line


_Object = TypeVar("_Object", bound=KubernetesObject)


def drop_unknown_fields(manifest: dict[str, Any], model: type[_Object]) -> tuple[dict[str, Any], list[str]]:
    """Return the manifest without unknown fields, and the paths of unknown fields outside of the status."""
    try:
        model.from_manifest(manifest)
    except ValidationError as error:
        reduced_and_fields: tuple[Any, list[str]] = remove_unknown_fields(error, manifest)
        reduced_manifest, fields = reduced_and_fields
        return reduced_manifest, [field for field in fields if field.partition(".")[0] != "status"]
    return manifest, []


def read_object(manifest: dict[str, Any], model: type[_Object]) -> _Object:
    """Parse an object. An unreadable status is dropped, because the hub writes the status again.

    Raises pydantic's ValidationError, which `problems.explain` turns into messages.
    """
    try:
        return model.from_manifest(manifest)
    except ValidationError:
        return model.from_manifest({name: value for name, value in manifest.items() if name != "status"})


def read_known_fields(manifest: dict[str, Any], model: type[_Object]) -> _Object:
    """Parse an object without unknown fields. Raises the errors of `read_object`."""
    return read_object(drop_unknown_fields(manifest, model)[0], model)
