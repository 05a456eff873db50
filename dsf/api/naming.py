"""Names of Kubernetes objects derived from user-defined names, and score names that a namespace may use."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

#: Maximum length of a Kubernetes object name.
MAX_NAME_LENGTH: Final = 253
#: Maximum length of a Kubernetes label value.
MAX_LABEL_VALUE_LENGTH: Final = 63

#: Hexadecimal digits of the hash in a label value. Nobody can find two names with as many equal digits.
_LABEL_HASH_LENGTH: Final = 24

_HASH_SUFFIX_PATTERN = re.compile(rf"-[0-9a-f]{{{_LABEL_HASH_LENGTH}}}\Z")
_DISALLOWED_CHARACTERS_PATTERN = re.compile(r"[^a-z0-9.]+")
_SUBDOMAIN_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@functools.lru_cache(maxsize=8192)
def sanitize_resource_name(name: str) -> str:
    """Return the object name for the score `name`; always a DNS-1123 subdomain.

    An empty name becomes `score`. A name without valid characters becomes `score-` and its hash, so that different
    names result in different objects.
    """
    if not name:
        return "score"
    parts = (part.strip("-") for part in _DISALLOWED_CHARACTERS_PATTERN.sub("-", name.lower()).split("."))
    object_name = ".".join(part for part in parts if part)[:MAX_NAME_LENGTH].rstrip("-.")
    return object_name or f"score-{_compute_short_hash(name)}"


def is_dns_subdomain(name: str) -> bool:
    """Return True if Kubernetes accepts `name` as the name of an object (RFC 1123 subdomain)."""
    return len(name) <= MAX_NAME_LENGTH and _SUBDOMAIN_PATTERN.fullmatch(name) is not None


def make_label_value(name: str) -> str:
    """Return a label value that no other object name has.

    A long name is truncated, and its hash is appended. A hash is also appended to a short name that ends like a hash,
    because its author could otherwise choose the label value of somebody else's long name.
    """
    if len(name) <= MAX_LABEL_VALUE_LENGTH and not _HASH_SUFFIX_PATTERN.search(name):
        return name
    hash_suffix = f"-{_compute_hash(name)[:_LABEL_HASH_LENGTH]}"
    return name[: MAX_LABEL_VALUE_LENGTH - len(hash_suffix)].rstrip("-.") + hash_suffix


def _compute_short_hash(name: str) -> str:
    return _compute_hash(name)[:8]


def _compute_hash(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


_ANY_ENDING: Final = "*"


class AllowedNames:
    """Allowed score names, or prefixes that end in `*`, by namespace. A namespace without a list may use any name."""

    def __init__(self, lists: Mapping[str, Iterable[str]] | None = None) -> None:
        """`lists` maps namespaces to their names and prefixes. Raises ValueError, whose text quotes a wrong entry."""
        self._lists = {namespace: tuple(entries) for namespace, entries in (lists or {}).items()}
        for namespace, entries in self._lists.items():
            for entry in entries:
                if not entry or _ANY_ENDING in entry[:-1]:
                    raise ValueError(f"{namespace}: {entry!r} is neither a score name nor a prefix such as 'team-a-*'")

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces with a list."""
        return frozenset(self._lists)

    def explain_refusal(self, namespace: str, score_name: str) -> str:
        """Return the reason why scorers in a namespace may not use a score name; empty if they may."""
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
    # Also check the object name, because "team-a-" would become "team-a", which does not match "team-a-*".
    start = sanitize_resource_name(f"{prefix}x").removesuffix("x")
    return score_name.startswith(prefix) and sanitize_resource_name(score_name).startswith(start)
