"""The score names that scorers of other namespaces than the hub's may use, as the operator lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dsf.api.naming import sanitize_resource_name

_ANY_ENDING: Final = "*"


class AllowedNames:
    """By namespace: score names, or prefixes that end in `*`. A namespace without a list may use any name."""

    def __init__(self, lists: Mapping[str, Iterable[str]] | None = None) -> None:
        """Raises ValueError naming a wrong entry."""
        self._lists = {namespace: tuple(entries) for namespace, entries in (lists or {}).items()}
        for namespace, entries in self._lists.items():
            for entry in entries:
                if not entry or _ANY_ENDING in entry[:-1]:
                    raise ValueError(f"{namespace}: {entry!r} is neither a score name nor a prefix such as 'team-a-*'")

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces with a list."""
        return frozenset(self._lists)

    def refusal(self, namespace: str, score_name: str) -> str:
        """Why scorers of a namespace may not use a score name; empty if they may."""
        entries = self._lists.get(namespace)
        if entries is None or any(_matches(entry, score_name) for entry in entries):
            return ""
        return (
            f"scorers in namespace {namespace} may not use the score name {score_name!r}; "
            f"allowed: {', '.join(entries) or 'none'} (the chart's hubSetting.scoreNames, by the hub's admin)"
        )


def _matches(entry: str, score_name: str) -> bool:
    if not entry.endswith(_ANY_ENDING):
        return entry == score_name
    prefix = entry[:-1]
    # The object's name as well: "team-a-" would become "team-a", which is outside of "team-a-*".
    start = sanitize_resource_name(f"{prefix}x").removesuffix("x")
    return score_name.startswith(prefix) and sanitize_resource_name(score_name).startswith(start)
