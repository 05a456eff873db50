"""What an agent does not load unless it is asked for: the extra may be missing, and the Kubernetes client is large."""

from __future__ import annotations

import subprocess
import sys


def test_a_source_type_is_loaded_when_it_is_first_asked() -> None:
    code = (
        "import sys, dsf.agent.runtime, dsf.sources;"
        "there = lambda: [name for name in dsf.sources.SOURCES.values() if name in sys.modules];"
        "print(there()); dsf.sources.source_of('Prometheus'); print(there())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n")[:2] == ["[]", "['dsf.sources.prometheus']"], done.stdout + done.stderr


def test_the_table_of_sources_loads_neither_protobuf_nor_kubernetes() -> None:
    code = (
        "import sys, dsf.sources, dsf.agent.runtime;"
        "print([name for name in sys.modules if name.startswith(('google.', 'opentelemetry.proto', 'kubernetes'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
