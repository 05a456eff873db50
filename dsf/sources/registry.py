"""Registry of source types: built-in ones, and those of installed plug-ins, loaded at first use."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import dsf.log
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType, is_plugin_type
from dsf.errors import HttpError
from dsf.extras import describe_missing_extra, read_extras
from dsf.http.failures import EXCERPT_CHARACTERS
from dsf.sources.base import PLUGIN_BY_BUILTIN_TYPE, Source, get_source_type
from dsf.sources.memory import SourceMemory
from dsf.sources.plugin import PROTOCOL, Options, Plugin, query_plugin
from dsf.text import clean

#: Built-in type -> the module with its `fetch`.
SOURCES: Final[Mapping[str, str]] = {
    SourceType.Prometheus: "dsf.sources.prometheus",
    SourceType.None_: "dsf.sources.nosource",
    SourceType.Scores: "dsf.sources.nosource",
}
#: The entry point group of source types.
GROUP: Final = "dsf.sources"

log = dsf.log.get(__name__)


@functools.cache
def find_source(name: str) -> Source:
    """Return the function for this type. Raises HttpError (unsupported_source, plugin_failed)."""
    if name in SOURCES:
        fetch: Source = importlib.import_module(SOURCES[name]).fetch
        return fetch
    plugin = PLUGIN_BY_BUILTIN_TYPE.get(name, name)
    if plugin not in find_plugins():
        plugin_types = [plugin_type for plugin_type in find_plugins() if plugin_type not in read_extras()]
        text = f"source type {name!r} is not one of {', '.join([*SourceType, *plugin_types])}"
        if extra_name := read_extras().get(plugin):
            text = describe_missing_extra(extra_name, f"source type {name!r}")
        elif is_plugin_type(name):
            text += f"; install the package that has it in the agent's image (an entry point {GROUP!r})"
        raise HttpError("unsupported_source", text)
    source_label = f"source type {name!r} ({_describe_package(find_plugins()[plugin][0])})"
    return functools.partial(query_plugin, _load_plugin(plugin), source_label)


def start_background_sources(summaries: Mapping[str, ScorerSummary], memory: SourceMemory) -> None:
    """Start the background activities of these scorers' sources, so that their first cycle has data.

    A failed start is logged; the scorers' cycles repeat it and report the error.
    """
    if memory.running:
        # Drop the data of removed scorers.
        memory.tidy()
    for name in sorted({get_source_type(source) for summary in summaries.values() for source in summary.each_source}):
        try:
            if name in find_plugins() and (start := _load_plugin(name).start) is not None:
                memory.start_once(start)
        except Exception as error:  # noqa: BLE001 (third-party code)
            log.error("a source cannot begin", type=name, problem=str(error))


@functools.cache
def find_plugins() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the types of installed plug-ins, and their entry points. Invalid names are left out and logged."""
    by_name: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in sorted(entry_points(group=GROUP), key=_describe_package):
        if is_plugin_type(entry.name):
            by_name[entry.name] = (*by_name.get(entry.name, ()), entry)
        else:
            cause = (
                "it is the name of a built-in type"
                if entry.name in set(SourceType)
                else "that of a plug-in is a DNS name with a dot"
            )
            log.error(
                "a source plug-in is not used for its name",
                name=entry.name,
                package=_describe_package(entry),
                why=cause,
            )
    return by_name


@functools.cache
def _load_cached(name: str) -> Plugin[Any] | str:
    """Return the plug-in, or why it cannot be used; cached until the process ends. `name` is one of `find_plugins`."""
    entry, *duplicates = find_plugins()[name]
    if duplicates:
        packages = ", ".join(map(_describe_package, (entry, *duplicates)))
        return f"several packages have it: {packages}; uninstall all but one"
    package = _describe_package(entry)
    try:
        plugin = entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 (third-party code)
        return f"{package} cannot be loaded: {type(error).__name__}: {clean(str(error), EXCERPT_CHARACTERS)}"
    if not isinstance(plugin, Plugin) or not (isinstance(plugin.options, type) and issubclass(plugin.options, Options)):
        return f"{package} is no dsf.sources.plugin.Plugin with a model of options made from its class Options"
    if plugin.protocol != PROTOCOL:
        return (
            f"{package} is for version {plugin.protocol} of the plug-ins' protocol and this agent has {PROTOCOL}: "
            "install the version of the plug-in that is for it"
        )
    return plugin


def _load_plugin(name: str) -> Plugin[Any]:
    plugin = _load_cached(name)
    if isinstance(plugin, str):
        raise HttpError("plugin_failed", f"source type {name!r}: {plugin}")
    return plugin


def _describe_package(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}, " if entry.dist is not None else ""
    return f"{package}{entry.value}"
