"""Modules that an agent loads only on demand: the extra may be missing, and the Kubernetes client is large."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dsf.errors import HttpError
from dsf.sources import base, registry


def _run_and_print(code: str) -> str:
    """Return the output of a separate process, with a traceback at its end if it fails."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    return process.stdout + process.stderr


def test_source_types_load_lazily_with_their_dependencies() -> None:
    """Pushed metrics are a plug-in, which is found without being loaded."""
    code = (
        "import sys, dsf.agent.main, dsf.sources\n"
        "from dsf.sources.base import OTLP\nfrom dsf.sources.registry import find_plugins, find_source\n"
        "def there(*names): return sorted(name for name in sys.modules if name.startswith(names))\n"
        "print(there('google.', 'opentelemetry.proto', 'kubernetes'), there(*dsf.sources.SOURCES.values()))\n"
        "find_source('Prometheus'); print(there(*dsf.sources.SOURCES.values()))\n"
        "find_source('OpenTelemetry'); print(OTLP in find_plugins(), there('google.protobuf', 'dsf.otlp.receiver'))\n"
        "find_source(OTLP); print(there('dsf.otlp.receiver'))"
    )
    assert _run_and_print(code).splitlines() == [
        "[] []",
        "['dsf.sources.prometheus']",
        "True []",
        "['dsf.otlp.receiver']",
    ]


def test_without_the_extra_a_scorer_of_pushed_metrics_names_it() -> None:
    code = (
        "import sys; sys.modules['google.protobuf'] = sys.modules['opentelemetry.proto'] = None\n"
        "from dsf.errors import HttpError\nfrom dsf.sources.base import OTLP\n"
        "from dsf.sources.registry import find_source\n"
        "try: find_source(OTLP)\n"
        "except HttpError as error: print(error.reason, error)"
    )
    printed = _run_and_print(code)
    assert printed.startswith("plugin_failed ")
    assert "needs the extra `otel`: pip install 'dynamic-scoring-framework[otel]'" in printed


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        (base.OTLP, "otel"),
        *dict.fromkeys([*base.PLUGIN_BY_BUILTIN_TYPE, *base.PLUGIN_BY_BUILTIN_TYPE.values()], "sources").items(),
    ],
)
def test_without_the_distribution_a_scorer_names_the_extra(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_plugins", dict)
    # Isolates the cache of plug-ins from other tests.
    monkeypatch.setattr(registry, "find_source", registry.find_source.__wrapped__)
    with pytest.raises(HttpError, match=rf"needs the extra `{extra}`: pip install '[\w-]+\[{extra}\]'") as caught:
        registry.find_source(name)
    assert caught.value.reason == "unsupported_source"
