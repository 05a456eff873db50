"""Names of Kubernetes objects derived from user-defined names."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Final

#: Most characters of a Kubernetes object name.
MAX_NAME_LENGTH: Final = 253
#: Most characters of a Kubernetes label value.
MAX_LABEL_VALUE_LENGTH: Final = 63

_NOT_ALLOWED = re.compile(r"[^a-z0-9.]+")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@functools.lru_cache(maxsize=8192)
def sanitize_resource_name(name: str) -> str:
    """The object name for the score `name`; always a DNS-1123 subdomain.

    An empty name becomes `score`. A name without valid characters becomes `score-` and its hash, so that two such names
    remain two objects.
    """
    if not name:
        return "score"
    parts = (part.strip("-") for part in _NOT_ALLOWED.sub("-", name.lower()).split("."))
    cleaned = ".".join(part for part in parts if part)[:MAX_NAME_LENGTH].rstrip("-.")
    return cleaned or f"score-{_short_hash(name)}"


def is_dns_subdomain(name: str) -> bool:
    """Whether Kubernetes accepts `name` as the name of an object (RFC 1123 subdomain)."""
    return len(name) <= MAX_NAME_LENGTH and _SUBDOMAIN.fullmatch(name) is not None


def label_value(name: str) -> str:
    """The object name `name` as a label value: a name that is too long is cut and gets its hash as suffix."""
    if len(name) <= MAX_LABEL_VALUE_LENGTH:
        return name
    end = f"-{_short_hash(name)}"
    return name[: MAX_LABEL_VALUE_LENGTH - len(end)].rstrip("-.") + end


def _short_hash(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
