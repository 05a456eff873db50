"""Removes environment variables of libraries that would override the project's settings, at the start of each process.

A variable that another program on the same machine needs, or that Kubernetes sets for a Service, must not send an agent
to another Redis or end a process. Variables stay if no setting of this project stands for them, such as FLOWER_*,
OTEL_* and AWS_*.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from importlib.metadata import entry_points
from typing import Final

#: Library -> variable -> setting or value that applies in its place.
OVERRIDING_VARIABLES: Final[dict[str, dict[str, str]]] = {
    "celery": {
        **dict.fromkeys(
            ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "BROKER_URL"), "DSF_REDIS_URL"
        ),
        # Agents deliver results through mailboxes.
        **dict.fromkeys(("CELERY_RESULT_BACKEND", "RESULT_BACKEND"), "no result backend"),
        # These name another application or configuration than dsf.celery.
        **dict.fromkeys(("CELERY_LOADER", "LOADER", "CELERY_CONFIG_MODULE", "CONFIG_MODULE"), "dsf.celery"),
        # With these, Celery would refuse to call a task, or to start. The last ones must be numbers or truth values.
        **dict.fromkeys(
            ("C_STRICT_APP", "C_WARN_APP", "C_IMPDEBUG", "C_BENCH", "C_BENCH_EVERY", "C_WNOCONF"), "nothing"
        ),
        "AUTOSCALE_KEEPALIVE": "nothing",
    },
    "kombu": {
        "PICKLE_PROTOCOL": "JSON",
    },
    "flower": {"FLOWER_BROKER_API": "DSF_REDIS_URL"},
    "uvicorn": {
        # The page is served by a single process, and decides by its own setting which proxies it trusts.
        "WEB_CONCURRENCY": "one process",
        "FORWARDED_ALLOW_IPS": "DSF_WEB_TRUSTED_PROXIES",
    },
    # With these, metrics would be written to files that no process of the project reads.
    "prometheus_client": dict.fromkeys(("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"), "one process"),
    # The client is configured by an object, so no variable applies.
    "kubernetes": {},
    # Sessions do not trust the environment (`dsf.http.transport`), and only DSF_REDIS_* configure connections to Redis.
    "requests": {},
    "redis": {},
    # OTEL_* are the settings of tracing; `_drop_missing_propagators` changes one of them.
    "opentelemetry": {},
}
#: Prefix of all variables of a library -> setting or module that applies in their place.
_OVERRIDING_PREFIXES: Final = {
    "CELERY_": "dsf.celery",
    # Kombu logs every call on a connection, with its arguments.
    "KOMBU_": "DSF_LOG_LEVEL",
}
#: Options of Celery's own commands: CELERY_WORKER_CONCURRENCY is `celery worker --concurrency`.
_COMMAND_OPTION_PATTERN: Final = re.compile(
    r"CELERY_(WORKER|BEAT|CALL|CONTROL|EVENTS|FLOWER|INSPECT|MULTI|REPORT|STATUS)_\w+"
)
_PROPAGATORS: Final = "OTEL_PROPAGATORS"
#: Size of the terminal in columns and lines, and width of the help. Libraries fill each line of the help up to this
#: width, and fail if the text is no number.
_TERMINAL_SIZES: Final = ("COLUMNS", "LINES", "TERMINAL_WIDTH")
#: Matches the allowed sizes: 1 to 9,999.
_SIZE_PATTERN: Final = re.compile(r"[1-9][0-9]{0,3}")
#: The value of `<SERVICE>_PORT`, which Kubernetes sets in each pod of the namespace of a Service.
_SERVICE_LINK_PATTERN: Final = re.compile(r"(tcp|udp|sctp)://\S+:\d+")

_removed: dict[str, str] = {}


def clean(environment: MutableMapping[str, str]) -> None:
    """Remove the variables that override settings, and links to Services that look like options of a library."""
    for name in [name for name in environment if name.startswith(("DSF_", "FLOWER_", "CELERY_", "UVICORN_"))]:
        if name.endswith("_PORT") and _SERVICE_LINK_PATTERN.fullmatch(environment[name]):
            # Remove it without a warning, because Kubernetes sets it and users cannot avoid it.
            del environment[name]
    for variables in OVERRIDING_VARIABLES.values():
        _removed.update({name: instead for name, instead in variables.items() if environment.pop(name, None)})
    for prefix, instead in _OVERRIDING_PREFIXES.items():
        for name in [name for name in environment if name.startswith(prefix)]:
            if _COMMAND_OPTION_PATTERN.fullmatch(name) is None and environment.pop(name):
                _removed[name] = instead
    for name in _TERMINAL_SIZES:
        if _SIZE_PATTERN.fullmatch(environment.get(name, "1")) is None and environment.pop(name):
            _removed[name] = "the size of the terminal"
    _drop_missing_propagators(environment)


def _drop_missing_propagators(environment: MutableMapping[str, str]) -> None:
    """Remove propagators that are not installed, because with them every import of OpenTelemetry's API fails.

    The list may contain them because OpenTelemetry's operator sets the same list in all pods.
    """
    names = [name.strip() for name in environment.get(_PROPAGATORS, "").split(",") if name.strip()]
    if not names:
        return
    installed_names = entry_points(group="opentelemetry_propagator").names
    usable_names = [name for name in names if name in installed_names or name.lower() == "none"]
    if usable_names == names:
        return
    _removed[_PROPAGATORS] = ",".join(usable_names) or "tracecontext,baggage"
    if usable_names:
        environment[_PROPAGATORS] = ",".join(usable_names)
    else:
        del environment[_PROPAGATORS]


def list_removed() -> dict[str, str]:
    """Return the variables that were removed from this process's environment, each with its replacement."""
    return dict(_removed)
