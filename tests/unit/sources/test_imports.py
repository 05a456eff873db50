"""What an agent does not load unless it is asked for: the extra may be missing, and the Kubernetes client is large."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dsf.errors import HttpError
from dsf.sources import base, registry


def _printed(code: str) -> str:
    """What a process of its own prints; a traceback is at its end."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr


def test_a_source_type_is_loaded_when_it_is_first_asked() -> None:
    code = (
        "import sys, dsf.agent.main, dsf.sources;"
        "there = lambda: [name for name in dsf.sources.SOURCES.values() if name in sys.modules];"
        "print(there()); dsf.sources.source_of('Prometheus'); print(there())"
    )
    assert _printed(code).splitlines() == ["[]", "['dsf.sources.prometheus']"]


def test_pushed_metrics_are_a_plug_in_that_is_loaded_with_the_first_scorer_of_them() -> None:
    code = (
        "import sys, dsf.agent.main, dsf.sources;"
        "from dsf.sources.registry import OTLP, plugins, source_of;"
        "there = lambda: [name for name in sys.modules if name.startswith(('dsf.otlp', 'google.protobuf'))];"
        "source_of('OpenTelemetry'); print(OTLP in plugins(), 'google.protobuf' in sys.modules);"
        "print('dsf.otlp.receiver' in there()); source_of(OTLP); print('dsf.otlp.receiver' in there())"
    )
    assert _printed(code).splitlines() == ["True False", "False", "True"]


def test_without_the_extra_a_scorer_of_pushed_metrics_names_it() -> None:
    code = (
        "import sys; sys.modules['google.protobuf'] = sys.modules['opentelemetry.proto'] = None\n"
        "from dsf.errors import HttpError; from dsf.sources.registry import OTLP, source_of\n"
        "try: source_of(OTLP)\n"
        "except HttpError as error: print(error.reason, error)"
    )
    said = _printed(code)
    assert said.startswith("plugin_failed ")
    assert "needs the extra `otel`: pip install 'dynamic-scoring-framework[otel]'" in said


@pytest.mark.parametrize(("name", "extra"), [*registry.EXTRAS.items(), *dict.fromkeys(base.BEHIND, "sources").items()])
def test_without_the_distribution_a_scorer_names_the_extra(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "plugins", dict)
    # Not what a test before this one got from the cache, and nothing of this one for those after it.
    monkeypatch.setattr(registry, "source_of", registry.source_of.__wrapped__)
    with pytest.raises(HttpError, match=rf"needs the extra `{extra}`: pip install '[\w-]+\[{extra}\]'") as caught:
        registry.source_of(name)
    assert caught.value.reason == "unsupported_source"


def test_the_table_of_sources_loads_neither_protobuf_nor_kubernetes() -> None:
    code = (
        "import sys, dsf.sources, dsf.agent.main;"
        "print([name for name in sys.modules if name.startswith(('google.', 'opentelemetry.proto', 'kubernetes'))])"
    )
    assert _printed(code).strip() == "[]"
