"""DynamicScorers on the hub, and the origin of each setting."""

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
from dsf.api.urls import base_url
from dsf.fleet.views import SettingView
from dsf.store.entries import ScheduleOverride
from dsf.text import shown_url

INTERVAL: Final = "interval (s)"
# Fields of a /config that are URLs or parts of one.
_URL_FIELDS: Final = ("host", "path")


#: Reads a DynamicScorer by name and namespace; None if it is unreadable. Without a namespace, the first of this name.
ScorerReader = Callable[[str, str], DynamicScorer | None]


def nothing(name: str, namespace: str) -> None:
    """The reader of a page that only reads Redis."""


def in_folder(out: Path, name: str, namespace: str) -> DynamicScorer | None:
    """Spec and status as written by a hub on a folder; see ScorerReader."""
    folder = out / "dynamicscorers"
    # The name is from the registry and has no slash. Behind an underscore, which no name has, it is of another
    # namespace than the hub's.
    files = (folder / f"{name}.yaml", *sorted(folder.glob(f"*_{name}.yaml")))
    read = (scorer for file in files if (scorer := _read(file)) is not None)
    return next((scorer for scorer in read if namespace in ("", scorer.metadata.namespace)), None)


def _read(file: Path) -> DynamicScorer | None:
    try:
        if file.stat().st_size > 2 * 1024 * 1024:
            return None
        return parsed(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError):
        return None


def parsed(manifest: Any) -> DynamicScorer | None:
    """Return the scorer of a manifest; None if it is invalid."""
    try:
        return read_known_fields(manifest, DynamicScorer) if isinstance(manifest, dict) else None
    except ValidationError:
        return None


def shown_config(config: RemoteConfig) -> Any:
    """Return a /config as JSON for the page, without the queries of its URLs."""
    return _shown(config.model_dump(mode="json", by_alias=True, exclude_none=True))


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        key: shown_url(text) if key in _URL_FIELDS and isinstance(text, str) else _shown(text)
        for key, text in value.items()
    }


def settings_of(
    scorer: DynamicScorer, override: ScheduleOverride | None = None, validity: int = 0
) -> list[SettingView]:
    """Return the scorer's settings in the order in which a cycle needs them, as `dsf.api.resolve` decides them.

    `override` is a user's override for all clusters, `validity` the current seconds.
    """
    spec = scorer.spec
    full = spec.config_sync_mode is ConfigSyncMode.Full
    synced = scorer.status.last_synced_config if full else None
    scoring = synced.scoring if synced else None
    spec_params = spec.scoring.params
    settings: list[SettingView] = []

    def pick(name: str, synced: object, ours: object, default: object = None) -> None:
        settings.append(_setting(name, synced, ours, default))

    for source in list_declared_sources(spec, synced or RemoteConfig()):
        theirs, ours, params = source.synced, source.spec, source.spec.params
        mark = f" of {source.name}" if source.name else ""
        kind = SourceType.Prometheus if theirs.params.query or (params and params.query) else SourceType.None_
        pick(f"source type{mark}", theirs.type, ours.type, kind)
        if (theirs.type or ours.type or kind) is SourceType.None_:
            # Without a source, its other settings have no effect.
            continue
        for score in ours.scores or ():
            default = "" if score.default is None else f", {score.default:g} if it is missing"
            pick(f"input {score.name}", None, f"the score of {score.scorer}{default}")
        if ours.scores:
            continue
        pick(f"source host{mark}", shown_url(theirs.host), shown_url(ours.host), _host(spec.config_url))
        pick(f"source path{mark}", shown_url(theirs.path), shown_url(ours.path), "that of the source's type")
        if ours.method is not None:
            pick(f"source method{mark}", None, ours.method)
        if ours.options:
            pick(f"source options{mark}", None, json.dumps(ours.options, ensure_ascii=False))
        pick(f"query{mark}", theirs.params.query, params and params.query)
        pick(f"range (s){mark}", theirs.params.range, params and params.range)
        pick(f"step (s){mark}", theirs.params.step, params and params.step)
    if spec.scoring.expression is not None:
        pick("expression", None, spec.scoring.expression)
    else:
        theirs_host = shown_url(scoring.host) if scoring else None
        pick("scoring host", theirs_host, shown_url(spec.scoring.host), _host(spec.config_url))
        pick("scoring path", scoring and shown_url(scoring.path), shown_url(spec.scoring.path), DEFAULT_SCORING_PATH)
    pick("score name", scoring and scoring.params.name, spec_params and spec_params.name)
    pick(INTERVAL, scoring and scoring.params.interval, spec_params and spec_params.interval)
    pick("dimension format", None, spec.score_dimension_format, spec.dimension_formats[0])
    if spec.aggregate is not None:
        pick("aggregate", None, f"{spec.aggregate.how} by {', '.join(spec.aggregate.by) or 'nothing'}")
    if spec.dimension_formats[1:]:
        pick("more dimension formats", None, " and ".join(spec.dimension_formats[1:]))
    usual = f"{validity} (3 intervals, at least 300)" if validity else "3 intervals, at least 300"
    pick("validity (s)", None, spec.execution.validity_seconds, usual)
    run = spec.execution
    # API server and folder hub write defaults into the spec; do not show them as set.
    execution_fields = run.model_dump(exclude_defaults=True)
    pick("timeout (s)", None, execution_fields.get("timeout_seconds"), run.timeout_seconds)
    pick("retries", None, str(run.max_retries) if "max_retries" in execution_fields else None, str(run.max_retries))
    pick("rate limit", None, run.rate_limit, "none")
    return [_overridden(setting, override) for setting in settings]


def _overridden(setting: SettingView, override: ScheduleOverride | None) -> SettingView:
    if override is None or override.interval is None or setting.name != INTERVAL:
        return setting
    by = f"set by {override.by or 'a user'}{': ' if override.note else ''}{override.note}"
    declared = f"{by}; declared: {setting.value} in {setting.origin}"
    return SettingView(name=setting.name, value=str(override.interval), origin="override", instead=declared)


def _host(config_url: str) -> str:
    try:
        return base_url(config_url)
    except ValueError:
        return shown_url(config_url)


def _setting(name: str, synced: object, spec: object, default: object) -> SettingView:
    """Return the first value that is set, and its origin."""
    for value, origin in ((synced, "/config"), (spec, "spec"), (default, "default")):
        if _is_set(value):
            return SettingView(name=name, value=str(getattr(value, "value", value)), origin=origin)
    return SettingView(name=name, value="-", origin="not set")


def _is_set(value: object) -> bool:
    return value is not None and value != "" and not (isinstance(value, int) and value <= 0)
