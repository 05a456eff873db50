"""A file for `dsf scorer test`: a scorer, and test cases, each with series and the items that they must result in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from dsf.api import kubeyaml
from dsf.api.manifest import ParsedDocument, find_line, parse_documents
from dsf.api.problems import Mistake, explain
from dsf.api.scorer import DynamicScorer
from dsf.api.scorerule import Aggregate
from dsf.cli.duration import parse_seconds
from dsf.conformance.notation import parse_labels, parse_values
from dsf.errors import ManifestError

#: Maximum samples of a case: a scoring request of 100 MB has as many.
_MAX_SAMPLES = 1_000_000
#: Maximum characters of a file.
_MAX_CHARACTERS = 4 * 1024 * 1024


def _parse_interval(value: Any) -> int:
    try:
        number: Any = parse_seconds(value) if isinstance(value, str) else value
    except typer.BadParameter as error:
        raise ValueError(error.message) from None
    if type(number) is not int or number < 1:
        raise ValueError("must be a time such as 30s, 1m or 1h30m, at least 1s")
    return int(number)


class _Part(BaseModel):
    model_config = ConfigDict(
        # Field names are used as aliases, because the framework's messages name fields by alias.
        alias_generator=str,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )


class InputSeries(_Part):
    """A series in promtool's notation, parsed."""

    series: Annotated[dict[str, str], BeforeValidator(lambda text: parse_labels(_format_value(text)))]
    values: Annotated[list[float | None], BeforeValidator(lambda text: parse_values(_format_value(text)))]
    #: Name of the series' source if the scorer has several; empty: the first source. For a composite, the variable of
    #: the score that the series stands for.
    source: str = ""

    model_config = ConfigDict(allow_inf_nan=True)


class ExpectedItem(_Part):
    """An item of the AddOnPlacementScore: rounded down, -100 to 100."""

    name: str
    value: float
    #: Largest accepted difference.
    tolerance: float = Field(default=0.0, ge=0)


class TestCase(_Part):
    """Series, and all items that a scorer must compute from them."""

    __test__ = False  # for pytest

    name: str = Field(min_length=1)
    #: Seconds between two samples; None: the step of /config.
    interval: Annotated[int, BeforeValidator(_parse_interval)] | None = None
    #: Unix seconds of the first sample.
    start_timestamp: float = Field(default=0.0, ge=0, le=1e11)
    #: Name of the DynamicScorer in the manifest; may be empty if the manifest has only one.
    dynamic_scorer: str = ""
    #: Path of /config, and the scoreDimensionFormat; without a manifest.
    config: str = Field(default="/config", pattern="^/")
    dimension: str = "${scoreName}"
    cluster: str = "cluster1"
    #: Labels of the ManagedCluster, for an expression.
    cluster_labels: dict[str, str] = {}
    input_series: list[InputSeries] = []
    exp_items: list[ExpectedItem]

    @field_validator("input_series")
    @classmethod
    def _is_bounded(cls, value: list[InputSeries]) -> list[InputSeries]:
        if sum(len(series.values) for series in value) > _MAX_SAMPLES:
            raise ValueError(f"has more than {_MAX_SAMPLES} samples")
        label_sets: set[object] = set()
        for index, series in enumerate(value):
            labels = series.source, frozenset(series.series.items())
            if labels in label_sets:
                raise ValueError(f"[{index}] has the labels of another series")
            label_sets.add(labels)
        return value

    @field_validator("exp_items")
    @classmethod
    def _has_each_once(cls, value: list[ExpectedItem]) -> list[ExpectedItem]:
        name, times = next(iter(Counter(item.name for item in value).most_common(1)), ("", 0))
        if times > 1:
            raise ValueError(f"has {name!r} twice")
        return value


class _Document(_Part):
    scorer: str = Field(default="", pattern=r"^$|^[\w.]+:[\w.]+$")
    url: str = Field(default="", pattern=r"^$|^https?://[^/]+/?$")
    manifest: str = ""
    tests: list[TestCase] = Field(min_length=1)


class Registered(NamedTuple):
    """The parts of a DynamicScorer that the cases need."""

    config: str
    formats: tuple[str, ...]
    aggregate: Aggregate | None = None
    #: The scorer itself, if it has an expression.
    scorer: DynamicScorer | None = None


