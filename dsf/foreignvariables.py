"""Environment variables of libraries that would override the project's settings: removed at the start of each process.

A variable that another program on the same machine needs, or that Kubernetes sets for a Service, must not send an agent
to another Redis. Variables with which a library has no setting of ours stay, such as FLOWER_*, OTEL_* and AWS_*.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Final

#: Variable -> what counts instead, by library.
OVERRIDING: Final[dict[str, dict[str, str]]] = {
    "celery": {
        **dict.fromkeys(
            ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "BROKER_URL"), "DSF_REDIS_URL"
        ),
        # Results come through mailboxes.
        **dict.fromkeys(("CELERY_RESULT_BACKEND", "RESULT_BACKEND"), "no result backend"),
        # These name another application or configuration than dsf.celery.
        **dict.fromkeys(("CELERY_LOADER", "LOADER", "CELERY_CONFIG_MODULE", "CONFIG_MODULE"), "dsf.celery"),
        "CELERY_CUSTOM_WORKER_POOL": "the pool of the role",
    },
    "kombu": {
        # Kombu logs every call on a connection, with its arguments.
        **dict.fromkeys(("KOMBU_LOG_DEBUG", "KOMBU_LOG_CONNECTION", "KOMBU_LOG_CHANNEL"), "DSF_LOG_LEVEL"),
    },
    "flower": {"FLOWER_BROKER_API": "DSF_REDIS_URL"},
    "uvicorn": {
        # A single process serves, and the page itself decides whose forwarded headers count.
        "WEB_CONCURRENCY": "one process",
        "FORWARDED_ALLOW_IPS": "DSF_WEB_TRUSTED_PROXIES",
    },
    # Metrics would be files that no other process of ours reads.
    "prometheus_client": dict.fromkeys(("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"), "one process"),
    # The client is configured by an object; its default would be read at import.
    "kubernetes": {},
    # Sessions do not trust the environment (`dsf.http.transport`), and DSF_REDIS_* are the only source of connections.
    "requests": {},
    "redis": {},
    # OTEL_* are the settings of tracing.
    "opentelemetry": {},
}
#: The value that Kubernetes gives to `<SERVICE>_PORT` in each pod of the namespace of a Service.
_SERVICE_LINK: Final = re.compile(r"(tcp|udp|sctp)://\S+:\d+")

_removed: dict[str, str] = {}


def clean(environment: MutableMapping[str, str]) -> None:
    """Remove the variables that override settings, and links to Services that look like options of a library."""
    for variables in OVERRIDING.values():
        _removed.update({name: instead for name, instead in variables.items() if environment.pop(name, None)})
    for name in [name for name in environment if name.startswith(("FLOWER_", "CELERY_", "UVICORN_"))]:
        if _SERVICE_LINK.fullmatch(environment[name]):
            # The variable causes no warning: Kubernetes sets it whatever people do.
            del environment[name]


def removed() -> dict[str, str]:
    """The variables that were removed from this process's environment, and what counts instead."""
    return dict(_removed)
