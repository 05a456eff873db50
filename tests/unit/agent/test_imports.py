"""Imports at an agent's start: every managed cluster pays for each megabyte."""

from __future__ import annotations

import json
import subprocess
import sys

#: Modules of distributions that an agent needs, directly or through another one.
KNOWN = {
    # Celery, billiard and rich probe for these; tools of the tests install them.
    *("greenlet", "cffi", "psutil", "attr", "colorama"),
    *("celery", "kombu", "billiard", "vine", "amqp", "click", "dateutil", "six", "tzlocal"),
    # All but the first serve disabled features; they load if installed.
    *("redis", "hiredis", "opentelemetry", "cryptography", "greenlet"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
    *("pydantic_settings", "dotenv"),
    *("requests", "charset_normalizer", "urllib3", "idna", "certifi", "brotli", "zstandard", "h2", "socks"),
    # Structlog imports these for tracebacks, which are unused here.
    *("structlog", "rich", "pygments", "markdown_it", "mdurl"),
    *("prometheus_client", "yaml", "msgspec", "orjson", "uvicorn", "h11"),
    *("_cffi_backend", "_brotli", "zipp", "packaging", "wrapt", "deprecated", "tzdata"),
}
#: Parts of this project that belong to other processes.
OTHERS = {"hub", "results", "fleetmetrics", "optimizer", "cli", "demo", "scorer", "beat", "kube", "redisacl"}
#: Expensive modules of the standard library and of packages that no agent uses.
UNUSED = {"typer", "unittest", "email.mime", "celery.bin"}
_SAY = """
import json, sys
import dsf.log
from dsf.worker import liveness
from dsf.process import gctuning
from dsf.settings import settings
dsf.log.setup(settings())
from dsf.agent import main
from dsf.worker.application import make_app
app = make_app(settings())
app.loader.import_default_modules()
print(json.dumps(sorted(sys.modules)))
"""


def test_agent_imports_only_needed_modules() -> None:
    process = subprocess.run(
        [sys.executable, "-c", _SAY],
        env={"DSF_ROLE": "agent", "DSF_CLUSTER": "c1", "DSF_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    modules: list[str] = json.loads(process.stdout)
    assert not UNUSED & set(modules)
    tops = {name.split(".")[0] for name in modules}
    strange = {name for name in tops - KNOWN - sys.stdlib_module_names if not name.startswith("_")}
    assert strange <= {"dsf", "pyexpat", "cython_runtime"}
    # Every installed distribution adds its settings; an agent's image has only those of the sources.
    settings_modules = {name for name in modules if name.endswith(".settings") and name.startswith("dsf.")}
    packages = {name.split(".")[1] for name in modules if name.startswith("dsf.")}
    packages -= {name.split(".")[1] for name in settings_modules if _loaded_below(modules, name) == {name}}
    assert not packages & OTHERS


def _loaded_below(modules: list[str], settings_module: str) -> set[str]:
    """Return the loaded modules of the package of `settings_module`."""
    return {name for name in modules if name.startswith(settings_module.removesuffix("settings"))}


def test_dsf_agent_loads_no_other_command() -> None:
    code = (
        "import sys\nsys.argv = ['dsf', 'agent']\nfrom dsf.cli.script import run\n"
        "try:\n    run()\nexcept SystemExit as end:\n    print(end.code)\n"
        "print([name for name in ('typer', 'dsf.cli.main') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={"DSF_CLUSTER": "c1", "DSF_LISTEN_PORT": "x"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert process.stdout.split("\n")[:2] == ["2", "[]"]
    assert "DSF_LISTEN_PORT" in process.stderr