class TestFile:
    """A parsed file. Raises ManifestError with each mistake on a line: file, line, field."""

    __test__ = False

    def __init__(self, path: Path, url: str = "") -> None:
        """Read the file; `url` overrides the file's scorer."""
        self.path = path
        try:
            with path.open(encoding="utf-8") as file:
                self._root, document = _read(file.read(_MAX_CHARACTERS + 1))
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path}: {getattr(error, 'strerror', None) or 'is not text'}") from None
        except kubeyaml.YamlError as error:
            raise ManifestError(f"{path}:{error.line + 1}: {Mistake(error.location, error.message)}") from None
        try:
            content = _Document.model_validate(document)
        except ValidationError as error:
            raise self._make_error(explain(error, _Document, document)) from None
        self.cases = content.tests
        self.scorer = "" if url else content.scorer
        self.url = (url or content.url).rstrip("/")
        scorers = self._read_manifest(content.manifest) if content.manifest else {}
        needs_api = not scorers or any(scorer.spec.scoring.expression is None for scorer in scorers.values())
        if not url and (bool(content.scorer) == bool(content.url) if needs_api else content.scorer or content.url):
            text = "give one of scorer (module:object) and url, or --url; none for a manifest with expressions"
            raise self._make_error([Mistake((), text)])
        self.registered = {index: self._make_registered(index, scorers) for index in range(len(self.cases))}

    def line(self, *location: int | str) -> int:
        """Return the line of a field, from 1."""
        return find_line(self._root, location) + 1

    def where(self, *location: int | str) -> str:
        """`FILE:LINE` of a field."""
        return f"{self.path}:{self.line(*location)}"

    def _make_registered(self, index: int, scorers: dict[str, DynamicScorer]) -> Registered:
        case = self.cases[index]
        if not scorers:
            return Registered(case.config, (case.dimension,))
        if case.dynamic_scorer not in scorers and (case.dynamic_scorer or len(scorers) > 1):
            text = f"{case.dynamic_scorer!r} is not one of {', '.join(sorted(scorers))}"
            raise self._make_error([Mistake(("tests", index, "dynamic_scorer"), text)])
        scorer = scorers.get(case.dynamic_scorer, next(iter(scorers.values())))
        spec = scorer.spec
        if spec.scoring.expression is not None:
            return Registered("", spec.dimension_formats, spec.aggregate, scorer)
        config_path = spec.config_url.partition("://")[2].partition("/")[2]
        return Registered(f"/{config_path}", spec.dimension_formats, spec.aggregate)

    def _read_manifest(self, name: str) -> dict[str, DynamicScorer]:
        file = self.path.parent / name
        try:
            documents = parse_documents(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UnicodeDecodeError) as error:
            text = f"{file}: {getattr(error, 'strerror', None) or 'is not text'}"
            raise self._make_error([Mistake(("manifest",), text)]) from None
        problems = [
            str(document)
            for document in documents
            if not isinstance(document, ParsedDocument) and document.severity == "error"
        ]
        objects = [document.object for document in documents if isinstance(document, ParsedDocument)]
        scorers = {scorer.metadata.name: scorer for scorer in objects if isinstance(scorer, DynamicScorer)}
        if problems or not scorers:
            raise ManifestError("\n".join(problems) or f"{self.where('manifest')}: {file} has no DynamicScorer")
        return scorers

    def _make_error(self, mistakes: list[Mistake]) -> ManifestError:
        return ManifestError("\n".join(self._iterate_texts(mistakes)))

    def _iterate_texts(self, mistakes: list[Mistake]) -> Iterator[str]:
        for mistake in sorted(mistakes, key=lambda entry: self.line(*entry.location)):
            yield f"{self.where(*mistake.location)}: {mistake}"


def _read(text: str) -> tuple[yaml.Node, Any]:
    if len(text) > _MAX_CHARACTERS:
        raise kubeyaml.YamlError(0, f"has more than {_MAX_CHARACTERS} characters")
    root = kubeyaml.compose_nodes(text)
    _keep_notation(root)
    document = None if root is None else kubeyaml.construct(root)
    if root is None or not isinstance(document, dict):
        raise kubeyaml.YamlError(0, "is not a mapping with scorer or url, and tests")
    return root, document


def _keep_notation(root: yaml.Node | None) -> None:
    """Make series and values text, as promtool does.

    YAML would read `0x20`, which is the notation of 21 samples, as the number 32.
    """
    nodes, seen_ids = [root], set[int]()
    while nodes:
        node = nodes.pop()
        # A node with an anchor occurs in several places.
        if not isinstance(node, yaml.CollectionNode) or id(node) in seen_ids:
            continue
        seen_ids.add(id(node))
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(None, item) for item in node.value]
        for key, value in pairs:
            if isinstance(value, yaml.CollectionNode):
                nodes.append(value)
            elif key is not None and key.value in ("series", "values") and value.value:
                value.tag = "tag:yaml.org,2002:str"


def _format_value(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text in promtool's notation, such as 0+1x10")
    return value
