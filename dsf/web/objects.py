"""Reads DynamicScorers, and lists their settings with the origin of each value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from dsf.api.manifest import read_known_fields
from dsf.api.remoteconfig import RemoteConfig
from dsf.api.resolve import DEFAULT_SCORING_PATH
from dsf.api.scorer import DynamicScorer
from dsf.api.sourcefields import list_declared_sources
from dsf.api.types import ConfigSyncMode, SourceType
from dsf.api.urls import get_base_url
from dsf.fleet.views import SettingView
from dsf.store.entries import ScheduleOverride
from dsf.text import shorten_url

#: Name of the setting that a user's override may replace.
INTERVAL: Final = "interval (s)"
#: Fields of a /config that are URLs or parts of a URL.
_URL_FIELDS: Final = ("host", "path")
#: Maximum bytes of a DynamicScorer's file.
_MAX_FILE_BYTES: Final = 2 * 1024 * 1024


#: Returns a DynamicScorer by name and namespace; None if it is unreadable. With an empty namespace, it returns the
#: first DynamicScorer of this name.
ScorerReader = Callable[[str, str], DynamicScorer | None]


def read_nothing(name: str, namespace: str) -> None:
    """Return None, because a page that only reads Redis has no DynamicScorers."""


def read_from_folder(out: Path, name: str, namespace: str) -> DynamicScorer | None:
    """Return a DynamicScorer with the status that a hub with the folder backend wrote below `out`; see ScorerReader."""
    folder = out / "dynamicscorers"
    # The hub writes NAME.yaml for its own namespace and NAMESPACE_NAME.yaml for the others. This is unambiguous,
    # because Kubernetes names contain no underscore. The name comes from the registry and contains no slash.
    files = (folder / f"{name}.yaml", *sorted(folder.glob(f"*_{name}.yaml")))
    scorers = (scorer for file in files if (scorer := _read_file(file)) is not None)
    return next((scorer for scorer in scorers if namespace in ("", scorer.metadata.namespace)), None)


def _read_file(file: Path) -> DynamicScorer | None:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            return None
        return parse_scorer(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError):
        return None


def parse_scorer(manifest: Any) -> DynamicScorer | None:
    """Return the DynamicScorer of a manifest; None if the manifest is invalid."""
    try:
        return read_known_fields(manifest, DynamicScorer) if isinstance(manifest, dict) else None
    except ValidationError:
        return None


def redact_config(config: RemoteConfig) -> Any:
    """Return a /config as JSON for the page, without the queries of its URLs, because they may contain secrets."""
    return _redact_urls(config.model_dump(mode="json", by_alias=True, exclude_none=True))


def _redact_urls(value: Any) -> Any:
    if isinstance(value, list):
        return [_redact_urls(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        key: shorten_url(content) if key in _URL_FIELDS and isinstance(content, str) else _redact_urls(content)
        for key, content in value.items()
    }


def list_settings(
    scorer: DynamicScorer, override: ScheduleOverride | None = None, validity: int = 0
) -> list[SettingView]:
    """Return the scorer's settings in the order in which a cycle needs them, as `dsf.api.resolve` decides them.

    `override` is a user's override for all clusters. `validity` is the current validity of a score in seconds, 0 if it
    is unknown.
    """
    spec = scorer.spec
    uses_config = spec.config_sync_mode is ConfigSyncMode.Full
    synced_config = scorer.status.last_synced_config if uses_config else None
    synced_scoring = synced_config.scoring if synced_config else None
    spec_params = spec.scoring.params
    settings: list[SettingView] = []

    def add(name: str, synced_value: object, declared_value: object, default_value: object = None) -> None:
        settings.append(_resolve_setting(name, synced_value, declared_value, default_value))

    for source in list_declared_sources(spec, synced_config or RemoteConfig()):
        synced_source, declared_source, params = source.synced_source, source.spec, source.spec.params
        suffix = f" of {source.name}" if source.name else ""
        has_query = synced_source.params.query or (params and params.query)
        default_type = SourceType.Prometheus if has_query else SourceType.None_
        add(f"source type{suffix}", synced_source.type, declared_source.type, default_type)
        # The other settings of a source have no effect if its type is None.
        if (synced_source.type or declared_source.type or default_type) is SourceType.None_:
            continue
        for score in declared_source.scores or ():
            default_text = "" if score.default is None else f", {score.default:g} if it is missing"
            add(f"input {score.name}", None, f"the score of {score.scorer}{default_text}")
        if declared_source.scores:
            continue
        add(
            f"source host{suffix}",
            shorten_url(synced_source.host),
            shorten_url(declared_source.host),
            _find_default_host(spec.config_url),
        )
        add(
            f"source path{suffix}",
            shorten_url(synced_source.path),
            shorten_url(declared_source.path),
            "that of the source's type",
        )
        if declared_source.method is not None:
            add(f"source method{suffix}", None, declared_source.method)
        if declared_source.options:
            add(f"source options{suffix}", None, json.dumps(declared_source.options, ensure_ascii=False))
        add(f"query{suffix}", synced_source.params.query, params and params.query)
        add(f"range (s){suffix}", synced_source.params.range, params and params.range)
        add(f"step (s){suffix}", synced_source.params.step, params and params.step)
    if spec.scoring.expression is not None:
        add("expression", None, spec.scoring.expression)
    else:
        synced_host = shorten_url(synced_scoring.host) if synced_scoring else None
        synced_path = shorten_url(synced_scoring.path) if synced_scoring else None
        add("scoring host", synced_host, shorten_url(spec.scoring.host), _find_default_host(spec.config_url))
        add("scoring path", synced_path, shorten_url(spec.scoring.path), DEFAULT_SCORING_PATH)
    add("score name", synced_scoring and synced_scoring.params.name, spec_params and spec_params.name)
    add(INTERVAL, synced_scoring and synced_scoring.params.interval, spec_params and spec_params.interval)
    first_format = spec.dimension_formats[0]
    is_declared = any((spec.score_dimension_format, *spec.score_dimension_formats))
    add("dimension format", None, first_format if is_declared else None, first_format)
    if spec.aggregate is not None:
        add("aggregate", None, f"{spec.aggregate.how} by {', '.join(spec.aggregate.by) or 'nothing'}")
    if spec.dimension_formats[1:]:
        add("more dimension formats", None, " and ".join(spec.dimension_formats[1:]))
    default_validity = f"{validity} (3 intervals, at least 300)" if validity else "3 intervals, at least 300"
    execution = spec.execution
    add("validity (s)", None, execution.validity_seconds, default_validity)
    # Values that equal their defaults are shown as defaults, because the API server and the hub with the folder backend
    # write defaults into the spec.
    declared_fields = execution.model_dump(exclude_defaults=True)
    retries = str(execution.max_retries)
    add("timeout (s)", None, declared_fields.get("timeout_seconds"), execution.timeout_seconds)
    add("retries", None, retries if "max_retries" in declared_fields else None, retries)
    add("rate limit", None, execution.rate_limit, "none")
    return [_apply_override(setting, override) for setting in settings]


def _apply_override(setting: SettingView, override: ScheduleOverride | None) -> SettingView:
    if override is None or override.interval is None or setting.name != INTERVAL:
        return setting
    author = f"set by {override.by or 'a user'}{': ' if override.note else ''}{override.note}"
    explanation = f"{author}; declared: {setting.value} in {setting.origin}"
    return SettingView(name=setting.name, value=str(override.interval), origin="override", instead=explanation)


def _find_default_host(config_url: str) -> str:
    """Return the host of the /config endpoint, which also serves data and scores unless another host is set."""
    try:
        return get_base_url(config_url)
    except ValueError:
        return shorten_url(config_url)


def _resolve_setting(name: str, synced_value: object, declared_value: object, default_value: object) -> SettingView:
    """Return the first value that is set, and its origin: /config for `synced_value`, the spec for `declared_value`."""
    for value, origin in ((synced_value, "/config"), (declared_value, "spec"), (default_value, "default")):
        if _is_set(value):
            return SettingView(name=name, value=str(getattr(value, "value", value)), origin=origin)
    return SettingView(name=name, value="-", origin="not set")


def _is_set(value: object) -> bool:
    return value is not None and value != "" and not (isinstance(value, int) and value <= 0)
