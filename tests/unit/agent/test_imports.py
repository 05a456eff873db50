"""What an agent imports at its start: each megabyte is there on every managed cluster."""

from __future__ import annotations

import json
import subprocess
import sys

#: Distributions' modules that an agent needs, or that one of these brings with it.
KNOWN = {
    # Celery looks whether greenlet is there; tools of the tests bring it.
    "greenlet",
    *("celery", "kombu", "billiard", "vine", "amqp", "click", "dateutil", "six", "tzlocal"),
    # All but the first for what is off (telemetry of redis-py, other pools of Celery); they come where installed.
    *("redis", "opentelemetry", "psutil", "cryptography", "greenlet"),
    *("pydantic", "pydantic_core", "pydantic_settings", "annotated_types", "typing_extensions", "typing_inspection"),
    *("requests", "urllib3", "charset_normalizer", "idna", "certifi", "brotli", "zstandard", "h2", "socks"),
    "structlog",
    *("prometheus_client", "yaml", "dotenv", "msgspec", "orjson"),
    *("_cffi_backend", "cffi", "pycparser", "_brotli", "zipp", "packaging", "wrapt", "deprecated", "tzdata"),
}
#: Parts of this project that belong to other processes.
OTHERS = {"hub", "results", "exporter", "optimizer", "cli", "demo", "scorer", "schedule", "kube", "redisacl"}
_SAY = """
import json, sys
import dsf.log
from dsf import workerprobes
from dsf.settings import settings
dsf.log.setup(settings())
from dsf.agent import main, memory, pool, runtime, steps, transport
from dsf.celery import app
app.loader.import_default_modules()
print(json.dumps(sorted(sys.modules)))
"""


def test_an_agent_imports_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SAY],
        env={"DSF_ROLE": "agent", "DSF_CLUSTER": "c1", "DSF_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    modules: list[str] = json.loads(done.stdout)
    tops = {name.split(".")[0] for name in modules}
    strange = {name for name in tops - KNOWN - sys.stdlib_module_names if not name.startswith("_")}
    assert strange <= {"dsf", "pyexpat", "cython_runtime"}
    assert not {name.split(".")[1] for name in modules if name.startswith("dsf.")} & OTHERS
